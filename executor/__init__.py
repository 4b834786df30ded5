"""Time, measured: policies on a real model and a real clock."""
