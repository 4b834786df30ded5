"""The fields of a run's configuration as flags of a command, so that both always say the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from lengthwise.config import RunConfig, panel_of
from policies.compose import PolicyChoiceError


def takes_run_flags(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every field of `RunConfig`.

    The command gets them as its keyword argument `asked`: a dict of the fields that were given.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != "asked"]
        fields = {
            name: field
            for name, field in RunConfig.model_fields.items()
            if panel_of(field) and name not in leave_out
        }
        flags = [_parameter(name, field) for name, field in fields.items()]

        @wraps(command)
        def wrapper(**given: Any) -> None:
            values = {name: given.pop(name) for name in fields}
            asked = {k: _value(k, v) for k, v in values.items() if v is not None}
            command(**given, asked=asked)

        parameters = [*own, *flags]
        setattr(wrapper, "__signature__", inspect.Signature(parameters))  # noqa: B010
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    kind = _kind(field)
    flag = name.replace("_", "-")
    spelled = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
    option = typer.Option(
        spelled,
        help=_help(field),
        rich_help_panel=panel_of(field),
        show_default=False,
        autocompletion=_completing(name),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _completing(name: str) -> Callable[[str], list[str]]:
    """What a shell offers for the value of a flag, once its first letters are typed."""

    def complete(incomplete: str) -> list[str]:
        from policies.compose import KNOWN, LAYOUTS, LIFECYCLES
        from sim.hardware import hardware_names
        from sim.models import MODELS

        known: dict[str, Iterable[str]] = {
            "policy": KNOWN,
            "layout": LAYOUTS,
            "lifecycle": LIFECYCLES,
            "model": MODELS,
            "hardware": hardware_names(),
        }
        return [value for value in known.get(name, ()) if value.startswith(incomplete)]

    return complete


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    if field.default in (None, True, False):
        return text
    return f"{text} [{field.default}]"


def _kind(field: FieldInfo) -> type:
    """The type of a flag's value on the command line."""
    allowed = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in (bool, int, float) if kind in allowed), str)


def _value(name: str, given: Any) -> Any:
    """A flag's value as the field has it: bucket bounds are numbers with commas between."""
    if name != "bucket_bounds":
        return given
    try:
        return tuple(int(part) for part in str(given).split(","))
    except ValueError as error:
        raise PolicyChoiceError(
            f"--bucket-bounds {given}: give token counts with commas between, e.g. 1024,2048"
        ) from error
