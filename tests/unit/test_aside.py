"""Questions that the kernel does not answer: nobody waits for them, and all others are answered."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from runlist.proc import aside, process
from tests.fixtures.daemon import wait_for

US, PARENT = os.getpid(), os.getppid()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What questions wait for, as in the kernel."""
    opened = threading.Event()
    monkeypatch.setattr(aside, "_serves", True)
    monkeypatch.setattr(aside, "_idle", [])
    monkeypatch.setattr(aside, "_open", {})
    monkeypatch.setattr(aside, "_waited_for", {})
    monkeypatch.setattr(aside, "PATIENCE_S", 0.01)
    monkeypatch.setattr(aside._Asker, "hangs", True)
    yield opened
    opened.set()
    wait_for(lambda: not aside._open, "all questions to be answered")


def test_one_that_hangs_holds_up_no_other(gate: threading.Event) -> None:
    questions = [(PARENT, lambda: "before"), (US, lambda: str(gate.wait(20))), (1, lambda: "behind")]
    assert aside.ask_all(questions) == {PARENT: "before", 1: "behind"}
    assert aside.ask(US, lambda: "asked", "not asked") == "not asked"
    gate.set()
    wait_for(lambda: not aside._open, "the answer")
    assert aside.ask(US, lambda: "asked", "not asked") == "asked"


def test_what_raises_is_no_answer(gate: threading.Event) -> None:
    def gone() -> str:
        raise ProcessLookupError

    assert aside.ask_all([(US, gone), (1, lambda: "there")]) == {1: "there"}
    assert len(aside._idle) == 1


def test_a_fault_is_raised_where_it_was_asked_for(gate: threading.Event) -> None:
    with pytest.raises(ZeroDivisionError):
        aside.ask(US, lambda: 1 // 0, 0)
    assert len(aside._idle) == 1
    assert aside.ask(US, lambda: "asked", "not asked") == "asked"


def test_an_owner_has_us_wait_for_a_few_alone(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(aside, "_owner", lambda pid: "hostile" if pid < 100 else "careful")
    monkeypatch.setattr(process, "waits_in_kernel", lambda pid: False)

    def question(pid: int) -> bool:
        asked.append(pid)
        return pid >= 100 or gate.wait(20)

    answers = aside.ask_all((pid, lambda pid=pid: question(pid)) for pid in range(95, 105))  # type: ignore[misc]
    assert sorted(answers) == [100, 101, 102, 103, 104]
    assert len([pid for pid in asked if pid < 100]) == aside.WAITS_AT_ONCE
    assert aside.ask(50, lambda: "asked", "not asked") == "not asked"
    assert aside.ask(150, lambda: "asked", "not asked") == "asked"


def test_one_that_waits_for_a_processor_is_waited_for(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside._Asker, "hangs", False)
    assert aside.ask(US, lambda: threading.Event().wait(0.1), True) is False


def test_of_one_that_has_ended_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = 1 << 22
    monkeypatch.setattr(process, "_starts", {gone: b"77", US: b"1"})
    assert process.starts_of([gone])[gone] is None
    monkeypatch.setattr(process, "ask_all", lambda questions: {})
    monkeypatch.setattr(process, "_status", lambda pid: {"State": "D (disk sleep)", "PPid": "1", "Threads": "1"})
    assert process.start_of(gone) == 0  # another one, which hangs
    assert process.start_of(US) == 1


def test_what_is_known_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_starts", {})
    started, family = process.start_of(US), process.descendants([PARENT])[PARENT]
    monkeypatch.setattr(process, "ask_all", lambda questions: {})
    assert process.start_of(US) == started
    assert process.starts_of([US, 1 << 22]) == {US: started, 1 << 22: None}
    assert US in process.descendants([PARENT])[PARENT]
    assert US in family
