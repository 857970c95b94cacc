"""How the clients of a process are shown that are scheduled operation by operation: numbers, and the rule in words."""

from __future__ import annotations

import msgspec
import pytest

from runlist.daemon.requests.clients import beside, client_view
from runlist.planes.process.region.operations import Client, Operations, Rule

ALL, KNOWN, COMPLEMENTS = 0b111_111_111, 0b010_100_000, 0b011_101_111
ANYTHING = Rule(ALL, 1 << 31, copies=True, gate_ns=None)
IDLE = Client(1, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def told(client: Client, window_ns: int = 10**9, sms: int = 100, rule: Rule = ANYTHING) -> Operations:
    return Operations(window_ns, sms, rule, (client,))


def test_rates_are_of_the_window_and_rounded_for_people() -> None:
    client = msgspec.structs.replace(
        IDLE, launched=1000, deferred=500, opened=3, queued=2, oldest_ns=12_345, lately_launched=333,
        lately_deferred=1, lately_wait_ns=6_789, lately_sm_ns=1_234_567_891,
    )  # fmt: skip
    view = client_view(client, told(client, window_ns=3 * 10**9))
    assert (view.client, view.operations, view.operations_deferred, view.bounds_reached) == (1, 1000, 500, 3)
    assert (view.operations_per_s, view.deferred_per_s, view.queued) == (111.0, 0.3, 2)
    assert (view.wait_us, view.oldest_us) == (6.8, 12.3)
    assert view.sms_share == 0.0041  # of 100 SMs for three seconds


def test_of_one_that_does_nothing_nothing_is_said() -> None:
    view = client_view(IDLE, told(IDLE))
    assert (view.operations_per_s, view.deferred_per_s, view.wait_us, view.oldest_us) == (0.0, 0.0, None, None)
    assert view.sms_share is None
    busy = msgspec.structs.replace(IDLE, lately_sm_ns=10**9, lately_wait_ns=5)
    assert client_view(busy, told(busy, sms=0)).sms_share is None  # nobody knows how many the GPU has
    assert client_view(busy, told(busy)).wait_us is None  # nothing was deferred lately


def test_numbers_that_no_gpu_can_have_are_bounded() -> None:
    many = (1 << 63) - 1
    liar = msgspec.structs.replace(IDLE, lately_launched=many, lately_deferred=many, lately_sm_ns=many)
    view = client_view(liar, told(liar, window_ns=10**7, sms=1))
    assert (view.operations_per_s, view.deferred_per_s, view.sms_share) == (1e9, 1e9, 10.0)


def test_client_0_goes_at_once_and_others_by_the_rule() -> None:
    first = msgspec.structs.replace(IDLE, index=0)
    assert client_view(first, told(first)).beside == "at once"
    assert client_view(IDLE, told(IDLE)).beside == "anything"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(ALL, 1 << 31, True, None), "anything"),
        (Rule(ALL << 9 | ALL, 1 << 31, True, None), "anything"),  # bits that mean nothing
        (Rule(ALL, 1 << 31, False, None), "anything, no copies"),
        (Rule(0, 1 << 31, False, None), "nothing"),
        (Rule(0, 66, True, 5_000), "copies"),
        (Rule(KNOWN, 1 << 31, True, None), "known complements"),
        (Rule(COMPLEMENTS, 66, True, None), "complements, to 66 SMs"),
        (Rule(COMPLEMENTS, 65_536, True, 20_000), "complements, to 65536 SMs, to 20 µs"),
        (Rule(COMPLEMENTS, 65_537, True, 0), "complements, to 0 µs"),
        (Rule(1, 1 << 31, False, None, 500_000), "some, no copies, 500 µs ahead"),
        (Rule(ALL, 1 << 31, True, None, None, 30_000), "anything, after 30 µs"),
        (Rule(0, 1 << 31, False, None, 500_000, 30_000), "nothing, 500 µs ahead, after 30 µs"),
    ],
)
def test_a_rule_in_words(rule: Rule, words: str) -> None:
    assert beside(rule) == words
