"""The settings of the table as options of `run` and `attach`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from runlist.cli.complete import beginning, values_of
from runlist.settings.help import described
from runlist.settings.table import ANY_TASK, SETTINGS, Setting, parse_request


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes an option for each setting in place of its parameter `settings`, which gets those that were
    given. What is wrong with every process is refused here, before anything is looked at.
    """
    signature = inspect.signature(command, eval_str=True)
    options = {f"{row.key}_setting": row for row in SETTINGS.values()}
    added = [_parameter(name, row) for name, row in options.items()]
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "settings"]

    def taking_options(**values: Any) -> None:
        given = {row.key: values.pop(name) for name, row in options.items()}
        settings = {key: value for key, value in given.items() if value is not None}
        parse_request(settings, ANY_TASK)
        command(**values, settings=settings)

    # This is what typer reads of a command.
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
    parameters[1:1] = added  # behind the target: they matter more than the rest
    taking_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    taking_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    taking_options.__name__ = command.__name__
    taking_options.__doc__ = command.__doc__
    return taking_options


def _parameter(name: str, row: Setting) -> inspect.Parameter:
    shown = typer.Option(
        f"--{row.key}",
        metavar=row.values,
        help=described(row),
        show_default=False,
        autocompletion=lambda incomplete: beginning(incomplete, values_of(row.key)),
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, shown]
    )
