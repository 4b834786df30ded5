"""Short forms of distributions for a command line: `gamma:2`, `lognormal:1000:0.9`, `file:PATH`."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel

from traces.errors import TraceError
from traces.spec import (
    Constant,
    Diurnal,
    FileArrivals,
    FileLengths,
    Fixed,
    Gamma,
    Lognormal,
    OnOff,
    Pareto,
    Poisson,
    Spec,
    Uniform,
    Weibull,
    Zipf,
    checked,
)

ARRIVALS: dict[str, tuple[type[BaseModel], str]] = {
    "constant": (Constant, ""),
    "poisson": (Poisson, ""),
    "gamma": (Gamma, "cv"),
    "weibull": (Weibull, "cv"),
    "on-off": (OnOff, "on_s off_s"),
    "diurnal": (Diurnal, "peak [period_s]"),
    "file": (FileArrivals, "path"),
}
LENGTHS: dict[str, tuple[type[BaseModel], str]] = {
    "fixed": (Fixed, "tokens"),
    "uniform": (Uniform, "low high"),
    "lognormal": (Lognormal, "mean sigma [most]"),
    "zipf": (Zipf, "exponent most"),
    "pareto": (Pareto, "alpha least [most]"),
    "file": (FileLengths, "path"),
}


def forms(table: dict[str, tuple[type[BaseModel], str]]) -> str:
    """All short forms of a table, for help texts."""
    return ", ".join(
        ":".join([name, *fields.upper().split()]).replace(":[", "[:")
        for name, (_, fields) in table.items()
    )


def parse(text: str, table: dict[str, tuple[type[BaseModel], str]], flag: str) -> BaseModel:
    """The model that a short form such as `gamma:2` stands for.

    Raises:
        TraceError: an unknown name, a wrong number of values, or one out of range.
    """
    name, _, rest = text.partition(":")
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f" The nearest is {near[0]}." if near else ""
        raise TraceError(f"{flag} {text}: no {name!r}.{hint} Choose {forms(table)}.")
    model, fields = table[name]
    names = [field.strip("[]") for field in fields.split()]
    needed = sum(not field.startswith("[") for field in fields.split())
    # A path may hold colons.
    values = [rest] if name == "file" else rest.split(":") if rest else []
    if not needed <= len(values) <= len(names) or "" in values:
        form = forms({name: table[name]})
        raise TraceError(f"{flag} {text}: write it as {form}.")
    document: dict[str, Any] = dict(zip(names, values, strict=False))
    return checked(model, document, f"{flag} {text}")


def spec_of_flags(given: dict[str, Any]) -> Spec:
    """The spec of one tenant that flags describe, by their names without dashes.

    Raises:
        TraceError: no lengths, or a flag that its form does not fit.
    """
    tenant = dict(given)
    if "joint" not in tenant and not ("prompt" in tenant and "output" in tenant):
        raise TraceError("lengths: give --prompt and --output, or --joint, or --spec.")
    for name, table in (("arrivals", ARRIVALS), ("prompt", LENGTHS), ("output", LENGTHS)):
        if name in tenant:
            tenant[name] = parse(tenant[name], table, f"--{name}")
    return checked(Spec, {"tenants": [tenant]}, "generate")
