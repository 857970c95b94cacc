"""Opening the best source of usage that works."""

from __future__ import annotations

from typing import NamedTuple

from runlist.daemon.gpu.book import BookUsage
from runlist.errors import RunlistError
from runlist.planes.interface import Plane
from runlist.planes.usage import UsageSource


class Choice(NamedTuple):
    """A source, and why each better one does not work, one line each."""

    source: UsageSource
    refusals: tuple[str, ...]


def open_source(plane: Plane, gpu: str) -> Choice:
    """The best of the plane's sources that works for a GPU, else the daemon's own book."""
    refusals: list[str] = []
    for name, open_ in plane.usage_sources(gpu):
        try:
            return Choice(open_(), tuple(refusals))
        except (RunlistError, OSError) as error:
            refusals.append(f"{name}: {error}")
    return Choice(BookUsage(), tuple(refusals))
