"""Clients that share a GPU operation by operation, and what changes between the runs of their scheduler: what a program
sees is what it would see without one.
"""

from __future__ import annotations

import pytest

from tests.native.guests import Guests
from tests.native.test_operations import QUEUED, environment

UNSUPPORTED, INVALIDATED = 900, 901  # what captures are

SEEN = {
    "stopped": [f"{QUEUED}", "5", "1"],
    "relaxed": [f"{QUEUED}", "5", "2 nodes"],
    "global": [f"{UNSUPPORTED}", f"{INVALIDATED}", "5"],
    "local": [f"{UNSUPPORTED}", f"{INVALIDATED}", "5"],
    "implicit": ["1 nodes", f"{QUEUED}", "5"],
    "started": ["5", "6", "7"],
    "joined": ["5", "6", "7", "8"],
    "moves": ["5", "6", "7", "8", "9", "10"],
    "ended": ["5", "6", "7"],
    "awaits": ["1"] * 4,
    "contexts": ["1"],
    "shared": ["5", "6", "7", "8"],
    "helpers": ["5", "6"],
    "children": ["5 0"],
    "refused": ["1 0"],
    "slow": ["5"],
}

WITH = ("slow",)
"""What is there only with clients."""


@pytest.mark.parametrize("act", ["late stop", "late start"])
def test_a_call_that_is_late_is_of_the_time_in_which_it_ends(guests: Guests, act: str) -> None:
    env = environment(guests, LD_PRELOAD=f"{guests.library}:{guests.path('pausing.so')}")
    assert guests.lines("operations-changes", act, env=env) == [f"{QUEUED}"] * 2


@pytest.mark.parametrize("act", SEEN)
def test_nothing_but_who_waits_is_changed(guests: Guests, act: str) -> None:
    if act not in WITH:
        assert guests.lines("operations-changes", act, env=guests.environment(PLAIN="1")) == SEEN[act]
    # A handle that is none is answered by a crash.
    env = environment(guests, RUNLIST_EMULATED_CRASHES="1")
    assert guests.lines("operations-changes", act, env=env) == SEEN[act]
