"""When requests are told to programs (bench/papers/common/driving.py)."""

from __future__ import annotations

import selectors
import socket
import time

from bench.papers.common.driving import Selector


def test_waits_for_a_moment_are_not_rounded_to_milliseconds() -> None:
    """Of many, since a busy machine wakes late; a rounded wait is never short."""
    with Selector() as selector:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            selector.register(ours, selectors.EVENT_READ)
            lengths = []
            for _ in range(50):
                began = time.perf_counter()
                assert selector.select(0.0003) == []
                lengths.append(time.perf_counter() - began)
    assert 0.0003 <= min(lengths) < 0.0009
