"""The simulated GPU: who is on it, how far work comes, and that no time is lost or made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.sim.engine import Engine
from runlist.sim.gpu import Context, Gpu, time_for, work_in
from runlist.sim.timing import COMPUTE_SLICE, MICROSECOND, MILLISECOND, NOTICE, RESTORE, SECOND, SWITCH_GAP


class Bench:
    """A GPU and contexts, each of which notes when its work was done."""

    def __init__(self, contexts: int) -> None:
        self.engine = Engine()
        self.gpu = Gpu(self.engine)
        self.done: list[tuple[int, int]] = []
        self.contexts = [
            Context(lambda index=index: self.done.append((index, self.engine.now))) for index in range(contexts)
        ]  # type: ignore[misc]
        for context in self.contexts:
            self.gpu.add(context)

    def submit(self, index: int, work: int, at: int = 0) -> None:
        self.engine.at(at, lambda _: self.gpu.submit(self.contexts[index], work))

    def run(self, until: int) -> None:
        self.engine.run(until)
        self.gpu.settle()

    def accounted(self) -> int:
        return sum(context.held for context in self.contexts) + self.gpu.gaps + self.gpu.empty


def forever(bench: Bench, *indexes: int) -> None:
    for index in indexes:
        bench.submit(index, 1000 * SECOND)


@given(st.integers(0, 10 * MILLISECOND))
def test_time_and_work_are_inverse(work: int) -> None:
    assert 0 <= work - work_in(time_for(work)) <= 2
    assert work_in(time_for(work) + 2) >= work - 1


def test_nothing_is_done_while_state_is_restored_and_little_while_caches_are_cold() -> None:
    assert work_in(RESTORE) == 0
    assert work_in(RESTORE + 100 * MICROSECOND) == 90 * MICROSECOND
    assert 10 * MILLISECOND - work_in(10 * MILLISECOND) == 116 * MICROSECOND


def test_a_lone_context_keeps_the_gpu_also_idle() -> None:
    bench = Bench(1)
    bench.submit(0, 5 * MILLISECOND)
    bench.submit(0, 5 * MILLISECOND, at=20 * MILLISECOND)
    bench.run(30 * MILLISECOND)
    context = bench.contexts[0]
    first = SWITCH_GAP + time_for(5 * MILLISECOND)
    assert bench.done == [(0, first), (0, 25 * MILLISECOND)]  # the second time nothing has to be restored
    assert context.turns == bench.gpu.switches == 1
    assert context.held == 30 * MILLISECOND - SWITCH_GAP
    assert context.idle == context.held - context.worked - (time_for(5 * MILLISECOND) - 5 * MILLISECOND)
    assert context.worked == 10 * MILLISECOND


def test_equal_slices_take_turns() -> None:
    bench = Bench(3)
    forever(bench, 0, 1, 2)
    bench.run(SECOND)
    turn = COMPUTE_SLICE + SWITCH_GAP
    assert bench.gpu.switches == pytest.approx(SECOND / turn, abs=1)
    for context in bench.contexts:
        assert context.held == pytest.approx(SECOND / 3 * COMPUTE_SLICE / turn, rel=0.01)


def test_slices_are_shares_of_jobs_that_never_pause() -> None:
    bench = Bench(2)
    bench.gpu.set_slice(bench.contexts[0], 15 * MILLISECOND)
    bench.gpu.set_slice(bench.contexts[1], 5 * MILLISECOND)
    forever(bench, 0, 1)
    bench.run(10 * SECOND)
    one, two = (context.held for context in bench.contexts)
    assert one / (one + two) == pytest.approx(0.75, abs=0.005)


def test_two_tiny_slices_livelock_until_one_grows() -> None:
    bench = Bench(2)
    for context in bench.contexts:
        bench.gpu.set_slice(context, MICROSECOND)
    forever(bench, 0, 1)
    bench.run(SECOND)
    assert [context.worked for context in bench.contexts] == [0, 0]
    assert bench.gpu.switches > 10_000
    bench.gpu.set_slice(bench.contexts[0], 2 * MILLISECOND)
    bench.run(2 * SECOND)
    assert bench.contexts[0].worked > 0.8 * SECOND
    assert bench.contexts[1].worked == 0


def test_a_tiny_slice_gives_way_at_once_and_a_long_one_at_its_end() -> None:
    for slice_ns, leaves in ((MICROSECOND, MICROSECOND), (10 * MILLISECOND, 10 * MILLISECOND - SWITCH_GAP)):
        bench = Bench(2)
        bench.gpu.set_slice(bench.contexts[0], slice_ns)
        forever(bench, 0)
        asked = 20 * MILLISECOND + (0 if slice_ns == MICROSECOND else 2 * SWITCH_GAP)
        bench.submit(1, 80 * MICROSECOND, at=asked)
        bench.run(SECOND)
        (done,) = bench.done
        least = SWITCH_GAP + time_for(80 * MICROSECOND)
        assert least <= done[1] - asked <= least + NOTICE + leaves


def test_what_a_suspended_context_was_doing_goes_on_later() -> None:
    bench = Bench(2)
    bench.submit(0, 10 * MILLISECOND)
    bench.engine.at(5 * MILLISECOND, lambda _: bench.gpu.set_enabled(bench.contexts[0], False))
    bench.submit(1, MILLISECOND, at=6 * MILLISECOND)
    bench.run(50 * MILLISECOND)
    context = bench.contexts[0]
    assert bench.done == [(1, 6 * MILLISECOND + SWITCH_GAP + time_for(MILLISECOND))]
    assert context.worked + context.work == 10 * MILLISECOND
    bench.gpu.set_enabled(context, True)
    left = context.work
    bench.run(SECOND)
    assert bench.done[1] == (0, 50 * MILLISECOND + SWITCH_GAP + time_for(left))


def test_who_is_suspended_as_its_work_ends_ends_it_later() -> None:
    bench = Bench(1)
    bench.engine.at(SWITCH_GAP + time_for(MILLISECOND), lambda _: bench.gpu.set_enabled(bench.contexts[0], False))
    bench.submit(0, MILLISECOND)
    bench.run(5 * MILLISECOND)
    assert bench.done == []
    bench.gpu.set_enabled(bench.contexts[0], True)
    bench.run(10 * MILLISECOND)
    assert bench.done == [(0, 5 * MILLISECOND + SWITCH_GAP + time_for(1))]
    assert bench.contexts[0].worked == MILLISECOND


def test_work_queues_behind_what_a_context_has() -> None:
    bench = Bench(2)
    for index, at in ((0, 0), (0, 3), (1, 5), (1, 6), (0, 7)):
        bench.submit(index, 2 * MILLISECOND, at=at * MILLISECOND)
    bench.gpu.set_slice(bench.contexts[0], 100 * MILLISECOND)
    bench.engine.at(4 * MILLISECOND, lambda _: bench.gpu.set_enabled(bench.contexts[1], False))
    bench.run(9 * MILLISECOND)
    warm = 3 * MILLISECOND + 2 * MILLISECOND  # it has come to rest at the first one's end, on the GPU
    assert bench.done[:2] == [(0, SWITCH_GAP + time_for(2 * MILLISECOND)), (0, warm)]
    assert bench.done[2:] == [(0, 9 * MILLISECOND)]
    assert bench.contexts[1].work == 4 * MILLISECOND
    bench.gpu.set_enabled(bench.contexts[1], True)
    bench.run(20 * MILLISECOND)
    assert bench.done[3:] == [(1, 9 * MILLISECOND + SWITCH_GAP + time_for(4 * MILLISECOND))]
    assert bench.contexts[1].pending == bench.done[3][1] - 5 * MILLISECOND
    assert [context.worked for context in bench.contexts] == [6 * MILLISECOND, 4 * MILLISECOND]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500_000), st.floats(0, 1)), min_size=1, max_size=20), st.booleans())
def test_work_in_pieces_takes_as_long_as_all_of_it(pieces: list[tuple[int, float]], beside: bool) -> None:
    """To the nanosecond, as long as there always is some left."""
    done = []
    for whole in (True, False):
        bench = Bench(2)
        if beside:
            forever(bench, 1)
        if whole:
            bench.submit(0, sum(work for work, _ in pieces), at=MILLISECOND)
        else:
            at, given = MILLISECOND, 0
            for work, when in pieces:
                bench.submit(0, work, at=round(at + when * given))  # nothing is done in less time than it takes
                at, given = round(at + when * given), given - round(when * given) + work
        bench.run(SECOND)
        done.append(bench.done[:1])
    assert done[0] == done[1]
    assert done[0]


def test_suspending_who_waits_ends_the_contention() -> None:
    bench = Bench(2)
    forever(bench, 0, 1)
    bench.engine.at(MILLISECOND, lambda _: bench.gpu.set_enabled(bench.contexts[1], False))
    bench.run(SECOND)
    assert bench.gpu.switches == 1


def test_preempting_ends_a_residency() -> None:
    bench = Bench(2)
    forever(bench, 0)
    bench.engine.at(5 * MILLISECOND, lambda _: bench.gpu.preempt(bench.contexts[0]))
    bench.run(10 * MILLISECOND)
    assert bench.contexts[0].turns == 2
    idle = Bench(1)
    idle.submit(0, MILLISECOND)
    idle.run(5 * MILLISECOND)
    idle.gpu.preempt(idle.contexts[0])
    idle.run(10 * MILLISECOND)
    assert idle.gpu.resident is None
    assert idle.contexts[0].held == 5 * MILLISECOND - SWITCH_GAP


def test_idle_time_is_known_late_and_only_of_who_was_alone() -> None:
    bench = Bench(2)
    bench.submit(0, 100 * MILLISECOND)
    context = bench.contexts[0]
    bench.run(250 * MILLISECOND)
    bench.gpu.sample_idle()
    assert context.known_idle == 0
    bench.run(500 * MILLISECOND)
    bench.gpu.sample_idle()
    assert context.known_idle == pytest.approx(150 * MILLISECOND, rel=0.01)
    bench.submit(1, MILLISECOND, at=600 * MILLISECOND)
    bench.run(750 * MILLISECOND)
    bench.gpu.sample_idle()
    assert context.known_idle == pytest.approx(150 * MILLISECOND, rel=0.01)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "slice", "off", "on", "preempt", "remove", "settle"]),
        st.integers(0, 3),
        st.integers(1, 20_000),
        st.integers(0, 5_000),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_whatever_happens_no_time_and_no_work_is_lost(steps: list[tuple[str, int, int, int]]) -> None:
    bench = Bench(4)
    given_work = [0] * 4
    for act, index, amount, pause in steps:
        context = bench.contexts[index]
        bench.engine.run(bench.engine.now + pause * MICROSECOND)
        if act == "settle":
            bench.gpu.settle()
        if context.gone:
            continue
        if act == "submit":
            bench.gpu.submit(context, amount * MICROSECOND)
            given_work[index] += amount * MICROSECOND
        elif act == "slice":
            bench.gpu.set_slice(context, amount * MICROSECOND)
        elif act in ("off", "on"):
            bench.gpu.set_enabled(context, act == "on")
        elif act == "preempt":
            bench.gpu.preempt(context)
        elif act == "remove":
            given_work[index] -= context.work
            bench.gpu.settle()
            given_work[index] = context.worked  # what was left goes with it
            bench.gpu.remove(context)
    for context in bench.contexts:
        if not context.gone:
            bench.gpu.set_enabled(context, True)
            bench.gpu.set_slice(context, 2 * MILLISECOND)
    bench.run(bench.engine.now + 10 * SECOND)
    assert bench.accounted() == bench.engine.now
    for context, work in zip(bench.contexts, given_work, strict=True):
        assert context.worked == work
        assert context.work == 0  # whoever could run is done
        assert 0 <= context.idle <= context.held
        assert context.worked <= context.held - context.idle
