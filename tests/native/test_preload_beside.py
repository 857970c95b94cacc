"""Beside another preloaded library that puts functions of its own in the place of the C library's: what ours needs of
the kernel it has from the kernel, and nobody can tell the difference.
"""

from __future__ import annotations

import pytest

from tests.conftest import ON_NVIDIA
from tests.native.guests import OUT_OF_MEMORY, Guests, MiB
from tests.native.test_preload_quota import by_hand

ORDERS = pytest.mark.parametrize("order", ["{library}:{other}", "{other}:{library}"])
pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="NVIDIA's libraries do not run beside it")


def beside(guests: Guests, order: str) -> str:
    return order.format(library=guests.library, other=guests.path("substitutes.so"))


@ORDERS
def test_a_program_without_cuda_is_the_same(guests: Guests, order: str) -> None:
    bare = guests.run("manners", "quiet", env=guests.environment(preload=str(guests.path("substitutes.so"))))
    for env in (
        guests.environment(preload=beside(guests, order)),
        guests.environment(guests.region(), preload=beside(guests, order)),
    ):
        assert guests.run("manners", "quiet", env=env, timeout=60) == bare
    assert bare.code == 0


@ORDERS
def test_the_limit_holds(guests: Guests, order: str) -> None:
    """Also where the first process makes the region, in a folder of the user that it really is."""
    for env in (guests.environment(guests.region(100 * MiB)), by_hand(guests, RUNLIST_MEMORY="100M")):
        env["LD_PRELOAD"] = beside(guests, order)
        done = guests.run("racer", "fill", 200 * MiB, env=env, timeout=60)
        assert (done.code, done.lines, done.err) == (0, [str(OUT_OF_MEMORY)], "")


@ORDERS
def test_a_cap_waits_by_the_clock_of_the_machine(guests: Guests, order: str) -> None:
    """By one that stands still no turn would ever come."""
    env = by_hand(guests, RUNLIST_CAP="1") | {"LD_PRELOAD": beside(guests, order)}
    done = guests.run("nasty", "computes", env=env, timeout=30)
    assert (done.code, done.err) == (0, "")
