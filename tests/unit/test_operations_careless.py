"""Careless words to the scheduler of operations: rules, profiles and clients that are none, and rules that never
answer.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runlist.errors import NotSupportedError, UsageError
from runlist.operations import ALL, CLOSED, OPEN, Admission, Bound, Counters, Model, Profile, Rule, read, rule_of
from runlist.operations.feedback import FALLBACK, Feedback
from runlist.operations.scheduler import Scheduler, start
from tests.fixtures.daemon import wait_for

AnyAdmission: Any = Admission
AnyProfile: Any = Profile
HEAD = "Name,Profile,Memory_footprint,SM_usage,Duration(ns)\n"


def model() -> Model:
    return Model(0.0, (Counters(0, 0, 0, 0, 0, 0, 0),), (), 132)


class Mine(Rule):
    """Answers what a function does, and says so."""

    summary = "mine"
    every_s = 0.01

    def __init__(self, answer: Callable[[], Any] = lambda: OPEN, why: Callable[[], Any] = lambda: "mine") -> None:
        super().__init__({})
        self.answer, self.says = answer, why

    def admission(self, model: Model) -> Admission:
        del model
        found: Admission = self.answer()
        return found

    def why(self) -> str:
        found: str = self.says()
        return found


class Library:
    """Takes everything, and remembers what."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.called: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("rl_operations_"):
            raise AttributeError(name)

        def called(*arguments: Any) -> int:
            self.called.append((name.removeprefix("rl_operations_"), arguments))
            return self.code

        return called


def scheduler(library: Library | None = None) -> Scheduler:
    made: Any = library or Library()
    return Scheduler(made, 2, None)


def never() -> None:
    while True:
        pass


def ends() -> None:
    raise SystemExit(3)


