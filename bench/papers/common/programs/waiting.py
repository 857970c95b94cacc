"""Waiting for a moment."""

from __future__ import annotations

import time

_SPIN_NS = 300_000
"""For how long a wait spins at its end: a processor that sleeps wakes late."""


def until(due_ns: int) -> None:
    """Wait for a moment of CLOCK_MONOTONIC."""
    while (left := due_ns - time.monotonic_ns()) > 0:
        if left > _SPIN_NS:  # and no sleep of 0, which gives the processor away
            time.sleep((left - _SPIN_NS) / 1e9)
