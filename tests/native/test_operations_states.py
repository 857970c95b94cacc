"""Clients that share a GPU operation by operation, with more handles than there is room for, handles of others,
captures and errors beside what is queued: the same as without the library.
"""

from __future__ import annotations

from tests.native.guests import Guests
from tests.native.test_operations import environment

CROWDED = "runlist: there are more blocking streams than can be told apart: all of them wait for each other\n"
NO_STALL_MS = "1000"
"""After so long something goes whatever the rule says, which is said."""


def both(guests: Guests, act: str) -> list[str]:
    """What it prints, which is the same without the library, and nothing else is said."""
    bare = guests.lines("operations-states", act, env=guests.environment(PLAIN="1"))
    assert scheduled(guests, act) == bare
    return bare


def scheduled(guests: Guests, act: str) -> list[str]:
    env = environment(guests, RUNLIST_EMULATED_CRASHES="1", RUNLIST_OPERATIONS_BOUND_MS=NO_STALL_MS)
    return guests.lines("operations-states", act, env=env)


def test_it_is_known_of_any_number_of_events_that_their_records_are_queued(guests: Guests) -> None:
    assert scheduled(guests, "events") == ["early 0"]


def test_a_stream_of_another_client_is_waited_for_with_the_context(guests: Guests) -> None:
    assert both(guests, "shared") == ["opened 1"]


def test_any_number_of_blocking_streams_is_in_order_with_the_default_stream(guests: Guests) -> None:
    done = guests.run("operations-states", "streams", env=environment(guests))
    assert (done.code, done.lines, done.err) == (0, ["after 2300"], CROWDED)


def test_threads_of_a_client_keep_the_order_with_its_default_stream(guests: Guests) -> None:
    env = environment(guests, LD_PRELOAD=f"{guests.library}:{guests.path('pausing.so')}")
    assert guests.lines("operations-states", "threads", env=env) == ["opened 1"] * 2


def test_an_event_that_is_captured_is_none_of_what_is_queued(guests: Guests) -> None:
    assert both(guests, "captured") == ["waits 0", "captures 1", "ended 0"]


def test_clients_go_on_while_another_one_captures(guests: Guests) -> None:
    assert both(guests, "beside") == ["words 7 5, opened 0"]


def test_what_is_in_flight_is_seen_to_end_while_somebody_captures(guests: Guests) -> None:
    assert both(guests, "lands") == ["opened 0"]


def test_a_stream_of_another_context_is_in_order_with_the_default_one_there(guests: Guests) -> None:
    assert both(guests, "contexts") == ["copied 7"]


def test_a_launch_that_is_no_launch_is_refused_at_once(guests: Guests) -> None:
    assert both(guests, "refused") == ["1", "1", "1"]


def test_the_error_of_what_was_queued_is_told_to_who_waits_for_it(guests: Guests) -> None:
    assert scheduled(guests, "late") == ["made 0", "allocated 0", "ended 1"]