# -- rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "said"), [(never, "it took more than 0.25 s"), (ends, "SystemExit: 3")])
def test_a_rule_that_never_answers_or_leaves_is_dropped_and_holds_nobody_up(
    answer: Callable[[], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = threading.active_count()
    for good in (0, 3):  # from the first question on, and later
        put: list[Admission] = []
        left = iter([OPEN] * good)
        feedback = Feedback(Mine(lambda left=left: next(left, None) or answer()), model, put.append)  # type: ignore[misc]
        feedback.start()
        wait_for(lambda put=put: put[-1:] == [FALLBACK])  # type: ignore[misc]
        feedback.stop()
        wait_for(lambda: threading.active_count() == threads)  # also one that would have gone on for ever
        told = capsys.readouterr().err
        assert said in told
        assert len(told.splitlines()) == 1


def test_a_rule_that_cannot_say_why_is_dropped_and_its_program_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    library = Library()
    made = scheduler(library)
    made.use(Mine(why=lambda: {}["missing"]))
    assert made.why() == ""
    assert "the rule Mine is dropped, complements go from now on: KeyError: 'missing'" in capsys.readouterr().err
    assert made.why() == ""
    assert capsys.readouterr().err == ""
    made.use(Mine(why=lambda: 7))
    assert made.why() == "7"
    made.stop()


def test_a_rule_that_leaves_when_it_is_to_say_why_is_dropped_too(capsys: pytest.CaptureFixture[str]) -> None:
    made = scheduler()
    made.use(Mine(why=ends))
    assert made.why() == ""
    assert "complements go from now on: SystemExit: 3" in capsys.readouterr().err
    made.stop()


class Speechless(Exception):
    """One that cannot be put into words."""

    def __str__(self) -> str:
        raise self


def raises_speechless() -> None:
    raise Speechless


def test_a_rule_that_raises_what_cannot_be_printed_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    put: list[Admission] = []
    Feedback(Mine(raises_speechless), model, put.append).start()
    assert put == [FALLBACK]
    assert "complements go from now on: Speechless" in capsys.readouterr().err


def test_a_rule_that_is_to_be_asked_otherwise_later_is_so_or_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    put: list[Admission] = []
    rule = Mine()

    def answer() -> Admission:
        rule.every_s = "often"  # type: ignore[misc,assignment]
        return OPEN

    rule.answer = answer
    feedback = Feedback(rule, model, put.append)
    feedback.start()
    wait_for(lambda: put == [OPEN, FALLBACK])
    feedback.stop()
    assert "the rule Mine is dropped, complements go from now on: every_s is 'often'" in capsys.readouterr().err


@pytest.mark.parametrize("every_s", ["0.1", 0, -1.0, math.nan, math.inf, 1e300, [1]])
def test_how_often_a_rule_is_asked_is_a_number_of_seconds(every_s: Any) -> None:
    rule = Mine()
    rule.every_s = every_s  # type: ignore[misc]
    with pytest.raises(UsageError, match=r"rule Mine: every_s is .*: take seconds"):
        scheduler().use(rule)


@pytest.mark.parametrize("rule", [None, 3, Mine, ALL, b"orion", {"sms": 1}, Bound.COMPUTE])
def test_what_is_no_rule_is_refused_before_anything_is_started(rule: Any) -> None:
    with pytest.raises(UsageError, match="is no rule: take a name"):
        start(rule=rule)
    library = Library()
    with pytest.raises(UsageError, match="is no rule: take a name"):
        scheduler(library).use(rule)
    assert library.called == []


@pytest.mark.parametrize(
    "admission",
    [
        AnyAdmission(ALL, sms=-1),
        AnyAdmission(ALL, sms=1 << 32),
        AnyAdmission(ALL, sms=1.5),
        AnyAdmission(ALL, copies="no"),
        AnyAdmission(ALL, gate_ns=-2),
        AnyAdmission(ALL, gate_ns=1 << 63),
        AnyAdmission(ALL, ahead_ns=0),
        AnyAdmission(ALL, ahead_ns=-5),
        AnyAdmission(ALL, rest_ns=10**9 + 1),
        AnyAdmission(ALL, rest_ns=None),
        AnyAdmission(frozenset({(0, 7)})),
        AnyAdmission("compute"),
        AnyAdmission([(0, 1)]),
    ],
)
def test_an_admission_that_the_library_would_take_for_another_is_refused(admission: Admission) -> None:
    library = Library()
    with pytest.raises(UsageError, match="admission"):
        scheduler(library).use(admission)
    assert library.called == []
    scheduler(library).use(CLOSED)
    assert [name for name, _ in library.called] == ["admission"]


def test_a_rule_may_be_named_as_any_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.py does not exist"):
        rule_of(tmp_path / "none.py")
    path = tmp_path / "mine (old, v=2).py"
    path.write_text("from runlist.operations.rules.greedy import Greedy\nRULE = Greedy\n")
    path.chmod(0o600)
    made = rule_of(path)
    assert isinstance(made, Rule)
    assert made.admission(model()) == OPEN


# -- profiles, clients ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "profile",
    [
        AnyProfile("", Bound.COMPUTE, 1, 1),
        AnyProfile("k\0l", Bound.COMPUTE, 1, 1),
        AnyProfile("\ud800", Bound.COMPUTE, 1, 1),
        AnyProfile("k", Bound.COMPUTE, -1, 1),
        AnyProfile("k", Bound.COMPUTE, 1 << 32, 1),
        AnyProfile("k", Bound.COMPUTE, 1, -1),
        AnyProfile("k", Bound.COMPUTE, 1.5, 1),
        AnyProfile("k", Bound.COMPUTE, 1, 1.5),
        AnyProfile("k", 7, 1, 1),
        AnyProfile("k", "compute", 1, 1),
        AnyProfile(None, Bound.COMPUTE, 1, 1),
        "k",
        None,
    ],
)
def test_a_profile_that_the_library_would_take_for_another_is_refused_and_none_counts(profile: Any) -> None:
    library = Library()
    good = Profile("good", Bound.MEMORY, 4, 100)
    with pytest.raises(UsageError):
        scheduler(library).profile(good, profile)
    with pytest.raises(UsageError):
        start(profiles=[good, profile])
    assert library.called == []
    scheduler(library).profile(good)
    assert [name for name, _ in library.called] == ["profile"]


@pytest.mark.parametrize("number", ["1", 1.0, None, True, -1, 2])
def test_a_client_is_one_of_the_numbers_that_there_are(number: Any) -> None:
    library = Library()
    wrong = UsageError if type(number) is int else TypeError
    with pytest.raises(wrong), scheduler(library).client(number):
        pass
    with pytest.raises(wrong):
        scheduler(library).counters(number)
    with pytest.raises(UsageError if number == -1 and type(number) is int else (TypeError, NotSupportedError)):
        start(clients=number)
    assert library.called == []


def test_tasks_of_one_thread_that_are_clients_by_turns_leave_it_as_it_was() -> None:
    """The first to come leaves first, in the midst of the other one."""
    library = Library()
    both = scheduler(library)
    heard = asyncio.Event()

    async def first() -> None:
        with both.client(0):
            heard.set()
            await asyncio.sleep(0)

    async def other() -> None:
        await heard.wait()
        with both.client(1):
            await asyncio.sleep(0.01)

    async def by_turns() -> None:
        await asyncio.gather(first(), other())

    asyncio.run(by_turns())
    numbers = [int(arguments[0]) for name, arguments in library.called if name == "client"]
    assert numbers == [0, 1, 1, -1]


@pytest.mark.parametrize(
    ("code", "said"), [(-2, "none runs in this process"), (-114, "one runs in this process already")]
)
def test_a_refusal_of_the_librarys_says_what_to_do(code: int, said: str) -> None:
    with pytest.raises(NotSupportedError, match=said), scheduler(Library(code)).client(0):
        pass


@pytest.mark.parametrize(
    "number", ["1,5", "0,123", "1.234,56", "1_000", "\u0663", "\uff13", "1,0000", ",5", "1e", ".", "0x10"]
)
def test_what_only_looks_like_a_number_is_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "profiles.csv"
    path.write_text(f'{HEAD}x,1,0,"{number}",1\n')
    with pytest.raises(UsageError, match=r"SM_usage .*: take a number"):
        read(path)


@pytest.mark.parametrize(("number", "sms"), [("1,024", 1024), ("12", 12), ("8.0", 8), ("1e2", 100), ("+7.", 7)])
def test_numbers_as_profilers_write_them(tmp_path: Path, number: str, sms: int) -> None:
    path = tmp_path / "profiles.csv"
    path.write_text(f'{HEAD}x,1,0,"{number}",0.30000000000000004\n')
    assert read(str(path)) == [Profile("x", Bound.COMPUTE, sms, 0)]


def test_of_several_launches_in_orions_file_the_one_of_the_middle_duration_counts(tmp_path: Path) -> None:
    path = tmp_path / "profiles.csv"
    path.write_text(HEAD + "x,1,0,5,900\ny,0,0,1,1\nx,1,0,6,500\nx,1,0,7,100\n")
    assert read(path) == [Profile("x", Bound.COMPUTE, 6, 500), Profile("y", Bound.MEMORY, 1, 1)]


def test_the_library_is_asked_with_the_numbers_that_were_given() -> None:
    library = Library()
    scheduler(library).profile(Profile("k", Bound.MEMORY, 40, 1 << 40))
    ((_, (name, bound, sms, duration)),) = library.called
    assert isinstance(duration, ctypes.c_int64)
    assert (name, bound.value, sms.value, duration.value) == (b"k", 2, 40, 1 << 40)
