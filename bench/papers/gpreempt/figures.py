"""The figures, by their keys: those of the paper, then ours. Each is a PNG, and draws only what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.papers.common import pictures
from bench.papers.common.driving import NEWEST, OPEN
from bench.papers.common.pictures import Kind, legend, log, tidy
from bench.papers.gpreempt import published
from bench.papers.gpreempt.analysis import ALONE, NP, Results
from bench.papers.gpreempt.config import PUBLISHED
from bench.papers.gpreempt.systems import SYSTEMS
from bench.papers.gpreempt.systems.gpreempt import HINTED, SWEEP, SYSTEM
from bench.papers.gpreempt.systems.system import HINT_US

# Colours of Okabe and Ito, told apart by every eye; the markers tell them apart in print.
_STYLES = {
    "alone": ("#000000", "o"), "slicing": ("#999999", "s"), "sequential": ("#F0E442", "v"),
    "gpreempt": ("#56B4E9", "^"), "gpreempt-hint": ("#0072B2", "D"), "one-process": ("#E69F00", "P"),
    "mps": ("#CC79A7", "X"), "blocks": ("#D55E00", "<"), "reset": ("#7F3C00", ">"), "runlist": ("#009E73", "*"),
    "orion": ("#9467BD", "h"), "runlist-mps": ("#66C2A5", "p"),
}  # fmt: skip
_OTHERS = (("#4B0082", "h"), ("#808000", "p"), ("#008080", "8"))

_SWEPT = {one.name for one in SWEEP}


def chosen(keys: str | None) -> list[Kind[Results]]:
    """Those of a command line, by commas; None: all. Raises UsageError."""
    return pictures.chosen(KINDS, keys, "figure")


def style(results: Results, system: str) -> tuple[str, str]:
    """Colour and marker of a system, the same in all figures."""
    if system in _STYLES:
        return _STYLES[system]
    others = [name for name in results.systems if name not in _STYLES]
    return _OTHERS[others.index(system) % len(_OTHERS)]


def _systems(results: Results, *without: str) -> list[str]:
    return [name for name in results.systems if name not in _SWEPT and name not in without]


def _there(results: Results, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in results.workloads]


def _bars(
    results: Results, axes: Any, workloads: Sequence[str], systems: Sequence[str],
    ours: Callable[[str, str], float | None], theirs: Callable[[str, str], float | None],
) -> bool:  # fmt: skip
    """A group of bars a workload, a bar a system; the published value of the same as a white diamond."""
    width, drawn, told = 0.84 / max(1, len(systems)), False, False
    for place, system in enumerate(systems):
        colour, _ = style(results, system)
        label = results.title(system)
        for group, workload in enumerate(workloads):
            at = group + (place - (len(systems) - 1) / 2) * width
            if (value := ours(workload, system)) is not None:
                axes.bar(at, value, width * 0.92, color=colour, label=label, edgecolor="#333333", linewidth=0.3)
                label, drawn = "_", True
            if (other := theirs(workload, system)) is not None:
                known = "_" if told else f"published ({published.GPU}, {published.STATISTIC})"
                axes.plot([at], [other], marker="D", markersize=4, color="white", markeredgecolor="black",
                          linestyle="none", label=known, zorder=5)  # fmt: skip
                told = True
    axes.set_xticks(range(len(workloads)), list(workloads))
    axes.set_xlim(-0.6, len(workloads) - 0.4)
    tidy(axes)
    return drawn


def _told_latency(workload: str, system: str) -> float | None:
    column = SYSTEMS[system].published if system in SYSTEMS else ""
    return published.LC_MS.get(workload, {}).get(column)


def _told_added(workload: str, system: str) -> float | None:
    column = SYSTEMS[system].published if system in SYSTEMS else ""
    return published.ADDED_US.get(workload, {}).get(column)


def _latency(names: Sequence[str]) -> Callable[[Results, Any], bool]:
    def draw(results: Results, figure: Any) -> bool:
        workloads = _there(results, names)
        if not workloads:
            return False
        newest, queued = figure.subplots(1, 2, sharey=True)
        drawn = False
        for axes, mode, words in ((newest, NEWEST, "newest wins, as DISB"), (queued, OPEN, "open queue, from arrival")):

            def ours(workload: str, system: str, mode: str = mode) -> float | None:
                value = results.latency_us(workload, system, mode)
                return None if value is None else value / 1e3

            theirs = _told_latency if mode == NEWEST else _nothing
            drawn |= _bars(results, axes, workloads, _systems(results), ours, theirs)
            log(axes.yaxis, axes.set_yscale)
            axes.set_title(words, fontsize=9)
        newest.set_ylabel("mean latency of LC (ms, log scale)")
        legend(figure, newest)
        return drawn

    return draw


def _nothing(_workload: str, _system: str) -> float | None:
    return None


def _throughput(results: Results, figure: Any) -> bool:
    workloads = _there(results, PUBLISHED) or results.workloads
    axes = figure.subplots()
    drawn = _bars(results, axes, workloads, _systems(results, ALONE, NP), results.rate_ratio, _nothing)
    axes.axhline(1, color="#333333", linewidth=0.8)
    for system, column in (("gpreempt-hint", "GP"), ("blocks", "WB"), ("sequential", "SEQ")):
        axes.axhline(published.BE_RATIO[column], color=style(results, system)[0], linestyle=":", linewidth=1.2,
                     label=f"{column}, published mean ({published.GPU})")  # fmt: skip
    axes.set_ylabel("BE throughput / NP's")
    legend(figure, axes)
    return drawn


def _added(results: Results, figure: Any) -> bool:
    workloads = _there(results, PUBLISHED)
    if not workloads:
        return False
    means, tails = figure.subplots(1, 2, sharey=True)
    systems = _systems(results, ALONE)
    drawn = _bars(results, means, workloads, systems, results.added_us, _told_added)

    def p99(workload: str, system: str) -> float | None:
        return results.added_us(workload, system, OPEN, 99)

    _bars(results, tails, workloads, systems, p99, _nothing)
    for axes, words in ((means, "mean, newest wins, as DISB"), (tails, "p99, open queue")):
        axes.set_yscale("symlog", linthresh=10)
        axes.set_title(words, fontsize=9)
        axes.axhline(0, color="#333333", linewidth=0.8)
    means.set_ylabel("LC latency added over alone (µs)")
    legend(figure, means)
    return drawn


def _leads(results: Results, figure: Any) -> bool:
    points = [(0.0, SYSTEM.name), (HINT_US, HINTED.name), *((float(one.lead_us or 0), one.name) for one in SWEEP)]
    points.sort()
    axes = figure.subplots()
    drawn = False
    for percent, words, line in ((None, "mean", "o-"), (99.0, "p99", "s--")):
        found = [(lead, results.added_us("A", name, NEWEST, percent)) for lead, name in points]
        known = [(lead, value) for lead, value in found if value is not None]
        if known:
            axes.plot(*zip(*known, strict=True), line, color="#0072B2" if percent is None else "#D55E00", label=words)
            drawn = True
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.set_xlabel("the hint, ahead of the request (µs; 0: none)")
    axes.set_ylabel("LC latency added over alone (µs)")
    tidy(axes)
    legend(figure, axes)
    return drawn


def _ablation(results: Results, figure: Any) -> bool:
    axes = figure.subplots()
    workloads = _there(results, PUBLISHED)
    drawn = _bars(results, axes, workloads, [SYSTEM.name, HINTED.name], results.added_us, _told_added)
    axes.set_yscale("symlog", linthresh=10)
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.set_ylabel("LC mean added over alone (µs)")
    legend(figure, axes)
    return drawn


def _tails(results: Results, figure: Any) -> bool:
    workloads = results.workloads
    columns = min(4, max(1, len(workloads)))
    rows = -(-len(workloads) // columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    drawn = False
    for place, axes in enumerate(grid.flat):
        if place >= len(workloads):
            axes.set_visible(False)
            continue
        for system in _systems(results):
            values = results.latencies(workloads[place], system, OPEN)
            if values:
                count = len(values)
                beyond = [(count - index) / count for index in range(count)]
                axes.plot([value / 1e3 for value in values], beyond, color=style(results, system)[0], linewidth=1.3,
                          label=results.title(system))  # fmt: skip
                drawn = True
        log(axes.xaxis, axes.set_xscale)
        axes.set_yscale("log")
        axes.set_title(workloads[place], fontsize=9)
        axes.tick_params(labelsize=7)
        if place + columns >= len(workloads):
            axes.set_xlabel("ms from the intended arrival", fontsize=8)
        if place % columns == 0:
            axes.set_ylabel("part that took longer", fontsize=8)
        for percent in (99, 99.9):
            axes.axhline(1 - percent / 100, color="#999999", linewidth=0.6, linestyle=":")
        tidy(axes)
    legend(figure, grid[0][0])
    return drawn


def _scatter(results: Results, figure: Any) -> bool:
    axes = figure.subplots()
    drawn = False
    for system in _systems(results, ALONE):
        colour, marker = style(results, system)
        points = []
        for workload in results.workloads:
            p99, alone = (results.latency_us(workload, one, OPEN, 99) for one in (system, ALONE))
            ratio = results.rate_ratio(workload, system, "slicing", OPEN)
            if p99 is not None and alone and ratio is not None:
                points.append((p99 / alone, ratio, workload))
        for place, (x, y, workload) in enumerate(points):
            axes.plot([x], [y], marker=marker, color=colour, markersize=8, alpha=0.85, linestyle="none",
                      markeredgecolor="#333333", markeredgewidth=0.4,
                      label="_" if place else results.title(system))  # fmt: skip
            axes.annotate(workload, (x, y), fontsize=6, xytext=(4, 3), textcoords="offset points")
            drawn = True
    axes.axvline(1, color="#999999", linewidth=0.8, linestyle=":")
    axes.axhline(1, color="#999999", linewidth=0.8, linestyle=":")
    log(axes.xaxis, axes.set_xscale)
    axes.set_xlabel("p99 of LC / alone, open queue (log scale; left is better)")
    axes.set_ylabel("BE throughput / time slicing's (up is better)")
    tidy(axes)
    legend(figure, axes)
    return drawn


def _timeline(results: Results, figure: Any) -> bool:
    cells = [cell for cell in results.cells if cell.timeline and cell.system not in _SWEPT]
    workload = next((cell.workload for cell in cells), None)
    cells = [cell for cell in cells if cell.workload == workload]
    if not cells:
        return False
    axes = figure.subplots()
    names = sorted({name for cell in cells for name, _, _ in cell.timeline}, key=lambda name: (name[:2] != "lc", name))
    colours = dict(
        zip(names, ("#009E73", "#D55E00", "#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#999999"), strict=False)
    )
    for row, cell in enumerate(cells):
        for name in names:
            spans = [(start / 1e3, max(end - start, 20) / 1e3) for one, start, end in cell.timeline if one == name]
            axes.broken_barh(spans, (row - 0.38, 0.76), color=colours.get(name, "#999999"), label="_" if row else name)
    for name in names:  # one that is not in the first row has its name all the same
        axes.plot([], [], color=colours.get(name, "#999999"), linewidth=6, label=name)
    axes.set_yticks(range(len(cells)), [cell.title for cell in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlabel(f"ms; who held the GPU, by its own log, workload {workload}")
    tidy(axes)
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return True


KINDS = {
    kind.key: kind
    for kind in (
        Kind("4a", "LC latency, models", _latency(("A", "B", "C", "D", "E", "REAL")), 3.8),
        Kind("4b", "LC latency, weather and graphs", _latency(("Y", "Z")), 3.8),
        Kind("5", "Best-effort throughput", _throughput, 3.8),
        Kind("6", "LC latency added over alone", _added, 3.8),
        Kind("7a", "How long ahead the hint is, workload A", _leads, 3.4),
        Kind("7b", "With and without the hint", _ablation, 3.4),
        Kind("tail", "Distribution of LC latencies", _tails, 5.6),
        Kind("scatter", "Throughput against p99", _scatter, 4.6),
        Kind("timeline", "Switches of the GPU", _timeline, 4.2),
    )
}
