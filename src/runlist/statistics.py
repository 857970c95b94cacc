"""The one formula for percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of ascending samples: a value that was seen. Raises ValueError without samples."""
    if not ordered:
        raise ValueError("no samples")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
