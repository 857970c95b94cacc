"""What a part of a GPU is as a weight, once for all who give out parts: weights count among all processes on a GPU,
whoever placed them.
"""

from __future__ import annotations

from fractions import Fraction

WHOLE = 100
"""The weight of a whole GPU: what everybody has whom nobody asked, so that weights read as percent."""


def weight_of(part: float | Fraction) -> int:
    """The weight of a part, more than 0 and at most 1, of a GPU."""
    return max(1, round(WHOLE * part))
