"""The demo's picture: the distributions of the latencies, as cumulative curves."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from runlist import files
from runlist.errors import RunlistError
from runlist.statistics import percentile

# Colours of Okabe and Ito, told apart by every eye; the line styles tell them apart in print.
_STYLES = (("#0072B2", ":"), ("#D55E00", "--"), ("#009E73", "-"))
_DPI = 200


def draw(samples: Mapping[str, Sequence[float]], title: str) -> bytes:
    """A PNG: for each configuration the share of requests (0 to 1) that took at most so many µs, and its p99."""
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # its remarks on caches and fonts are not the user's concern
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, values), (colour, style) in zip(samples.items(), _STYLES, strict=False):
        ordered = sorted(values)
        p99 = percentile(ordered, 99)
        axes.ecdf(ordered, color=colour, linestyle=style, linewidth=1.8, label=f"{name} (p99 {p99:,.0f} µs)")
        axes.plot([p99], [0.99], marker="o", markersize=4, color=colour)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("latency of a request, launch to synchronised (µs, log scale)")
    axes.set_ylabel("share of requests")
    axes.set_ylim(0, 1.02)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI)
    return image.getvalue()


def save(image: bytes, path: Path) -> None:
    """Writes a whole file or none. Raises RunlistError where it cannot."""
    try:
        files.replace(path, image)
    except OSError as error:
        reason = f"the picture {path} cannot be written ({error.strerror}): name another with --out"
        raise RunlistError(reason) from None
