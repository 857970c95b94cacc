"""The accounts of one GPU: totals, seconds, a minute of history, and what happens when the source fails."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from runlist.daemon.gpu import accounting, book
from runlist.daemon.gpu.accounting import Accounting, mean_of_last
from runlist.daemon.gpu.choice import Choice
from runlist.errors import RunlistError
from runlist.model import NO_USAGE, Usage
from tests.fixtures.usage import FakeSource

# As they are to be: taken from the code they would hold whatever it says.
HISTORY_S = 60

GPU = "GPU-4e3db026-c5f4-6c0f-e70a-eeef00a48fe0"


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(accounting, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(book.BookUsage.__init__, "__defaults__", (clock.monotonic,))
    return clock


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def accounts(clock: Clock, source: FakeSource) -> Accounting:
    return Accounting(GPU, source)


def second(accounts: Accounting, source: FakeSource, clock: Clock, pid: int, **held: float) -> None:
    """One second passes in which a process held so much."""
    source.hold(pid, **held)  # type: ignore[arg-type]
    clock.now += 1.0
    accounts.read(clock.now)


def test_totals_add_up(accounts: Accounting, source: FakeSource) -> None:
    source.hold(1, 0.2, turns=3)
    source.hold(2, 0.1, turns=1)
    reading = accounts.read(0.3)
    assert reading is not None
    assert reading.usage.keys() == {1, 2}
    source.hold(1, 0.3, turns=2, idle_s=0.1)
    accounts.read(0.6)
    assert accounts.of(1).usage == Usage(0.5, 5, 0.1)
    assert accounts.of(1).usage.busy_s == pytest.approx(0.4)
    assert accounts.of(2).usage == Usage(0.1, 1)
    assert accounts.of(3).usage == NO_USAGE


def test_usages_add_up_field_by_field() -> None:
    names = list(Usage.__struct_fields__)
    first, second = (Usage(*(number + add for number in range(len(names)))) for add in (1, 10))
    assert [getattr(first + second, name) for name in names] == [11 + 2 * number for number in range(len(names))]
    assert first + NO_USAGE == first


def test_what_counts_of_all_never_shrinks(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    accounts.set_enabled(1, True)
    second(accounts, source, clock, 1, held_s=0.5, turns=3)
    second(accounts, source, clock, 2, held_s=0.5, turns=4)
    accounts.forget(1)
    second(accounts, source, clock, 2, held_s=0.1, idle_s=0.4)
    assert accounts.all.usage == Usage(1.1, 7, 0.4)
    assert accounts.all.worked_s == pytest.approx(1.0)  # what turned out to be idle is not taken back
    assert accounts.all.history == [0.5, 0.2, 0.0]
    second(accounts, source, clock, 2, held_s=0.9)
    assert accounts.all.worked_s == pytest.approx(1.6)


def test_a_process_that_is_managed_is_counted_from_then_on(
    accounts: Accounting, source: FakeSource, clock: Clock
) -> None:
    second(accounts, source, clock, 1, held_s=0.5, turns=3)
    accounts.begin(1)
    accounts.begin(2)  # one that was never seen
    assert (accounts.of(1).usage, accounts.of(1).worked_s) == (NO_USAGE, 0.0)
    assert (accounts.of(1).history, accounts.of(1).turns_per_s) == ([0.5], 3)
    second(accounts, source, clock, 1, idle_s=0.2)  # of the time before
    assert accounts.of(1).worked_s == 0.0
    assert accounts.all.usage == Usage(0.5, 3, 0.2)


def test_reading_again_at_once_costs_nothing(accounts: Accounting, source: FakeSource) -> None:
    assert accounts.read(0.1) is not None
    assert accounts.read(0.1) is None
    assert accounts.read(0.1004) is None
    assert source.reads == 1
    assert accounts.read(0.101) is not None


def test_seconds_become_shares(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    assert accounts.of(1).history == []
    assert accounts.of(1).turns_per_s == 0
    second(accounts, source, clock, 1, held_s=0.25, turns=20)
    assert accounts.of(1).history == [0.25]
    assert accounts.of(1).turns_per_s == 20
    source.hold(1, 0.5, turns=10)
    clock.now += 0.5
    accounts.read(clock.now)
    assert accounts.of(1).history == [0.25]  # this second is not full
    source.hold(1, 0.5)
    clock.now += 1.5  # a late look: the second was two seconds long
    accounts.read(clock.now)
    assert accounts.of(1).history == [0.25, 0.5, 0.5]
    assert accounts.of(1).turns_per_s == 5


def test_whether_it_is_in_use(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    assert not accounts.in_use
    source.hold(1, 0.1)
    clock.now += 0.2
    accounts.read(clock.now)
    assert accounts.in_use
    second(accounts, source, clock, 1, held_s=0.2)
    assert accounts.in_use  # in the last second
    second(accounts, source, clock, 1, held_s=0.5, idle_s=0.5)
    assert not accounts.in_use


def test_no_second_holds_more_than_itself(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    second(accounts, source, clock, 1, held_s=1.2)  # a reading that is a moment late
    assert accounts.of(1).history == [1.0]


def test_a_process_that_did_nothing_for_a_second_has_a_zero(
    accounts: Accounting, source: FakeSource, clock: Clock
) -> None:
    second(accounts, source, clock, 1, held_s=0.5)
    second(accounts, source, clock, 2, held_s=0.5)
    assert accounts.of(1).history == [0.5, 0.0]
    assert accounts.of(2).history == [0.5]  # nothing is known of the time before


def test_idle_time_that_is_known_late_is_taken_back_from_the_newest_seconds(
    accounts: Accounting, source: FakeSource, clock: Clock
) -> None:
    for _ in range(2):
        second(accounts, source, clock, 1, held_s=0.6)
    second(accounts, source, clock, 1, held_s=0.1, idle_s=0.8)
    assert accounts.of(1).history == [0.5, 0.0, 0.0]
    assert accounts.of(1).usage.busy_s == pytest.approx(0.5)
    second(accounts, source, clock, 1, idle_s=5.0)  # more than there ever was
    assert accounts.of(1).history == [0.0, 0.0, 0.0, 0.0]


def test_no_more_is_taken_back_than_was_idle(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    for _ in range(3):
        second(accounts, source, clock, 1, held_s=0.8)
    source.hold(1, 0.0, idle_s=0.8)
    clock.now += 1.0
    accounts.read(clock.now)
    assert accounts.of(1).history == [0.8, 0.8, 0.0, 0.0]


def test_lost_records_are_counted(accounts: Accounting, source: FakeSource) -> None:
    source.hold(1, dropped=3)
    accounts.read(0.1)
    source.hold(1, dropped=4)
    accounts.read(0.2)
    assert accounts.dropped == 7


def test_a_minute_is_kept(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    second(accounts, source, clock, 1, held_s=1.0)
    for _ in range(HISTORY_S - 1):
        second(accounts, source, clock, 2, held_s=0.5)
    assert len(accounts.of(1).history) == 60
    second(accounts, source, clock, 2, held_s=0.5)
    assert accounts.of(1).history == []  # it was not seen for a minute
    assert accounts.of(1).usage == NO_USAGE
    assert accounts.of(2).history == [0.5] * 60


def test_totals_of_a_managed_process_never_start_again(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    accounts.set_enabled(1, True)
    second(accounts, source, clock, 1, held_s=0.5, turns=9)
    for _ in range(2 * HISTORY_S):
        second(accounts, source, clock, 2)
    second(accounts, source, clock, 1, held_s=0.25, turns=1)
    assert accounts.of(1).usage == Usage(0.75, 10)


def test_a_process_that_is_gone_is_forgotten(accounts: Accounting, source: FakeSource, clock: Clock) -> None:
    accounts.set_enabled(1, True)
    second(accounts, source, clock, 1, held_s=0.5)
    accounts.forget(1)
    accounts.forget(2)  # one that was never seen
    assert accounts.of(1).history == []
    assert accounts.of(1).usage == NO_USAGE


def test_one_that_was_managed_is_kept_as_long_as_any_other(
    accounts: Accounting, source: FakeSource, clock: Clock
) -> None:
    accounts.set_enabled(1, True)
    accounts.forget(1)
    second(accounts, source, clock, 1, held_s=0.5)
    for _ in range(HISTORY_S):
        second(accounts, source, clock, 2)
    assert accounts.of(1).usage == NO_USAGE


@pytest.mark.parametrize("error", [RunlistError("the log is gone"), OSError(5, "Input/output error")])
def test_when_the_source_fails_the_book_goes_on(
    accounts: Accounting, source: FakeSource, clock: Clock, error: Exception
) -> None:
    accounts.set_enabled(1, True)
    accounts.set_enabled(2, True)
    accounts.set_enabled(3, False)
    second(accounts, source, clock, 1, held_s=0.5)
    assert accounts.source_name == "fake"
    source.error = error
    clock.now += 1.0
    assert accounts.read(clock.now) is None
    assert source.closed == 1
    assert accounts.source_name == "book"
    clock.now += 1.0
    accounts.read(clock.now)  # each that is enabled has its part of the time since then
    assert accounts.of(1).usage.held_s == pytest.approx(1.0)
    assert accounts.of(2).usage.held_s == pytest.approx(0.5)
    accounts.set_enabled(1, False)
    clock.now += 1.0
    accounts.read(clock.now)
    assert accounts.of(1).usage.held_s == pytest.approx(1.0)
    assert accounts.of(2).usage.held_s == pytest.approx(1.5)
    assert accounts.of(3).usage == NO_USAGE
    accounts.forget(2)
    clock.now += 1.0
    accounts.read(clock.now)
    assert accounts.of(2).usage == NO_USAGE


def test_a_source_that_failed_is_tried_again_after_ever_longer(clock: Clock) -> None:
    """Once the log could not be read, caps and weights went by the book until the daemon ended."""
    sources = [FakeSource("first"), book.BookUsage(), FakeSource("later")]
    opened: list[float] = []

    def open_again() -> Future[Choice]:
        opened.append(clock.now)
        answer: Future[Choice] = Future()
        answer.set_result(Choice(sources[len(opened)], ()))
        return answer

    accounts = Accounting(GPU, sources[0], reopen=open_again)
    renewed: list[str] = []
    accounts.on_renewed = lambda: renewed.append(accounts.source_name)
    accounts.set_enabled(1, True)
    sources[0].error = OSError(5, "Input/output error")  # type: ignore[union-attr]
    for _ in range(100):
        clock.now += 1.0
        accounts.read(clock.now)
    assert opened == [11.0, 31.0]
    assert (accounts.source_name, renewed) == ("later", ["later"])
    before = accounts.of(1).usage.held_s
    second(accounts, sources[2], clock, 1, held_s=0.5)  # type: ignore[arg-type]
    assert accounts.of(1).usage.held_s == before + 0.5


def test_nothing_waits_for_a_source_that_is_opened(clock: Clock) -> None:
    answer: Future[Choice] = Future()
    accounts = Accounting(GPU, source := FakeSource(), reopen=lambda: answer)
    source.error = OSError(5, "Input/output error")
    for _ in range(30):
        clock.now += 1.0
        accounts.read(clock.now)
    assert accounts.source_name == "book"
    accounts.close()
    late = FakeSource()
    answer.set_result(Choice(late, ()))
    assert late.closed == 1


def test_another_failure_is_not_hidden(accounts: Accounting, source: FakeSource) -> None:
    source.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        accounts.read(1.0)


def test_the_mean_of_the_newest() -> None:
    assert mean_of_last([], 5) == 0
    assert mean_of_last([0.2, 0.4, 0.6], 1) == 0.6
    assert mean_of_last([0.2, 0.4, 0.6], 2) == pytest.approx(0.5)
    assert mean_of_last([0.2, 0.4, 0.6], 60) == pytest.approx(0.4)
