"""The picture of a simulation: latencies as cumulative curves, and each GPU's time by tenant."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runlist.errors import RunlistError, UsageError
from runlist.sim.result import Series
from runlist.sim.simulation import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours of Okabe and Ito, told apart by every eye; the line styles tell more tenants apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", ":", "-.")
MAX_TENANTS = 28
"""More curves than this nobody tells apart: the rest is drawn as one."""
MAX_GPUS = 8
MAX_POINTS = 2_000
_DPI = 150


def plot(outcome: Outcome, path: Path) -> None:
    """Draw the picture. Raises RunlistError where it cannot be written, UsageError for a form that it cannot have."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its remarks on caches are not the user's concern
    from matplotlib.figure import Figure

    gpus = sorted({one.gpu for one in outcome.series})[:MAX_GPUS] or [0]
    figure = Figure(figsize=(8, 3.2 * (1 + len(gpus))), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1 + len(gpus), 1, squeeze=False)[:, 0])
    _draw_latencies(axes[0], outcome.series[:MAX_TENANTS])
    for gpu, below in zip(gpus, axes[1:], strict=True):
        _draw_shares(below, outcome.series, outcome.result.window_s, gpu)
    result = outcome.result
    figure.suptitle(f"{result.trace} under {result.policy}, seed {result.seed} (simulated)", fontsize=11)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise RunlistError(f"the picture {path} cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"--plot {path}: {error}") from None


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _draw_latencies(axes: Axes, series: Sequence[Series]) -> None:
    for index, one in enumerate(series):
        ordered = one.latencies_us
        if not ordered:
            continue
        step = max(1, len(ordered) // MAX_POINTS)
        ranks = range(0, len(ordered), step)
        points = [*(ordered[rank] for rank in ranks), ordered[-1]]
        shares = [*((rank + 1) / len(ordered) for rank in ranks), 1.0]
        line = _LINES[index // len(_COLOURS) % len(_LINES)]
        axes.plot(points, shares, color=_colour(index), linestyle=line, lw=1.6, label=one.name, drawstyle="steps-post")
    axes.set_xscale("log")
    axes.set_xlabel("latency of a request (µs, log scale)")
    axes.set_ylabel("share of requests")
    _finish(axes)


def _draw_shares(axes: Axes, series: Sequence[Series], window_s: float, gpu: int) -> None:
    """Stacked shares over time; what lies under 1 is free, or lost in switches."""
    here = [(index, one) for index, one in enumerate(series) if one.gpu == gpu]
    windows = max((one.first + len(one.shares) for _, one in here), default=0)
    rows = [[0.0] * one.first + one.shares + [0.0] * (windows - one.first - len(one.shares)) for _, one in here]
    names = [one.name for _, one in here]
    if len(rows) > MAX_TENANTS:
        names[MAX_TENANTS - 1 :] = [f"{len(rows) - MAX_TENANTS + 1} others"]
        rows[MAX_TENANTS - 1 :] = [[sum(column) for column in zip(*rows[MAX_TENANTS - 1 :], strict=True)]]
    if windows:
        edges = [window * window_s for window in range(windows + 1)]
        steps = [[*row, row[-1]] for row in rows]
        colours = [_colour(index) for index, _ in here[: len(rows)]]
        axes.stackplot(edges, steps, labels=names, colors=colours, step="post", alpha=0.8, edgecolor="white", lw=0.3)
        axes.set_xlim(0, edges[-1])
    axes.set_xlabel("time (s)")
    axes.set_ylabel(f"share of GPU {gpu}")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
