"""How many events `runlist node` writes on one pod."""

from __future__ import annotations

import pytest

from runlist.integrations.node.api import EVENTS_EVERY_S, EVENTS_OF_POD, Allowance


@pytest.mark.parametrize("began", [0.0, 5.0, 420.0, 1e6], ids="{:g} s after boot".format)
def test_some_at_once_and_then_one_after_each_pause(began: float) -> None:
    now = began
    allowance = Allowance(lambda: now)
    assert [allowance.take("u1") for _ in range(EVENTS_OF_POD + 3)] == [True] * EVENTS_OF_POD + [False] * 3
    assert allowance.take("u2")
    now += EVENTS_EVERY_S
    assert [allowance.take("u1") for _ in range(2)] == [True, False]
    now += EVENTS_OF_POD * EVENTS_EVERY_S
    assert [allowance.take("u1") for _ in range(EVENTS_OF_POD + 1)] == [True] * EVENTS_OF_POD + [False]
