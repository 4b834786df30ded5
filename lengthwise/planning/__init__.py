"""Many runs at once: sweeps over settings, and the search for the ones that keep an SLO.

- `cells`: one run of many, its key, and how a worker runs it.
- `store`: records by key; a cell that is there is not run again.
- `parallel`: cells on local processes, on Dask or on Ray.
- `spec`, `sweep`: what to vary, and the table of what came out.
"""
