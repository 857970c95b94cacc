"""Clients that share a GPU operation by operation, with streams of green contexts: the same as without the library."""

from __future__ import annotations

from tests.native.guests import Guests
from tests.native.test_operations import QUEUED, environment


def lines(guests: Guests, *words: object) -> list[str]:
    # A handle that is none is answered by a crash.
    return guests.lines("operations-green", *words, env=environment(guests, RUNLIST_EMULATED_CRASHES="1"))


def test_a_stream_of_a_green_context_is_its_makers(guests: Guests) -> None:
    assert lines(guests, "owned") == [f"queued {QUEUED}", "launched 1"]


def test_a_primary_context_is_waited_for_with_its_green_ones(guests: Guests) -> None:
    assert lines(guests, "awaited") == ["primary 0", f"green 0 {QUEUED}"]


def test_events_of_a_primary_context_are_its_green_ones_as_well(guests: Guests) -> None:
    told = [f"recorded {QUEUED}", f"waits {QUEUED} {QUEUED}"]
    assert guests.lines("operations-green", "events", env=guests.environment(PLAIN="1")) == told
    assert lines(guests, "events") == told


def test_a_green_context_ends_and_another_begins(guests: Guests) -> None:
    told = [[f"queued {QUEUED}", f"words {turn} {turn + 10}"] for turn in range(3)]
    assert lines(guests, "again") == [line for both in told for line in both]


def test_two_clients_have_streams_of_one_green_context(guests: Guests) -> None:
    plain = guests.lines("operations-green", "shared", env=guests.environment(PLAIN="1"))
    assert plain[0].startswith("1 ")
    assert lines(guests, "shared") == plain
