"""Clients that share a GPU operation by operation, and calls that mean something to what others have queued, or to a
whole context: the same as without the library.
"""

from __future__ import annotations

import pytest

from tests.native.guests import Guests
from tests.native.test_operations import QUEUED, environment

INVALID_VALUE = 1
EALREADY = -114


def lines(guests: Guests, *words: object) -> list[str]:
    # A handle that is none is answered by a crash.
    return guests.lines("operations-calls", *words, env=environment(guests, RUNLIST_EMULATED_CRASHES="1"))


def test_a_launch_is_made_with_what_its_function_was_set_to(guests: Guests) -> None:
    assert lines(guests, "attributes") == [f"queued {QUEUED}", "ended 0", f"refused {INVALID_VALUE}", "word 5"]


def test_what_is_changed_is_changed_after_what_is_queued(guests: Guests) -> None:
    assert lines(guests, "changes") == ["1", "1", "1", "1"]


def test_a_whole_context_waits_and_is_recorded(guests: Guests) -> None:
    assert lines(guests, "contexts") == ["waited 5", "recorded 6"]


def test_attributes_of_streams_are_those_of_the_streams_named(guests: Guests) -> None:
    spin, yielding = 2, 3
    assert lines(guests, "streams") == [f"{yielding} {yielding}", f"{spin}", f"{yielding} {yielding}"]


def test_graphs_record_events_and_wait_for_them(guests: Guests) -> None:
    assert guests.lines("operations-calls", "graphs", env=guests.environment(PLAIN="1")) == ["recorded 5", "waited 6"]
    assert lines(guests, "graphs") == ["recorded 5", "waited 6"]


@pytest.mark.parametrize("act", ["processes", "early processes"])
def test_an_event_of_two_processes_comes_after_what_each_has_queued(guests: Guests, act: str) -> None:
    told = ["told 5", "told 6", "read 9"]
    assert guests.lines("operations-calls", act, env=guests.environment(PLAIN="1")) == told
    assert lines(guests, act) == told


@pytest.mark.parametrize("act", ["a graph records", "a launch records"])
def test_an_event_is_of_what_was_given_last_also_where_others_queue(guests: Guests, act: str) -> None:
    assert guests.lines("operations-calls", act, env=guests.environment(PLAIN="1")) == ["last 1"]
    assert lines(guests, act) == ["last 1"]


def test_all_threads_of_a_client_wait_for_what_was_given_on_its_behalf(guests: Guests) -> None:
    assert guests.lines("operations-calls", "twice", env=guests.environment(PLAIN="1")) == [f"{QUEUED}"]
    assert lines(guests, "twice") == [f"{QUEUED}"]


def test_the_librarys_own_functions_are_called_in_any_order_by_threads_and_children(guests: Guests) -> None:
    done = guests.run("operations-calls", "anyhow", env=environment(guests, RUNLIST_EMULATED_CRASHES="1"))
    assert (done.code, done.lines) == (0, ["right"]), done


def test_who_becomes_a_client_too_early_is_told_so_once(guests: Guests) -> None:
    done = guests.run("operations-calls", "early", env=environment(guests))
    assert (done.code, done.lines) == (0, ["0", f"{EALREADY}"])
    (said,) = done.err.splitlines()
    assert said == "runlist: orion_set_client_idx: no such client now: start the scheduler first, with more clients"
    quiet = guests.run("operations-calls", "early", env=environment(guests, ORION_LOG_LEVEL="1"))
    assert (quiet.code, quiet.err) == (0, "")


def test_a_client_waits_for_what_its_thread_gave_before_it_was_one(guests: Guests) -> None:
    assert lines(guests, "before") == ["started 1", f"asked {QUEUED}", "became 1"]
