"""Clients that share a GPU operation by operation and do what is seldom done, or end in the midst of it; and what is
told of them.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.native.guests import Guests
from tests.native.regions import Client, Operations, Region
from tests.native.test_operations import QUEUED, environment, page, say

EINVAL = -22
PATIENCE_S = 50.0


def lines(guests: Guests, *words: object, **more: str) -> list[str]:
    return guests.lines("operations-faults", *words, env=environment(guests, **more))


def heard(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


def test_a_graph_is_changed_and_destroyed_while_it_is_queued(guests: Guests) -> None:
    plain = guests.lines("operations-faults", "graph", env=guests.environment(PLAIN="1"))
    queued, words = lines(guests, "graph")
    assert queued == f"queued {QUEUED}"
    assert words == plain[1]
    assert len(set(words.split())) == 3


def test_a_callback_that_launches_is_answered_as_without_us(guests: Guests) -> None:
    plain = guests.lines("operations-faults", "callback", env=guests.environment(PLAIN="1"))
    assert lines(guests, "callback") == [*plain, "opened 0 0"]


def test_a_function_of_the_host_may_fault_in_a_graph_that_was_queued(guests: Guests) -> None:
    """The driver may start its thread for such functions in the dispatcher."""
    assert lines(guests, "fault") == [f"queued {QUEUED}", "faults 1"]


def test_client_0_never_waits_and_the_other_has_its_turn(guests: Guests) -> None:
    assert lines(guests, "never") == ["word 199 opened 0"]


def test_who_fills_the_queue_waits_for_room(guests: Guests) -> None:
    assert lines(guests, "full") == ["word 11999 opened 0"]


def test_an_event_is_recorded_before_another_process_can_know_it(guests: Guests) -> None:
    """And what a thread of no client launches beside it does not hasten what is queued."""
    assert lines(guests, "shares") == [f"queued {QUEUED}", "beside 0", "shared 0 launched 2", "again 4"]


def test_there_are_as_many_clients_as_were_started(guests: Guests) -> None:
    refused = [f"{EINVAL} {EINVAL} {EINVAL}", f"{EINVAL} {EINVAL}", f"{EINVAL} {EINVAL}"]
    assert lines(guests, "more") == refused


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "alive"])
def test_what_a_client_had_in_flight_ends_with_it(guests: Guests, killed: bool) -> None:
    """8 SMs of one and 8 of another are more than the rule has. Those of who was killed count no more."""
    path = guests.new_path()
    path.touch(0o600)
    with guests.started("operations-faults", "page", "first", env=page(guests, path, 0)) as first:
        heard(first, "busy")
        with guests.started("operations-faults", "page", "other", env=page(guests, path, 1)) as other:
            heard(other, "busy")
            if killed:
                other.kill()
                other.wait(60)
            with guests.started("operations-faults", "page", "asks", env=page(guests, path, 2)) as third:
                heard(third, str(0 if killed else QUEUED))
                say(first)
                heard(third, "word 5")
            if not killed:
                say(other)
                assert other.wait(60) == 0


# -- what others are told --------------------------------------------------------------------------


def told(region: Region, process: subprocess.Popen[str]) -> tuple[Operations, dict[int, Client]]:
    """What it says next."""
    since = time.time_ns()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = region.operations(process.pid)
        if found is not None and found[0].written_ns > since:
            return found
        time.sleep(0.05)
    raise AssertionError("it tells nothing")


def in_region(guests: Guests, region: Region, **more: str) -> dict[str, str]:
    return environment(guests, RUNLIST_REGION=str(region.path), **more)


def test_a_region_has_the_clients_of_its_processes(guests: Guests) -> None:
    region = guests.region()
    with guests.started("operations-faults", "told", env=in_region(guests, region)) as process:
        heard(process, "queued")
        told(region, process)
        rule, clients = told(region, process)
        assert 10**9 <= rule.window_ns < 20 * 10**9
        assert (rule.beside, rule.copies, rule.most_sms, rule.gate_ns) == (0o240, 1, 0xFFFFFFFF, (1 << 64) - 1)
        assert rule.sms > 0
        assert sorted(clients) == [0, 1, 2]
        assert clients[0].launched == 1
        assert (clients[1].launched, clients[1].queued, clients[1].lately_deferred) == (0, 3, 0)
        assert clients[1].oldest_ns > 5 * 10**8
        say(process)
        heard(process, "ran")
        rule, clients = told(region, process)
        ran = clients[1]
        assert (ran.launched, ran.deferred, ran.queued, ran.oldest_ns) == (3, 3, 0, 0)
        if ran.lately_deferred:  # else it was told between the two words
            assert (ran.lately_launched, ran.lately_deferred) == (3, 3)
            assert ran.lately_wait_ns > 5 * 10**8
            assert ran.lately_sm_ns == 3 * 4 * 10**6
        say(process)
        heard(process, "stopped")
        assert region.operations(process.pid) is None


def test_without_a_region_nobody_is_told_and_all_goes_on(guests: Guests) -> None:
    with guests.started("operations-faults", "told", env=environment(guests)) as process:
        for word in ("queued", "ran", "stopped"):
            heard(process, word)
            time.sleep(1.2 if word == "queued" else 0)
            say(process)
        assert process.wait(60) == 0


def test_a_region_whose_file_is_gone_is_still_told(guests: Guests) -> None:
    """The daemon has it open."""
    region = guests.region()
    kept = Path(f"{region.path}-kept")
    kept.hardlink_to(region.path)
    with guests.started("operations-faults", "told", env=in_region(guests, region)) as process:
        heard(process, "queued")
        region.path.unlink()
        assert told(Region(kept), process)[1][1].queued == 3


def test_a_client_of_a_page_tells_of_itself(guests: Guests) -> None:
    path = guests.new_path()
    path.touch(0o600)
    region = guests.region()
    env = {**page(guests, path, 5), "RUNLIST_REGION": str(region.path)}
    with guests.started("operations-faults", "page", "other", env=env) as process:
        heard(process, "busy")
        rule, clients = told(region, process)
        assert list(clients) == [5]
        assert clients[5].launched == 1
        assert (rule.beside & 0o777, rule.most_sms, rule.gate_ns) == (0o777, 10, (1 << 64) - 1)
