"""The daemon and the simulator schedule alike: told the same, a policy is asked for the same and has the same done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runlist.model import Activity, Busy, Event, Hint, Idle, Report, Segment, Share, Task, TaskKey
from runlist.policies import Decision, Policy
from runlist.scheduling import loop
from tests.fixtures.effort import TIMES
from tests.fixtures.hosts import Host, MakeHost, Simulated
from tests.fixtures.scheduler import GPU, START_S

pytestmark = pytest.mark.timeout(300, method="thread")  # a watchdog takes SIGALRM for itself

PIDS = range(1, 7)
NAN, INF = float("nan"), float("inf")
Answer = Callable[[float], Any]
"""What a policy answers at a time, or raises."""


class Scripted(Policy):
    """Answers by a script, and writes down what it is told and asked."""

    summary = "of a test"

    def __init__(self, decisions: Sequence[Answer], answers: Sequence[Answer], log: list[object]) -> None:
        super().__init__({})
        self.decisions, self.answers, self.log = list(decisions), list(answers), log

    def on_event(self, event: Event, now: float) -> Any:
        return self._answer(self.answers, now, event)

    def admit(self, task: Task, tasks: Sequence[Task]) -> Any:
        return self._answer(self.answers, START_S, ("admit", task.key.pid, [one.key.pid for one in tasks]))

    def why(self, key: TaskKey) -> Any:
        return self._answer(self.answers, START_S, ("why", key.pid))

    def decide(self, tasks: Sequence[Task], now: float) -> Any:
        return self._answer(self.decisions, now, [(task.key.pid, task.segment, task.usage) for task in tasks])

    def _answer(self, script: list[Answer], now: float, asked: object) -> Any:
        self.log.append((round(now, 6), asked))
        script.append(answer := script.pop(0))
        return answer(now)


def raising(error: BaseException) -> Answer:
    def answer(now: float) -> None:
        raise error

    return answer


def of(value: object) -> Answer:
    return lambda now: value


def deciding(
    shares: dict[int, tuple[Any, Any, Any]], again_s: Any, preempt: frozenset[int], watch: dict[int, Any]
) -> Answer:
    """A decision with shares (slice, whether enabled, for how long at the latest if not). Nobody watched tells."""

    def answer(now: float) -> Decision:
        given = {
            TaskKey(pid, GPU): Share(us, enabled, now + wait if isinstance(wait, float) else wait)
            for pid, (us, enabled, wait) in shares.items()
        }
        watched = {TaskKey(pid, GPU): idle_s for pid, idle_s in watch.items()}
        return Decision(given, again_s, frozenset(TaskKey(pid, GPU) for pid in preempt), watch=watched)

    return answer


_slices = st.sampled_from([None, 1, 2, 499, 500, 5_000, 20_000])
_share = st.tuples(_slices, st.booleans(), st.sampled_from([None, 0.0041, 0.0302, 20.0]))
_odd_share = st.tuples(
    _slices | st.sampled_from([0, -1, 2.5, "fast", True]),
    st.booleans(),
    st.sampled_from([None, -1.0, NAN, INF, "late"]),
)
_again = st.sampled_from([None, None, 0.0, 0.0101, 0.0503])
_idle = st.sampled_from([0.0005, 0.004, 3])
_odd_idle = st.sampled_from([0.0, -1.0, NAN, INF, "long", None])


def _decisions(
    share: st.SearchStrategy[Any], again: st.SearchStrategy[Any], idle: st.SearchStrategy[Any]
) -> st.SearchStrategy[Answer]:
    pids = st.sampled_from(PIDS)
    watch = st.just({}) | st.dictionaries(pids, idle, max_size=3)
    return st.builds(deciding, st.dictionaries(pids, share), again, st.frozensets(pids), watch)


_faults = st.sampled_from([raising(ZeroDivisionError("a\nb")), raising(SystemExit(3)), raising(GeneratorExit())])
_garbage = st.sampled_from([None, 42, [Share()], Decision(None), SimpleNamespace(shares=1)]).map(of)  # type: ignore[arg-type]
_odd = _decisions(
    _share | _odd_share, _again | st.sampled_from([NAN, INF, -INF, -1.0, 1e300, "soon", 1j]), _idle | _odd_idle
)
_decision = _decisions(_share, _again, _idle)
_answer = st.sampled_from([None, None, False, True, "x", 7]).map(of)
_broken_decision = st.lists(st.one_of(_decision, _decision, _odd, _garbage, _faults), min_size=1, max_size=20)
_broken_answer = st.lists(st.one_of(*[_answer] * 9, _faults), min_size=1, max_size=30)
_decent = st.tuples(st.lists(_decision, min_size=1, max_size=8), st.lists(_answer, min_size=1, max_size=8))
_script = st.one_of(_decent, _decent, st.tuples(_broken_decision, _broken_answer))
_pid = st.sampled_from(PIDS)
_step = st.one_of(
    st.tuples(st.just("appear"), _pid),
    st.tuples(st.just("vanish"), _pid),
    st.tuples(st.just("wait"), _pid),
    st.tuples(st.just("hint"), _pid, st.sampled_from([0.0, 0.002, 1.5])),
    st.tuples(st.just("segment"), _pid, st.sampled_from([None, 0, 3])),
    st.tuples(st.just("report"), _pid, st.sampled_from([0.001, 0.2])),
    st.tuples(st.just("hold"), _pid, st.integers(1, 50)),
    st.tuples(st.just("use"), _script),
    st.tuples(st.just("admit"), _pid, st.none() | _script),
    st.tuples(st.just("why"), _pid),
)
_gaps_ms = st.sampled_from([1, 1, 2, 3, 7, 40])


def outcome(host: Host, script: Any, steps: Sequence[tuple[Any, int]]) -> list[object]:
    """What comes of the same events on a host. Each happens a bit later in its millisecond than the one before it, so
    that no timer rings at the same moment.
    """
    log: list[object] = []
    host.use(Scripted(*script, log), "own")
    pids = count(1)
    there = [next(pids), next(pids)]
    for pid in there:
        host.appear(pid)
    for number, ((what, of_what, *more), gap_ms) in enumerate(steps):
        host.pass_time((gap_ms + 0.001) / 1e3)
        if what == "use":
            host.use(Scripted(*of_what, log), f"own {number}")
            host.run()
        elif what == "admit":
            log.append(host.refusal(of_what, Scripted(*more[0], log) if more[0] else None))
        elif what == "appear":
            there.append(next(pids))
            host.appear(there[-1])
        else:
            pid = there[of_what % len(there)]
            key = TaskKey(pid, GPU)
            match what:
                case "vanish" if len(there) > 1:
                    there.remove(pid)
                    host.vanish(pid)
                case "hint":
                    host.say(Hint(key, *more))
                case "segment":
                    host.say(Segment(key, *more))
                case "report":
                    host.tell(Report(key, *more))
                case "hold":  # and usage is read: the daemon does so, too, before somebody comes
                    host.hold(pid, *more)
                    host.run()
                case "why":
                    log.append(host.why(pid))
        log.append((host.shares(), host.loop.policy_name, host.loop.trouble))
    host.pass_time(0.2)
    host.close()
    return [*log, host.shares(), host.loop.policy_name, host.loop.trouble, host.notes, +host.preempted()]


class Plain(Policy):
    """Takes the place of the default policy, whose answers depend on the last digits of times."""

    summary = "of a test"

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        return Decision({task.key: Share(3_000 + task.key.pid) for task in tasks}, 0.0204)


@given(script=_script, steps=st.lists(st.tuples(_step, _gaps_ms), min_size=10, max_size=40))
@settings(
    max_examples=25 if TIMES == 1 else 50 * TIMES,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_both_hosts_come_to_the_same(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch, script: Any, steps: Sequence[tuple[Any, int]]
) -> None:
    monkeypatch.setattr(loop, "load_policy", lambda spec: Plain({}))
    assert outcome(make_host("live"), script, steps) == outcome(make_host("simulated"), script, steps)


class Watcher(Policy):
    """Watches whom it is told to, and notes what it hears of them."""

    summary = "of a test"

    def __init__(self) -> None:
        super().__init__({})
        self.watched: dict[int, float] = {}
        self.heard: list[tuple[float, Event]] = []
        self.activity: dict[int, Activity | None] = {}

    def on_event(self, event: Event, now: float) -> None:
        if isinstance(event, Busy | Idle):
            self.heard.append((round(now - START_S, 6), event))

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        self.activity = {task.key.pid: task.activity for task in tasks}
        return Decision({}, watch={TaskKey(pid, GPU): idle_s for pid, idle_s in self.watched.items()})


def test_the_simulator_watches_whom_a_decision_names_until_the_next(make_host: MakeHost) -> None:
    host, policy = make_host("simulated"), Watcher()
    assert isinstance(host, Simulated)
    host.use(policy, "own")
    for pid in (1, 2, 3):
        host.appear(pid)
    one, two = host.telling(1), host.telling(2)
    policy.watched = {1: 0.004, 3: 0.004}  # 3 tells nothing, 2 is not asked
    host.run()
    host.pass_time(0.01)
    for telling in (one, two):
        telling.submits(5, host.engine.now)
    host.pass_time(0.001)
    assert policy.heard == [(0.01, Busy(TaskKey(1, GPU)))]
    assert policy.activity == {1: Activity(5), 2: Activity(5), 3: None}  # it was asked for what to do now
    host.pass_time(0.05)
    assert policy.heard[1:] == [(0.014, Idle(TaskKey(1, GPU)))]
    policy.watched = {}
    host.run()
    one.submits(1, host.engine.now)
    host.pass_time(0.05)
    host.watch({1: 0.004})
    one.submits(1, host.engine.now)
    host.pass_time(0.001)
    host.vanish(1)
    host.pass_time(0.05)
    assert policy.heard[2:] == [(0.111, Busy(TaskKey(1, GPU)))]


def test_a_new_policy_is_told_of_nobody_whom_the_one_before_had_watched(make_host: MakeHost) -> None:
    host, before, after = make_host("simulated"), Watcher(), Watcher()
    assert isinstance(host, Simulated)
    host.use(before, "before")
    host.appear(1)
    telling = host.telling(1)
    before.watched = {1: 0.004}
    host.run()
    host.use(after, "after")
    telling.submits(1, host.engine.now)
    host.pass_time(0.05)
    assert (before.heard, after.heard) == ([], [])
