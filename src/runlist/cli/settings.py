"""The options of `run` and `attach` that say what a process asks of its share: one table."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class SettingOption:
    """A setting of `runlist set` as an option of the same name. The daemon reads its value, and refuses a bad one."""

    key: str
    values: str
    help: str


SETTING_OPTIONS = (
    SettingOption("class", "CLASS", "deadline, latency, normal or batch; default: what the rules say, else normal."),
    SettingOption("weight", "1..10000", "Its share against others of its kind; 100 is the usual weight."),
    SettingOption("cap", 'PCT|"QUOTA PERIOD"|max', "At most so much of the GPU: percent, or µs in every so many µs."),
    SettingOption("burst", "DURATION", "How much unused time of its cap it may save up, such as 20ms."),
    SettingOption("deadline", "BUDGET/PERIOD", "GPU time that it gets in every period, such as 5ms/20ms."),
    SettingOption("p99", "DURATION", "Tail latency that its requests are to keep, such as 5ms; it must report them."),
    SettingOption("group", "NAME", "Share as one with all processes of this group."),
    SettingOption("memory", "SIZE", "What all of it together may hold on each GPU, such as 8G or 1.5GiB."),
)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the options of the table in place of its parameter `settings`, which gets those that were
    given.
    """
    signature = inspect.signature(command, eval_str=True)
    options = {f"{option.key}_setting": option for option in SETTING_OPTIONS}
    added = [_parameter(name, option) for name, option in options.items()]
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "settings"]

    def taking_options(**values: Any) -> None:
        given = {option.key: values.pop(name) for name, option in options.items()}
        command(**values, settings={key: value for key, value in given.items() if value is not None})

    # This is what typer reads of a command.
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
    parameters[1:1] = added  # behind the target: they matter more than the rest
    taking_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    taking_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    taking_options.__name__ = command.__name__
    taking_options.__doc__ = command.__doc__
    return taking_options


def _parameter(name: str, option: SettingOption) -> inspect.Parameter:
    shown = typer.Option(f"--{option.key}", metavar=option.values, help=option.help, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, shown]
    )
