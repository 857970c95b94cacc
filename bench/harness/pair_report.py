"""The table and the picture of the benchmark `pairs`."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence

from rich.table import Table

from bench.harness.pair_figures import ALWAYS, BATCH, IDEAL, P50, P99, ideal, ratios, tails
from bench.harness.pair_programs import ALONE
from bench.harness.pair_run import Measured

# Colours of Okabe and Ito, told apart by every eye; the markers tell them apart in print.
_STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#CC79A7", "^"), ("#009E73", "D"), ("#E69F00", "v"), ("#56B4E9", "P"))
_DPI = 160


def table(all_measured: Sequence[Measured]) -> Table:
    """A row a pair and configuration."""
    made = Table(title="response in ms, from the arrival on; batch beside one alone")
    for heading in ("pair", "configuration"):
        made.add_column(heading, no_wrap=True)
    for heading in ("p50", "p99", "p99.9", *(what.removeprefix("response ") for what in ALWAYS)):
        made.add_column(heading, justify="right")
    for measured in all_measured:
        for place, (name, samples) in enumerate(measured.samples.items()):
            got = ratios(measured, name)
            times = [f"{value / 1e3:.3g}" for value in tails(samples).values()]
            cells = [*times, *(f"{got[what]:.3g}" if what in got and name != ALONE else "" for what in ALWAYS)]
            made.add_row(
                "" if place else str(measured.pair), name, *cells, end_section=name == list(measured.samples)[-1]
            )
    return made


def picture(all_measured: Sequence[Measured], title: str) -> bytes:
    """A PNG: a row a pair; on the left the response times over those alone (p50 to p99), on the right the batch rate
    over that alone, and what would be ideal. Raises ImportError without matplotlib.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    names = list(dict.fromkeys(name for one in all_measured for name in one.samples if name != ALONE))
    figure = Figure(figsize=(9.6, 1.6 + 0.55 * len(all_measured)), layout="constrained")
    times, rates = figure.subplots(1, 2, sharey=True)
    for order, name in enumerate(names):
        colour, marker = _STYLES[order % len(_STYLES)]
        place = (order - (len(names) - 1) / 2) * 0.7 / max(1, len(names))
        label = name
        for row, measured in enumerate(all_measured):
            if name not in measured.samples:
                continue
            got, y = ratios(measured, name), row + place
            times.plot([got[P50], got[P99]], [y, y], color=colour, linewidth=1.5)
            times.plot([got[P99]], [y], marker=marker, markersize=5, color=colour, label=label, linestyle="none")
            label = "_"
            if BATCH in got:
                rates.plot([got[BATCH]], [y], marker=marker, markersize=5, color=colour)
            if IDEAL in got:
                rates.plot([ideal(measured, measured.samples[name])], [y], marker="|", markersize=9, color="#444444")
    times.set_yticks(range(len(all_measured)), [str(one.pair) for one in all_measured])
    times.set_ylim(len(all_measured) - 0.5, -0.5)
    times.set_xscale("log")
    times.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    times.xaxis.set_minor_formatter(NullFormatter())
    times.axvline(1, color="#888888", linewidth=0.8)
    times.set_xlabel("response / alone: p50 to p99 (log scale)")
    rates.set_xlim(0, max(1.05, 1.02 * rates.dataLim.xmax))
    rates.set_xlabel("batch / alone (bar: what the requests leave)")
    for axes in (times, rates):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=10)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI)
    return image.getvalue()
