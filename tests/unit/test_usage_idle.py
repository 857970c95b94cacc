"""Idle time of a lone holder: only what samples of the GPU's utilisation show, and told once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.planes.nvidia.usage.idle import IdleTime, Sample
from runlist.planes.usage import Residency

# As they are to be: taken from the code they would hold whatever it says.
FULL_PERCENT = 95

MS = 1_000_000
NOW = 1_700_000_000_000_000_000


def _part(pid: int, start: float, end: float) -> Residency:
    return Residency(pid, 1, NOW + int(start * MS), NOW + int(end * MS))


def _at(ms: float) -> int:
    return NOW + int(ms * MS)


def _samples(first: int, *percents: int) -> list[Sample]:
    """Samples of 200 ms each, the first one ending at `first` ms."""
    return [Sample(_at(first + 200 * number), percent) for number, percent in enumerate(percents)]


def _lone(*parts: tuple[int, float, float], until: float) -> IdleTime:
    idle = IdleTime()
    idle.note([_part(*part) for part in parts], _at(until))
    return idle


def test_a_holder_without_work_is_idle() -> None:
    idle = _lone((1, 0, 1000), until=1000)
    assert idle.wants_samples(_at(1000))
    assert idle.compare(_samples(200, 0, 0, 0, 0, 0)) == {1: pytest.approx(1.0)}
    assert idle.sampled_ns == _at(1000)


@pytest.mark.parametrize("percent", [FULL_PERCENT, 96, 100])
def test_a_holder_at_work_is_not(percent: int) -> None:
    assert _lone((1, 0, 1000), until=1000).compare(_samples(200, percent, percent)) == {}


def test_half_of_it() -> None:
    idle = _lone((1, 0, 1000), until=1000)
    assert idle.compare(_samples(200, *[FULL_PERCENT // 2] * 5))[1] == pytest.approx(0.5, abs=0.01)


def test_never_more_than_it_held() -> None:
    """Suspended half of the time: what it did not hold cannot have been idle."""
    parts = [(1, start, start + 10) for start in range(0, 1000, 20)]
    assert _lone(*parts, until=1000).compare(_samples(200, 0, 0, 0, 0, 0)) == {1: pytest.approx(0.5)}
    assert _lone(*parts, until=1000).compare(_samples(200, *[48] * 5)) == {}


def test_no_sample_counts_twice_nor_before_its_time_is_known() -> None:
    idle = _lone((1, 0, 500), until=500)
    samples = _samples(200, 0, 0, 0, 0)
    assert idle.compare(samples) == {1: pytest.approx(0.4)}
    assert idle.compare(samples) == {}
    idle.note([_part(1, 500, 850)], _at(850))
    assert idle.compare(samples) == {1: pytest.approx(0.4)}


def test_samples_that_touch_another_holder_tell_nothing() -> None:
    idle = _lone((2, 0, 100), (1, 100, 700), (2, 700, 1500), until=1500)
    assert idle.compare(_samples(200, 0, 0, 0, 0, 0, 0)) == {1: pytest.approx(0.4), 2: pytest.approx(0.4)}


def test_no_samples_are_wanted_while_processes_take_turns() -> None:
    idle = IdleTime()
    for start in range(0, 2000, 2):
        idle.note([_part(1 + start // 2 % 2, start, start + 2)], _at(start + 2))
        assert not idle.wants_samples(_at(start + 2))


def test_samples_are_asked_for_at_most_once_a_second_of_a_lone_holder() -> None:
    idle = IdleTime()
    asked = 0
    for end in range(20, 4001, 20):
        idle.note([_part(1, end - 20, end)], _at(end))
        if idle.wants_samples(_at(end)):
            asked += 1
            idle.compare(_samples(200, *[0] * (end // 200)))
    assert asked == 4
    assert idle.sampled_ns == _at(3200)
    assert len(idle._stretches) == 1
    assert len(idle._stretches[0].parts) == 1


def _calmly(idle: IdleTime, busy: range, until: int) -> tuple[dict[int, float], list[int]]:
    """What is told of a lone holder that is read once a second, by when, and when samples were asked for; in `busy`, in
    ms, it has work. As the source does: an answer is there at the next reading.
    """
    told, total, asked, answer = {}, 0.0, [], None

    def percent(end: int) -> int:
        return FULL_PERCENT if busy.start < end <= busy.stop else 0

    for end in range(1000, until + 1, 1000):
        idle.note([_part(1, end - 1000, end)], _at(end))
        if answer is None and idle.wants_samples(_at(end)):
            asked.append(end)
            answer = [Sample(_at(at), percent(at)) for at in range(200, end + 1, 200)]
        elif answer is not None:
            total, answer = total + sum(idle.compare(answer).values()), None
        elif idle.may_presume:
            total += sum(idle.presume(percent(end)).values())
        told[end] = round(total, 3)
    return told, asked


def test_who_has_no_work_for_long_is_presumed_to_have_none_and_samples_are_wanted_seldom() -> None:
    told, asked = _calmly(IdleTime(), range(0), 15_000)
    assert asked == [1000, 4000, 7000, 10_000, 13_000]
    assert all(end / 1000 - idle <= 1.3 or end == 2000 for end, idle in told.items()), told


def test_work_that_the_newest_sample_shows_has_samples_asked_for() -> None:
    told, asked = _calmly(IdleTime(), range(5_600, 9_000), 15_000)
    assert asked[:4] == [1000, 4000, 7000, 9000]
    assert told[15_000] == pytest.approx(15 - 3.4, abs=1.3)


@pytest.mark.parametrize("length", [200, 600])
def test_work_that_was_presumed_away_is_taken_from_what_is_told_next(length: int) -> None:
    """It was over by the time of the newest sample. All that is told together is true again, and never shrinks."""
    told, _ = _calmly(IdleTime(), range(5_200, 5_200 + length), 30_000)
    assert told[6000] > 6 - 1.3 - length / 1000
    assert 30 - 1.3 - length / 1000 <= told[30_000] <= 30 - length / 1000
    assert list(told.values()) == sorted(told.values())


def test_nothing_is_presumed_where_the_newest_sample_is_not_told() -> None:
    idle = _lone((1, 0, 1000), until=1000)
    idle.compare(_samples(200, 0, 0, 0, 0, 0))
    assert idle.presume(None) == {}
    for end in range(2000, 6000, 1000):
        idle.note([_part(1, end - 1000, end)], _at(end))
        assert idle.wants_samples(_at(end))
        idle.compare(_samples(end - 800, 0, 0, 0, 0, 0))
        assert not idle.may_presume


def test_nothing_is_presumed_where_somebody_reads_often_or_another_came() -> None:
    idle = _lone((1, 0, 1000), until=1000)
    idle.compare(_samples(200, 0, 0, 0, 0, 0))
    assert idle.may_presume
    idle.note([_part(1, 1000, 1500)], _at(1500))
    assert not idle.may_presume
    idle.note([_part(2, 1500, 2500)], _at(2500))
    assert not idle.may_presume


def test_what_is_kept_is_bounded_when_no_samples_come() -> None:
    idle = IdleTime()
    for start in range(0, 60_000, 20):
        idle.note([_part(1 + start // 1000 % 2, start, start + 10)], _at(start + 20))
    assert len(idle._stretches) <= 7
    assert sum(len(stretch.parts) for stretch in idle._stretches) <= 400


def test_a_first_sample_after_a_pause_covers_its_usual_length() -> None:
    idle = _lone((1, 0, 3000), until=3000)
    assert idle.compare([Sample(_at(2000), 0)]) == {1: pytest.approx(0.2)}
    assert idle.compare([Sample(_at(2210), 0)]) == {1: pytest.approx(0.21)}


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2]), st.integers(0, 300), st.sampled_from([1, 200, 399, 1000, 1001, 2500])),
        max_size=20,
    ),
    st.lists(st.sampled_from([0, 0, 0, 0, 0, 0, 3, 50, 100]), max_size=60),
)
def test_idle_time_never_passes_the_time_held(turns: list[tuple[int, int, int]], percents: list[int]) -> None:
    idle, now, held = IdleTime(), 0, {1: 0.0, 2: 0.0}
    told = {1: 0.0, 2: 0.0}
    for pid, pause, length in turns:
        idle.note([_part(pid, now + pause, now + pause + length)], _at(now + pause + length))
        now += pause + length
        held[pid] += length / 1000
        rate = percents[min(now // 200, len(percents) - 1)] if percents else 100
        for found in (idle.presume(rate) if idle.may_presume else {}, idle.compare(_samples(200, *percents))):
            for one, seconds in found.items():
                assert seconds > 0
                told[one] += seconds
        assert all(told[one] <= held[one] + 1e-9 for one in held)


def test_of_a_holder_with_pauses_as_much_is_kept_as_samples_may_tell_of() -> None:
    """It has the GPU for itself for days."""
    idle = IdleTime()
    sizes = []
    for start in range(0, 60_000, 20):
        idle.note([_part(1, start, start + 10)], _at(start + 10))
        sizes.append(sum(len(stretch.parts) for stretch in idle._stretches))
    assert max(sizes) <= 5_000 / 20 + 2
    assert idle.compare(_samples(59_200, 0, 0)) == {1: pytest.approx(0.1 + 0.1)}


def test_a_clock_that_is_set_back_does_not_stop_it() -> None:
    idle = _lone((1, 0, 1000), until=1000)
    assert idle.wants_samples(_at(1000))
    assert idle.compare(_samples(200, 0, 0, 0, 0, 0))[1] == pytest.approx(1.0)
    back = -3_600_000
    idle.note([_part(1, back, back + 1000)], _at(back + 1000))
    assert idle.wants_samples(_at(back + 1000))
    assert idle.compare(_samples(back + 200, 0, 0, 0, 0, 0))[1] == pytest.approx(1.0, abs=0.21)
