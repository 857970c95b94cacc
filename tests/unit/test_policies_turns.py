"""Background tasks in turns: the part by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Share, Task, TaskClass, TaskKey, Usage
from runlist.policies.parts.turns import WeightedTurns, _Workload, time_left

# As they are to be: taken from the code they would hold whatever it says.
PARKED_US = 1000

LATENCY, NORMAL, BATCH = TaskClass.LATENCY, TaskClass.NORMAL, TaskClass.BATCH
TURN, WAIT, PARKED = Share(1), Share(1, enabled=False), Share(PARKED_US)


def task(pid: int, task_class: TaskClass = BATCH, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, "x", 0, 0.0, **values)


class Book:
    """Tasks whose usage a test writes by hand; the first one is the foreground."""

    def __init__(self, *background: Task) -> None:
        self.part = WeightedTurns(0.05)
        self.tasks = [task(0, LATENCY), *background]
        self.now = 1.0

    def use(self, pid: int, held_s: float, turns: int = 1) -> None:
        index = [each.key.pid for each in self.tasks].index(pid)
        usage = self.tasks[index].usage
        grown = Usage(usage.held_s + held_s, usage.turns + turns, usage.idle_s)
        self.tasks[index] = replace(self.tasks[index], usage=grown)

    def decide(self, after_s: float = 0.0) -> list[Share]:
        self.now += after_s
        given, self.again = self.part.shares(self.tasks[1:], self.tasks, self.now)
        return [given[each.key] for each in self.tasks[1:]]

    def take_a_turn(self) -> int:
        """Whoever has the turn uses it all, of several that run together the last. Returns who that is."""
        on = [each for each, share in zip(self.tasks[1:], self.decide(), strict=True) if share.enabled]
        assert len(on) == 1 or len({each.together or each.key for each in on}) == 1
        who = on[-1].key.pid
        self.use(who, 0.05)
        self.now += 0.05
        return who


def test_one_has_the_turn() -> None:
    book = Book(task(1), task(2), task(3))
    assert book.decide() == [TURN, WAIT, WAIT]
    assert book.again == pytest.approx(0.05)
    assert [book.part.why(each.key) for each in book.tasks] == ["", "has the turn", *["waits for its turn"] * 2]


def test_a_task_by_itself_needs_no_turns() -> None:
    book = Book(task(1))
    assert (book.decide(), book.again) == ([TURN], None)
    assert book.part.why(TaskKey(1, "GPU-0")) == "has the turn"


def test_who_has_had_the_least_is_next() -> None:
    book = Book(task(1), task(2))
    book.decide()
    book.use(1, 0.020)
    assert book.decide(0.05) == [WAIT, TURN]
    book.use(2, 0.010)
    assert book.decide(0.05) == [WAIT, TURN]
    book.use(2, 0.030)
    assert book.decide(0.05) == [TURN, WAIT]


def test_weights_and_classes_count() -> None:
    book = Book(task(1, weight=300), task(2, NORMAL))
    held = {1: 0, 2: 0}
    book.decide()
    for _ in range(70):
        held[book.take_a_turn()] += 1
    assert held[2] / held[1] == pytest.approx(4 / 3, rel=0.1)


def test_a_group_has_one_turn_between_its_tasks() -> None:
    book = Book(task(1, group="a"), task(2, group="a"), task(3))
    held = {1: 0, 2: 0, 3: 0}
    for _ in range(40):
        held[book.take_a_turn()] += 1
    assert held[3] == pytest.approx(20, abs=1)
    assert held[1] == pytest.approx(10, abs=1)


def test_a_newcomer_starts_level() -> None:
    book = Book(task(1), task(2))
    for pid in (1, 2, 1, 2):
        book.decide()
        book.use(pid, 0.05)
        book.now += 0.05
    book.tasks.append(task(3))
    turns = [book.take_a_turn() for _ in range(6)]
    assert sorted(turns) == [1, 1, 2, 2, 3, 3]


def test_a_newcomer_starts_level_with_the_one_of_its_group_that_has_had_the_least() -> None:
    book = Book(task(1, group="a"), task(2, group="a"), task(4))
    for pid, held in ((1, 0.20), (4, 0.50), (2, 0.30)):
        book.decide()
        book.use(pid, held)
        book.now += 0.05
    book.decide()
    book.tasks.append(task(3, group="a"))
    turns = [book.take_a_turn() for _ in range(16)]
    of_a = [who for who in turns if who != 4]
    assert len(of_a) == 8
    assert of_a[:4] == [3, 1, 3, 1]  # level with the first one, which had a turn before; the second had more
    assert sorted(of_a[4:]) in ([1, 1, 2, 3], [1, 2, 3, 3], [1, 2, 2, 3])


def test_a_task_without_work_is_parked_after_a_look_and_the_turn_passes_on() -> None:
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    assert book.decide() == [TURN, WAIT]
    assert book.again == pytest.approx(0.01)
    book.use(0, 0.002)
    assert book.decide(0.01) == [PARKED, TURN]
    assert book.part.why(TaskKey(1, "GPU-0")) == "idle, starts by itself"


def test_nobody_is_judged_before_it_is_time_to_look() -> None:
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    assert book.decide(0.005) == [TURN, WAIT]
    assert book.again == pytest.approx(0.005)
    book.use(1, 0.008)
    assert book.decide(0.005) == [TURN, WAIT]
    assert book.again == pytest.approx(0.04)  # it surely had work: the end of its turn comes before the next look
    assert book.decide(0.02) == [TURN, WAIT]
    assert book.decide(0.02) == [PARKED, TURN]  # at its end it is judged again


def test_a_task_that_the_foreground_left_nothing_is_not_judged() -> None:
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    book.use(0, 0.0095)
    assert book.decide(0.01) == [TURN, WAIT]


def test_a_foreground_that_is_idle_on_the_gpu_counts_for_what_it_really_does() -> None:
    """Nobody competes with it while the task whose turn it is has no work: it keeps the GPU."""
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    book.use(0, 0.05, turns=0)
    assert book.decide(0.05) == [PARKED, TURN]


def test_a_task_that_is_switched_in_again_and_again_has_work() -> None:
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    book.use(0, 0.005, turns=4)
    book.use(1, 0.0001, turns=4)
    assert book.decide(0.01) == [TURN, WAIT]


def test_one_that_was_switched_in_once_and_did_nothing_has_no_work() -> None:
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    book.use(1, 0.0001)
    assert book.decide(0.011) == [PARKED, TURN]


@pytest.mark.parametrize(("part", "works"), [(0.02, False), (0.08, True)])
def test_a_little_of_what_the_others_left_is_work_and_next_to_nothing_is_none(part: float, works: bool) -> None:
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    book.use(0, 0.005)
    book.use(1, part * 0.005)
    assert (book.decide(0.01) == [TURN, WAIT]) is works


def test_one_that_may_have_no_work_is_looked_at_again_as_soon_and_from_then_on() -> None:
    """It had some at the first look, though not surely more to come."""
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    book.use(0, 0.005)
    book.use(1, 0.002)
    assert book.decide(0.01) == [TURN, WAIT]
    assert book.again == pytest.approx(0.01)
    book.use(0, 0.002)
    book.use(1, 0.0001)  # it was on once, for nothing
    assert book.decide(0.011) == [PARKED, TURN]


def test_a_foreground_that_really_needs_its_time_leaves_nothing_to_judge_by() -> None:
    """It takes as much as one that is idle on the GPU; which of them it is shows over a second."""
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    for number in range(24):  # a second in which both have some work
        book.use(0, 0.0475)
        book.use(1 + number % 2, 0.002)
        assert PARKED not in book.decide(0.05)
    for _ in range(4):
        book.use(0, 0.0475)
        assert PARKED not in book.decide(0.05)


def test_nobody_is_parked_where_turns_are_not_known() -> None:
    book = Book(task(1), task(2))
    book.decide()
    for _ in range(20):
        book.use(0, 0.01, turns=0)
        assert PARKED not in book.decide(0.05)


def parked() -> Book:
    book = Book(task(1), task(2), task(3))
    book.use(0, 0.001)
    book.decide()
    book.decide(0.01)
    assert book.decide(0.01) == [PARKED, PARKED, TURN]
    return book


def test_parked_tasks_are_looked_at_while_another_has_its_turn() -> None:
    book = parked()
    book.use(3, 0.009)
    assert book.decide(0.01) == [PARKED, PARKED, TURN]
    assert book.again == pytest.approx(0.01)  # the third surely has work: its own look is later


def test_a_parked_task_with_work_comes_back() -> None:
    book = parked()
    book.use(1, 0.012)
    book.use(3, 0.004)
    assert book.decide(0.02)[0] in (TURN, WAIT)
    assert book.decide()[1] == PARKED


def test_what_a_parked_task_holds_adds_up_however_often_anybody_asks() -> None:
    book = parked()
    seen = []
    for _ in range(4):
        book.use(1, 0.002)
        book.use(3, 0.003)
        seen.append(book.decide(0.0051)[0] == PARKED)
    assert seen[0]
    assert not seen[-1]


def test_a_parked_task_that_does_little_stays_parked() -> None:
    book = parked()
    for _ in range(10):
        book.use(1, 0.001)
        book.use(3, 0.018)
        assert book.decide(0.02)[:2] == [PARKED, PARKED]


@pytest.mark.parametrize(("held_s", "comes"), [(0.003, False), (0.006, True)])
def test_beside_a_foreground_that_leaves_little_a_few_milliseconds_are_work(held_s: float, comes: bool) -> None:
    book = parked()
    book.use(0, 0.010)
    book.use(1, held_s)
    assert (book.decide(0.02)[0] != PARKED) is comes


@pytest.mark.parametrize(("held_s", "comes"), [(0.0035, False), (0.007, True)])
def test_where_all_of_the_time_is_left_it_takes_more_to_be_at_work(held_s: float, comes: bool) -> None:
    book = parked()
    book.use(1, held_s)
    book.use(3, 0.008)
    assert (book.decide(0.02)[0] != PARKED) is comes


@pytest.mark.parametrize(("held_s", "comes"), [(0.0005, False), (0.0017, True)])
def test_of_several_that_start_those_with_next_to_nothing_stay_parked(held_s: float, comes: bool) -> None:
    book = parked()
    book.use(1, 0.010)
    book.use(2, held_s)
    one, other, _ = book.decide(0.02)
    assert one != PARKED
    assert (other != PARKED) is comes


def test_a_parked_task_that_got_in_beside_a_foreground_that_leaves_nothing_has_work() -> None:
    book = parked()
    book.use(0, 1.0)
    book.decide(1.0)  # the foreground works all the time, as is known now
    book.use(0, 0.0195)
    book.use(1, 0.0005)
    assert book.decide(0.02)[:2] == [WAIT, PARKED]


def test_what_one_did_while_all_were_parked_is_a_turn_at_most() -> None:
    book = parked()
    book.decide(0.06)
    assert book.decide(0.01) == [PARKED] * 3
    for _ in range(400):
        book.use(1, 0.001)
        assert book.decide(0.02) == [PARKED] * 3
    for pid in (1, 2, 3):
        book.use(pid, 0.02)
    assert PARKED not in book.decide(0.02)
    turns = [book.take_a_turn() for _ in range(12)]
    assert turns.count(1) >= 3


def test_one_that_is_left_alone_is_not_idle_any_more() -> None:
    book = parked()
    del book.tasks[2:]
    assert book.decide(0.001) == [TURN]
    assert book.part.why(TaskKey(1, "GPU-0")) == "has the turn"
    book.tasks.append(task(4))
    assert PARKED not in book.decide(0.001)


def test_several_parked_tasks_that_start_together_all_come_back() -> None:
    book = parked()
    book.use(1, 0.009)
    book.use(2, 0.008)
    book.use(3, 0.002)
    assert PARKED not in book.decide(0.02)


def test_when_all_are_idle_all_are_enabled() -> None:
    book = parked()
    assert book.decide(0.01) == [PARKED] * 3
    assert book.again is not None
    assert 0.01 < book.again <= 0.021
    looks = []
    for _ in range(5):
        book.decide(book.again)
        looks.append(book.again)
    assert looks == pytest.approx([0.04, *[0.08] * 4])  # more and more rarely


def test_parked_tasks_that_do_a_little_are_looked_at_as_often_as_at_first() -> None:
    book = parked()
    book.decide(0.01)
    for _ in range(5):
        book.use(1, 0.0005)
        assert book.decide(0.02) == [PARKED] * 3
        assert book.again == pytest.approx(0.02)


def test_what_a_task_holds_while_it_goes_off_counts_for_nothing() -> None:
    """Suspending it takes a moment."""
    book = Book(task(1), task(2))
    book.decide()
    book.part.off(book.tasks[1:], book.tasks, book.now, 2.0)
    book.use(1, 0.03, turns=0)
    book.part.off(book.tasks[1:], book.tasks, book.now + 0.03, 2.0)
    book.decide(0.1)
    assert book.decide(0.06) == [WAIT, TURN]
    book.use(2, 0.02, turns=0)
    assert book.decide(0.06) == [TURN, WAIT]


def test_time_off_does_not_count_to_a_turn() -> None:
    book = Book(task(1), task(2))
    book.use(0, 0.001)
    book.decide()
    book.now += 0.005
    off = book.part.off(book.tasks[1:], book.tasks, book.now, 2.0)
    assert set(off.values()) == {Share(1, enabled=False, until=2.0)}
    assert book.decide(0.2) == [TURN, WAIT]
    assert book.again == pytest.approx(0.045)
    assert book.decide(0.045) != [TURN, WAIT]


def test_a_long_time_without_anybody_else() -> None:
    """Nothing is forgotten of a task that stays."""
    book = Book(task(1))
    book.decide()
    book.tasks.append(task(2))
    assert sum(share.enabled for share in book.decide(3_600)) == 1
    book.tasks[1] = replace(book.tasks[1], group="new")
    assert sum(share.enabled for share in book.decide(3_600)) == 1


def test_nothing_is_kept_of_tasks_that_are_gone() -> None:
    book = Book(task(1))
    for pid in range(2, 200):
        book.tasks[2:] = [task(pid)]
        book.decide(1.0)
    assert len(book.part._members) < 50
    assert len(book.part._groups) < 50


@pytest.mark.parametrize(
    ("others_s", "workload", "expected"),
    [(0.0, 1.0, 0.1), (0.05, 1.0, 0.05), (0.095, 1.0, 0.0), (0.1, 0.2, 0.08), (0.1, 0.95, 0.0), (0.01, 0.5, 0.09)],
)
def test_what_the_others_left(others_s: float, workload: float, expected: float) -> None:
    assert time_left(others_s, 0.1, workload) == pytest.approx(expected)


def test_the_foregrounds_load_is_measured_once_a_second() -> None:
    def busy(seconds: float) -> list[Task]:
        return [task(0, LATENCY, usage=Usage(seconds)), task(1, LATENCY)]

    load = _Workload()
    load.measure(busy(5.0), 10.0)
    assert load.share == 0.5  # it is not known yet
    load.measure(busy(5.3), 10.5)
    assert load.share == 0.5
    load.measure(busy(5.4), 11.0)
    assert load.share == pytest.approx(0.4)
    load.measure(busy(5.4), 11.9)
    assert load.share == pytest.approx(0.4)
    load.measure(busy(5.4), 12.0)
    assert load.share == 0.0
    load.measure(busy(6.2), 14.0)
    assert load.share == pytest.approx(0.4)  # of two seconds
    load.measure(busy(9.0), 16.0)
    assert load.share == 1.0


@pytest.mark.parametrize("pauses", [False, True])
def test_a_user_with_many_processes_has_no_more_turns_than_one_with_a_single_one(pauses: bool) -> None:
    """Nor where each of them is away after its turn."""
    many = [task(pid, weight=10_000, owned_by=(1001, ""), most_weight=100) for pid in range(1, 9)]
    book = Book(*many, task(9, owned_by=(1002, ""), most_weight=100))
    taken = []
    for _ in range(200):
        taken.append(who := book.take_a_turn())
        if pauses and who != 9:
            book.decide()
            one = book.tasks.pop(who)
            book.decide()
            book.tasks.insert(who, one)
    assert taken.count(9) == pytest.approx(100, abs=10)


def test_a_user_whose_others_have_no_work_has_all_that_it_may_have() -> None:
    tasks = [task(pid, owned_by=(1001, ""), most_weight=100) for pid in (1, 2)]
    book = Book(*tasks, task(3, owned_by=(1002, ""), most_weight=100))
    book.use(0, 0.001)
    book.decide()
    assert book.decide(0.01) == [PARKED, TURN, WAIT]
    taken = []
    for _ in range(40):
        shares = book.decide()
        taken.append(next(each.key.pid for each, share in zip(book.tasks[1:], shares, strict=True) if share == TURN))
        book.use(taken[-1], 0.05)
        book.now += 0.05
    assert taken.count(2) == pytest.approx(20, abs=1)


def regrouped(who_renames: int) -> dict[int, int]:
    """Turns of two alike, of which one has another group after each turn."""
    book = Book(task(1, group="job 1"), task(2, group="job 2"))
    taken = {1: 0, 2: 0}
    for number in range(40):
        taken[book.take_a_turn()] += 1
        book.tasks[who_renames] = replace(book.tasks[who_renames], group=f"another {number}")
        book.decide()
    return taken


@pytest.mark.parametrize("who_renames", [1, 2])
def test_nobody_has_more_turns_by_going_from_group_to_group(who_renames: int) -> None:
    assert regrouped(who_renames) == {1: 20, 2: 20}
