"""Asking the kernel aside. Of a process in the middle of its exec it does not tell what that has open, nor, since
Linux 6.18, when it began and whose child it is, until that goes on; and one that closes a file there whose server it is
itself hangs for as long as it likes.

Questions are asked one after the other in a thread, which is left alone with one that is not answered in time. Nothing
more is asked of such a process, and an owner of such processes is waited for ever more rarely.

This is not one with `proc.patience` and `tree.workers`, since they give up for other reasons: here a thread that the
kernel holds (in a batch whose other answers come at once), there one that had a processor and no answer for 0.1 s,
though nothing may be wrong with it, and in `workers` a look of 15 s for which nobody's loop stands still. One
mechanism would take all three clocks and three ways to count against an owner as arguments, and would be no shorter
than the three.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from runlist.rate import Rate

PATIENCE_S = 0.05
"""So long one question may take that the kernel keeps waiting. One that waits for a processor may take longer."""
LONGEST_S = 5.0

MOST_OPEN = 8
"""Of an owner, questions that are not answered."""
WAITS_AT_ONCE, WAITS_A_SECOND = 4, 0.2
"""So often an owner has us wait."""

_Answer = TypeVar("_Answer")
Question = tuple[int, Callable[[], _Answer]]
"""About a process, by its id."""


class _Batch(Generic[_Answer]):
    """Questions that are asked one after the other; `at` is the place of the present one."""

    def __init__(self, questions: list[Question[_Answer]]) -> None:
        self.questions = questions
        self.answers: dict[int, _Answer] = {}
        self.fault: BaseException | None = None
        self.at = 0
        self.over = threading.Event()
        self.left = False
        self.lock = threading.Lock()

    def run(self) -> None:
        while self._is_on():
            pid, question = self.questions[self.at]
            found: list[_Answer] = []
            try:
                found.append(question())
            except OSError:
                pass
            except BaseException as fault:  # whoever asked is to have it, as if there were no thread
                self.fault = fault
            with self.lock:
                if self.left:
                    _open.pop(pid, None)
                    return
                if found:
                    self.answers[pid] = found[0]
                self.at += 1

    def _is_on(self) -> bool:
        if self.at < len(self.questions) and self.fault is None:
            return True
        self.over.set()
        return False

    def leave(self, owner: object) -> int | None:
        """Go on without the present answer, which a process of this owner owes, unless all are there; returns of which
        process it is.
        """
        with self.lock:
            if self.at == len(self.questions):
                return None
            self.left = True
            pid = self.questions[self.at][0]
            _open[pid] = owner
            return pid


class _Asker:
    """The thread."""

    def __init__(self) -> None:
        self._batches: SimpleQueue[_Batch[Any]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="asks")
        self._thread.start()

    def ask(self, batch: _Batch[Any]) -> None:
        self._batches.put(batch)

    @property
    def hangs(self) -> bool:
        """Whether it waits in the kernel, and for no processor."""
        path = Path(f"/proc/self/task/{self._thread.native_id}/stat")
        try:
            return path.read_bytes().rpartition(b")")[2].split()[0] == b"D"
        except OSError:
            return False

    def _work(self) -> None:
        while True:
            batch = self._batches.get()
            batch.run()
            if batch.left:
                return


_serves = False
_idle: list[_Asker] = []
_open: dict[int, object] = {}  # the owners of processes of which a question is not answered
_waited_for: dict[object, Rate] = {}  # how often each owner may still have us wait
os.register_at_fork(after_in_child=_idle.clear)


def wait_for_nobody() -> None:
    """For who serves others: from now on questions are asked aside."""
    global _serves
    _serves = True


def ask(pid: int, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """The answer to a question about a process, or `otherwise` where none comes in time, or it raises OSError."""
    return ask_all([(pid, question)]).get(pid, otherwise)


def ask_all(questions: Iterable[Question[_Answer]]) -> Mapping[int, _Answer]:
    """The answers to questions about processes, of those that are answered in time and raise no OSError. Who serves
    nobody waits for all of them.
    """
    answers: dict[int, _Answer] = {}
    if not _serves:
        for pid, question in questions:
            with contextlib.suppress(OSError):
                answers[pid] = question()
        return answers
    rest = _worth_asking(questions)
    while rest:
        batch = _Batch(rest)
        try:
            asker = _free_one()
        except RuntimeError:  # there is no room for a thread
            break
        asker.ask(batch)
        stuck = _wait(asker, batch)
        answers |= batch.answers
        if stuck is None:
            _idle.append(asker)
            if batch.fault is not None:
                raise batch.fault
            break
        rest = _worth_asking(rest[batch.at + 1 :])
    return answers


def _free_one() -> _Asker:
    with contextlib.suppress(IndexError):  # others may be as quick
        return _idle.pop()
    return _Asker()


def _wait(asker: _Asker, batch: _Batch[Any]) -> int | None:
    """Wait for the answers; returns the process of which none comes."""
    at, waited_s = -1, 0.0
    while not batch.over.wait(PATIENCE_S):
        waited_s = waited_s + PATIENCE_S if batch.at == at else 0.0
        at = batch.at
        if waited_s >= LONGEST_S or (waited_s and asker.hangs):
            owner = _owner(batch.questions[batch.at][0]) if batch.at < len(batch.questions) else None
            if (pid := batch.leave(owner)) is None:
                break
            _waited_for.setdefault(owner, Rate(WAITS_A_SECOND, WAITS_AT_ONCE)).spend(1)
            return pid
    return None


def _worth_asking(questions: Iterable[Question[_Answer]]) -> list[Question[_Answer]]:
    """Those of which an answer may come."""
    if not _waited_for:
        return list(questions)
    for owner in [owner for owner, rate in list(_waited_for.items()) if rate.is_full]:
        if owner not in _open.values():
            _waited_for.pop(owner, None)
    return [(pid, question) for pid, question in questions if pid not in _open and _may_answer(pid)]


def _may_answer(pid: int) -> bool:
    from runlist.proc.process import waits_in_kernel

    owner = _owner(pid)
    rate = _waited_for.get(owner)
    if rate is None:
        return True
    many = list(_open.values()).count(owner) >= MOST_OPEN
    return not many and rate.left >= 1 and not waits_in_kernel(pid)


def _owner(pid: int) -> object:
    from runlist.proc.owners import Owner
    from runlist.proc.process import owner_of

    uid = owner_of(pid)
    return None if uid is None else Owner.of(pid, uid)
