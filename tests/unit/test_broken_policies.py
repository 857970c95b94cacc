"""Policies that raise, leave, or answer what is no answer: dropped at once, alike live and simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runlist.model import Event, Hint, Share, Task, TaskKey
from runlist.policies import Decision, Policy
from runlist.policies.parts.slices import BASE_US
from tests.fixtures.hosts import Host, MakeHost
from tests.fixtures.scheduler import GPU

pytestmark = pytest.mark.timeout(method="thread")  # a watchdog takes SIGALRM for itself

KEYS = [TaskKey(pid, GPU) for pid in (1, 2)]
NAN, INF = float("nan"), float("inf")


class Own(Policy):
    """Gives everybody 4 ms. A method in `broken` does that instead."""

    summary = "of a test"

    def __init__(self, **broken: Callable[[], Any]) -> None:
        super().__init__({})
        self.broken = broken
        self.calls = 0

    def admit(self, task: Task, tasks: Sequence[Task]) -> Any:
        return self._answer("admit", f"no {task.key.pid} beside {len(tasks)}")

    def on_event(self, event: Event, now: float) -> Any:
        return self._answer("on_event", None)

    def decide(self, tasks: Sequence[Task], now: float) -> Any:
        return self._answer("decide", Decision({task.key: Share(4_000) for task in tasks}))

    def why(self, key: TaskKey) -> Any:
        return self._answer("why", f"because of {key.pid}")

    def _answer(self, method: str, usual: object) -> Any:
        self.calls += 1
        return self.broken[method]() if method in self.broken else usual


class Unsayable(Exception):
    def __repr__(self) -> str:
        raise SystemExit


class Wordless(Exception):
    def __repr__(self) -> str:
        return " "


class Rude:
    def __str__(self) -> str:
        raise ValueError

    __bool__ = __repr__ = __str__


def raising(error: BaseException) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


def of(**values: Any) -> Callable[[], Any]:
    """A decision that is none: something in it is wrong."""
    return lambda: Decision(**{"shares": {}, **values})


def off_until(until: Any) -> Callable[[], Any]:
    return of(shares={KEYS[0]: Share(enabled=False, until=until)})


ERRORS = (
    ZeroDivisionError("a\nb"), SystemExit(3), GeneratorExit(), asyncio.CancelledError(), MemoryError(), Unsayable(),
    Wordless(),
)  # fmt: skip
GARBAGE = (
    lambda: None, lambda: 5, lambda: Decision(None), lambda: [Share()], of(shares=7), of(shares={KEYS[0]: "fast"}),  # type: ignore[arg-type]
    of(shares={KEYS[0]: None}), of(shares={KEYS[0]: Share(Rude())}), of(shares={KEYS[0]: Share(enabled=Rude())}),  # type: ignore[arg-type]
    of(again_after_s="soon"), of(again_after_s=1j), of(again_after_s=NAN), of(preempt=3), of(preempt=[[]]),
    of(segments=3), of(announcing=[[]]), of(off_on_work=3),
    of(watch=3), of(watch={KEYS[0]: "soon"}), of(watch={KEYS[0]: NAN}), of(watch={KEYS[0]: 0.0004}),
    of(watch={KEYS[0]: 3601}), off_until("later"), off_until(NAN), off_until(INF), off_until(10**400),
)  # fmt: skip
BROKEN = [
    *((method, raising(error)) for method in ("decide", "on_event", "admit", "why") for error in ERRORS),
    *(("decide", how) for how in GARBAGE),
    *((method, Rude) for method in ("on_event", "admit", "why")),
]


@pytest.fixture(params=["live", "simulated"])
def host(request: pytest.FixtureRequest, make_host: MakeHost) -> Host:
    return make_host(request.param)


def begin(host: Host, own: Own) -> None:
    host.use(own, "own")
    for key in KEYS:
        host.appear(key.pid)
    assert host.shares() == {1: Share(4_000), 2: Share(4_000)}


@pytest.mark.parametrize(("method", "how"), BROKEN)
def test_a_policy_that_fails_is_dropped_within_one_run(host: Host, method: str, how: Callable[[], Any]) -> None:
    own = Own()
    begin(host, own)
    own.broken = {method: how}
    if method == "admit":
        assert host.refusal(3) is None  # its successor takes it
    elif method == "why":
        assert host.why(1) == ""
    elif method == "on_event":
        host.tell(Hint(KEYS[0], 1.0))
    else:
        host.run()
    calls = own.calls
    host.pass_time(0.01)  # nobody asks: it happens by itself
    assert host.loop.policy_name == "priority"
    assert host.loop.trouble.startswith("policy own was dropped for the default one: ")
    assert host.notes == [host.loop.trouble]
    assert "\n" not in host.loop.trouble
    assert host.shares() == {1: Share(BASE_US), 2: Share(BASE_US)}
    host.run()
    assert own.calls == calls  # it is never asked again


@pytest.mark.parametrize("us", [0, -5, 10**12, 2.5, "fast", True])
def test_slices_that_cannot_be_set_are_mended_and_told_once(host: Host, us: Any) -> None:
    own = Own()
    begin(host, own)
    own.broken = {"decide": lambda: Decision(dict.fromkeys(KEYS, Share(us)), 0.01)}
    host.run()
    host.pass_time(0.1)
    assert host.shares() == {1: Share(2_048), 2: Share(2_048)}
    assert host.notes == [f"the policy gave process {pid} a slice of {us!r}: it gets 2048 µs" for pid in (1, 2)]
    assert host.loop.policy_name == "own"


@pytest.mark.parametrize("again_s", [INF, 1e300, 10**300, -INF, -1.0])
def test_whatever_time_it_is_asked_again_after(host: Host, again_s: float) -> None:
    own = Own()
    begin(host, own)
    own.broken = {"decide": lambda: Decision({}, again_s)}
    calls = own.calls
    host.run()
    host.pass_time(0.1)
    assert (host.loop.policy_name, host.notes) == ("own", [])
    assert own.calls == calls + 1 if again_s > 0 else 100 < own.calls - calls < 500


@pytest.mark.parametrize("idle_s", [0.0005, 3600])
def test_the_shortest_and_the_longest_time_after_which_a_task_is_idle(host: Host, idle_s: float) -> None:
    own = Own()
    begin(host, own)
    own.broken = {"decide": lambda: Decision({}, watch={KEYS[0]: idle_s, TaskKey(3, GPU): 0.0})}
    host.run()
    assert (host.loop.policy_name, host.notes) == ("own", [])


def test_another_policy_that_fails_at_admitting_is_refused_and_nothing_is_dropped(host: Host) -> None:
    begin(host, Own())
    assert host.refusal(3) == host.refusal(3, Own()) == "no 3 beside 2"
    for error in ERRORS:
        reason = host.refusal(3, Own(admit=raising(error)))
        assert reason is not None
        assert reason.startswith("the policy failed at admitting process 3: ")
    assert (host.loop.policy_name, host.notes) == ("own", [])


def test_what_a_policy_does_to_its_list_of_tasks_is_its_own(host: Host) -> None:
    class Greedy(Own):
        def decide(self, tasks: Sequence[Task], now: float) -> Decision:
            assert isinstance(tasks, list)
            tasks.clear()
            return Decision({})

    host.use(Greedy(), "own")
    for key in KEYS:
        host.appear(key.pid)
    assert host.shares() == {1: Share(), 2: Share()}
    assert host.notes == []


def test_an_interrupt_is_the_users_in_a_simulation_and_the_policys_in_the_daemon(make_host: MakeHost) -> None:
    """There it comes to the event loop as a signal, and is none of the policy's."""
    for name in ("live", "simulated"):
        own = Own()
        host = make_host(name)
        begin(host, own)
        own.broken = {"decide": raising(KeyboardInterrupt())}
        if name == "live":
            host.run()
            assert "KeyboardInterrupt" in host.loop.trouble
        else:
            with pytest.raises(KeyboardInterrupt):
                host.run()
            assert host.loop.trouble == ""
