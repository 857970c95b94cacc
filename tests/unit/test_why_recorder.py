"""The recorder of `trace --why`: when it gives up or ends, what it costs, and whom else to ask about."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from unittest import mock

import pytest

from runlist.errors import NoTargetError
from runlist.planes.kernel.functions import is_stepped_over
from runlist.planes.usage import Residency
from runlist.proc.process import start_of
from runlist.protocol.why_autogen import STRUCTS
from runlist.structure import Structure
from runlist.why import recorder
from runlist.why.cost import Cost
from runlist.why.recorder import Recorder
from runlist.why.seen import Events, What
from tests.fixtures.why_events import ME, seen


def test_a_watched_call_costs_more_where_its_first_instruction_is_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_bytes(bytes.fromhex("4154 55 6690 4883ec10 90 0f1f00"))
    places = {0: False, 2: False, 3: False, 5: True, 9: False, 10: False}
    stepped = platform.machine() == "x86_64"
    assert {place: is_stepped_over(path, place) for place in places} == {
        place: stepped and steps for place, steps in places.items()
    }


def test_what_costs_all_of_the_time_that_there_was_is_said_in_digits() -> None:
    one = Recorder.__new__(Recorder)
    one.pid, one._events, one._launches_until = os.getpid(), Events(), None
    one._cost, one._worked, one._worked_first = Cost(1e3, 1e3, 1e3), 0, 1 << 62
    one._watch = mock.Mock(stepped=(), counts=lambda: mock.Mock(calls=7, dropped=0, switches=2))
    assert "some 0.0 ms, 100.0 % of the processor time" in one.cost()


def test_what_watching_cost_one_that_has_ended_is_told_of_all_that_it_had() -> None:
    """Its time is gone with it: that of the last look counts, whether launches were watched by then or not."""
    for until in (None, 5):
        one = of_this_process()
        one._watch = mock.Mock(stepped=(), counts=lambda: mock.Mock(calls=100, dropped=0, switches=2), take=list)
        one._cost, one._worked_first = Cost(1e3, 1e3, 1e3), recorder._worked_ns(os.getpid()) - 10**8
        one._worked = one._worked_counted = 0
        one._launches_until, one._counted_at, one._counted, one._over_ns, one.began_ns = until, 0, 0, 0.0, 0
        assert one.look()
        one.pid = 1 << 22
        assert not one.look()
        assert "some 0.1 ms, 0.1 % of the processor time" in one.cost()


@pytest.mark.parametrize(
    ("bursts", "lets_go"),
    [([60, 0, 0] * 20, False), ([500], True), ([60] * 10, True), ([60] * 4, False), ([15] * 100, False)],
)
def test_launches_are_let_go_of_where_they_cost_too_much_for_long(
    monkeypatch: pytest.MonkeyPatch, bursts: list[int], lets_go: bool
) -> None:
    """A look is 50 ms long, in which they may cost 0.4 ms, and each costs 20 µs: a burst now and then is no reason."""
    now, calls = 0, 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    one = Recorder.__new__(Recorder)
    one.pid, one._launches_until, one._counted_at, one._counted, one._over_ns = 1 << 22, None, 0, 0, 0.0
    one._worked = one._worked_counted = 0
    one._cost = Cost(2e4, 2e4, 2e4)
    one._watch = mock.Mock(stepped=(), counts=lambda: mock.Mock(calls=calls))
    for burst in bursts:
        now, calls = now + recorder.LEAST_LOOK_NS, calls + burst
        one._limit_cost()
    assert (one._launches_until is not None) == lets_go
    assert one._watch.let_go_of_launches.called == lets_go


def test_who_has_others_do_its_work_is_told_whom_to_ask_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server whose workers use the GPU, in processes of their own."""
    libraries = {5: [], 6: [Path("libcuda.so.1")], 7: [], **{pid: [Path("libcuda.so.1")] for pid in range(8, 12)}}
    below = [5, 6, 7]
    monkeypatch.setattr(recorder, "_check", lambda _: None)
    monkeypatch.setattr(recorder, "_libraries", libraries.get)
    monkeypatch.setattr(recorder, "descendants", lambda pids: {5: below} if pids == [5] else {})
    asks = {"about 6, which uses the GPU below it": [5, 6, 7], "once it uses the GPU": [5, 7]}
    asks["about 6 or 8 or 9 or 10, …, which uses the GPU below it"] = list(range(5, 12))
    for ask, below in asks.items():  # noqa: B007  (the fake walk has it)
        with pytest.raises(NoTargetError, match=f"^process 5 has not loaded libcuda.so: ask {ask}$"):
            Recorder(5, None, None, None)
    one = Recorder.__new__(Recorder)
    one.pid, one._bounds, one._ahead_ns, one.elsewhere, below = 5, (None, None), 0, "", [5, 6]
    monkeypatch.setattr(one, "look", lambda: True)
    monkeypatch.setattr(one, "seen", lambda: seen([], 90_000))
    one.finish(None)
    assert one.elsewhere == "process 5 made no request: ask about 6, which uses the GPU below it"


def of_this_process() -> Recorder:
    """One that has nothing yet, and watches nobody."""
    one = Recorder.__new__(Recorder)
    one.pid, one._started = os.getpid(), start_of(os.getpid())
    one._events, one._turns, one._names, one._maps = Events(), {}, {}, []
    one._launches_until, one.ended_by, one._worked = 1, "", 0
    one._daemon = one._throttling = mock.Mock()
    return one


def test_a_recording_that_is_full_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_EVENTS", 3)
    one = of_this_process()
    record = bytes(Structure(STRUCTS["EVENT"]).pack(time_ns=1, what=What.IN, tid=ME))
    one._watch = mock.Mock(take=lambda: [record, b"of another length", bytes(len(record)), record])
    assert one.look()
    assert not one.look()
    assert one.ended_by == "the recording is full, with 3 events: what came later is not in it"


def test_turns_of_others_fill_a_recording_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sleeps tells next to nothing, while others have the GPU a thousand times a second, for hours."""
    monkeypatch.setattr(recorder, "MOST_EVENTS", 8)
    one = of_this_process()
    one._watch = mock.Mock(take=list)
    for gpu in (0, 1):
        one.hear(gpu, [Residency(turn, 1, 10 * turn, 10 * turn + 5) for turn in range(3)], 0)
        assert one.look()
    one.hear(1, [Residency(2, 1, 25, 30)], 0)  # goes on
    assert one.look()
    one.hear(1, [Residency(turn, 1, 10 * turn, 10 * turn + 5) for turn in range(3, 6)], 0)
    assert not one.look()
    assert one.ended_by == "the recording is full, with 8 events: what came later is not in it"
