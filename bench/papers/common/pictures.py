"""Drawing: a picture as PNG, and what all of them look like."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from runlist.errors import UsageError

_DPI = 150


class Run(Protocol):
    """What a run gave: on which machine, and whether it was a real GPU's."""

    @property
    def machine(self) -> Mapping[str, Any]: ...
    @property
    def real(self) -> bool: ...


_Run = TypeVar("_Run", bound=Run)


@dataclass(frozen=True)
class Kind(Generic[_Run]):
    """A picture: what it shows, in one line, and what draws it. `draw` returns whether there was anything to draw."""

    key: str
    title: str
    draw: Callable[[_Run, Any], bool]
    height: float


def chosen(kinds: Mapping[str, Kind[_Run]], keys: str | None, what: str) -> list[Kind[_Run]]:
    """Those of a command line, by commas; None: all. Raises UsageError, which calls one by the word `what`."""
    names = list(kinds) if keys is None else list(filter(None, map(str.strip, keys.split(","))))
    for name in names:
        if name not in kinds:
            raise UsageError(f"no {what} {name!r}: take {', '.join(kinds)}")
    return [kinds[name] for name in names]


def gpus(machine: Mapping[str, Any]) -> str:
    """The kinds of GPUs of a machine, each once."""
    return ", ".join(dict.fromkeys(machine.get("gpus", [])))


def measured_on(machine: Mapping[str, Any]) -> str:
    """Where something was measured, and how long its windows were, in words."""
    commit = str(machine.get("commit"))[:7]
    return (
        f"{gpus(machine)}, driver {machine.get('driver')}, Runlist {machine.get('runlist')} ({commit}), "
        f"windows of {machine.get('window_s')} s"
    )


def png(kind: Kind[_Run], results: _Run) -> bytes | None:
    """The picture; None where nothing of it was measured. Raises ImportError without matplotlib."""
    device = "" if results.real else ", emulated GPU: no measurement"
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, kind.height), layout="constrained")
    if not kind.draw(results, figure):
        return None
    figure.suptitle(f"{kind.title} ({gpus(results.machine)}{device})", fontsize=10)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI)
    return image.getvalue()


def tidy(axes: Any) -> None:
    """A grid, and no frame."""
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log(axis: Any, set_scale: Any) -> None:
    """A log scale with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend(figure: Any, axes: Any, columns: int = 5) -> None:
    """What the colours are, below."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
