"""The pictures, by their keys. Each is a PNG, and draws only what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.papers.common import pictures
from bench.papers.common.pictures import Kind, legend, log, tidy
from bench.papers.orion.analysis import Results
from bench.papers.orion.experiments import EACH, SERVED, TOGETHER
from bench.papers.orion.systems import SYSTEMS

# Colours of Okabe and Ito, told apart by every eye; the markers tell them apart in print.
_STYLES = {
    "alone": ("#000000", "o"), "sequential": ("#F0E442", "v"), "slicing": ("#999999", "s"),
    "threads": ("#E69F00", "P"), "threads-greedy": ("#D55E00", "^"), "threads-exclusive": ("#56B4E9", "<"),
    "threads-orion": ("#0072B2", "D"), "threads-p99": ("#009E73", "*"), "mps": ("#CC79A7", "X"),
    "mps-alone": ("#444444", "p"),
    "mps-greedy": ("#8C3A00", "1"), "mps-exclusive": ("#2A7FA8", "2"), "mps-orion": ("#003F66", "d"),
    "mps-p99": ("#005C43", "p"),
}  # fmt: skip


def chosen(keys: str | None) -> list[Kind[Results]]:
    """Those of a command line, by commas; None: all. Raises UsageError."""
    return pictures.chosen(KINDS, keys, "picture")


def _scatter(results: Results, figure: Any) -> bool:
    axes = figure.subplots()
    drawn = False
    for place, experiment in enumerate(one for one in results.experiments if one.kind == SERVED):
        filled = ("full", "none", "left")[place % 3]
        for system in results.systems(experiment):
            p99, both = results.p99_ratio(experiment, system), results.together_ratio(experiment, system)
            if SYSTEMS[system].is_alone or p99 is None or both is None:
                continue
            colour, marker = _STYLES[system]
            axes.plot([p99], [both], marker=marker, color=colour, markersize=9, linestyle="none", fillstyle=filled,
                      label=f"{SYSTEMS[system].title}{', graphs' if place else ''}")  # fmt: skip
            drawn = True
    axes.axvline(1, color="#999999", linewidth=0.8, linestyle=":")
    axes.axhline(1, color="#999999", linewidth=0.8, linestyle=":")
    log(axes.xaxis, axes.set_xscale)
    axes.set_xlabel("p99 of inference / alone (log scale; left is better)")
    axes.set_ylabel("throughput of both / time slicing's (up is better)")
    tidy(axes)
    legend(figure, axes, 4)
    return drawn


def _bars(kind: str, value: Callable[[Results, Any, str], float | None], label: str) -> Callable[[Results, Any], bool]:
    def draw(results: Results, figure: Any) -> bool:
        axes = figure.subplots()
        experiments = [one for one in results.experiments if one.kind == kind]
        systems = [name for name in SYSTEMS if any(value(results, one, name) is not None for one in experiments)]
        width = 0.84 / max(1, len(systems))
        for place, system in enumerate(systems):
            named = SYSTEMS[system].title
            for group, experiment in enumerate(experiments):
                if (height := value(results, experiment, system)) is not None:
                    at = group + (place - (len(systems) - 1) / 2) * width
                    axes.bar(at, height, width * 0.92, color=_STYLES[system][0], label=named, edgecolor="#333333",
                             linewidth=0.3)  # fmt: skip
                    named = "_"
        axes.set_xticks(range(len(experiments)), [one.key for one in experiments], fontsize=8)
        axes.axhline(1, color="#333333", linewidth=0.8)
        axes.set_ylabel(label)
        tidy(axes)
        legend(figure, axes, 4)
        return bool(systems)

    return draw


def _efficiency(results: Results, experiment: Any, system: str) -> float | None:
    """The worse of the two clients'."""
    if not SYSTEMS[system].rule:
        return None
    found = [results.efficiency(experiment, system, task.name) for task in experiment.tasks]
    known = [one for one in found if one is not None]
    return min(known) if known else None


KINDS = {
    kind.key: kind
    for kind in (
        Kind("together", "Two programs at the same moment",
             _bars(TOGETHER, Results.speedup, "as quick as one after the other"), 4.2),
        Kind("overhead", "What is left of a client's rate",
             _bars(EACH, _efficiency, "rate / the same threads without a rule"), 4.2),
        Kind("scatter", "Inference beside training: throughput against p99", _scatter, 5.4),
    )
}  # fmt: skip
