"""The thread that asks a rule for its admission, a few times a second. The library decides by the newest answer: no
launch waits for this thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Callable

from runlist.errors import RunlistError
from runlist.log import say
from runlist.operations.admission import COMPLEMENTS, Admission, wrong
from runlist.operations.rules.interface import LEAST_EVERY_S, STALL_S, Model, Rule, wrong_every
from runlist.plugins import line_of

FALLBACK = Admission(COMPLEMENTS)
"""In force in place of a rule that was dropped."""


class Feedback:
    """Keeps a rule's answers in force. `look` makes the model; `admit` takes an answer that differs from the last."""

    def __init__(self, rule: Rule, look: Callable[[], Model], admit: Callable[[Admission], None]) -> None:
        self._rule, self._look, self._admit = rule, look, admit
        self._admitted: Admission | None = None
        self._dropped = False
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked = _Asked(rule)
        self._every_s = LEAST_EVERY_S

    def start(self) -> None:
        """Ask once, at once; then from a thread, if the rule wants to be asked again."""
        try:
            again = self._ask() and self._rule.every_s is not None
        except BaseException:
            self._asked.end()
            raise
        if again:
            self._thread = threading.Thread(target=self._work, daemon=True, name="operations-rule")
            self._thread.start()
        else:
            self._asked.end()

    def stop(self) -> None:
        """Ask no more; may be called again."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def why(self) -> str:
        """What the rule says of its last answer. One that fails at that is dropped, too."""
        if self._dropped:
            return ""
        try:
            return str(self._rule.why())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a rule may be anybody's
            with contextlib.suppress(RunlistError):
                self._drop(_told(error))
            return ""

    def _work(self) -> None:
        with contextlib.suppress(RunlistError):  # the scheduler was stopped by other hands, such as a C library's
            while self._asks_again() and not self._end.wait(self._every_s) and self._ask():
                pass
        self._asked.end()

    def _asks_again(self) -> bool:
        """Whether the rule, which may change its mind, wants to be asked again."""
        every_s = self._rule.every_s
        if why := wrong_every(every_s):
            return self._drop(why)
        self._every_s = max(LEAST_EVERY_S, every_s or 0)
        return every_s is not None

    def _ask(self) -> bool:
        """Whether the rule is still one."""
        answer = self._asked.answer(self._look())
        if self._dropped:
            return False
        if isinstance(answer, BaseException):
            return self._drop(_told(answer))
        if not isinstance(answer, Admission):
            return self._drop(f"it answered {type(answer).__name__}, not Admission")
        if why := wrong(answer):
            return self._drop(why)
        if answer != self._admitted:
            self._put(answer)
        return True

    def _drop(self, why: str) -> bool:
        self._dropped = True
        say(f"the rule {type(self._rule).__name__} is dropped, complements go from now on: {why}")
        self._put(FALLBACK)
        return False

    def _put(self, answer: Admission) -> None:
        if not self._end.is_set():
            self._admit(answer)
            self._admitted = answer


def _told(error: BaseException) -> str:
    """What a rule raised, in a line."""
    if isinstance(error, _Stalled):
        return f"it took more than {STALL_S:g} s for an answer"
    line = line_of(error.__traceback__)
    try:
        return f"{line}{type(error).__name__}: {error}"
    except Exception:  # its words may fail, too
        return f"{line}{type(error).__name__}"


class _Stalled(BaseException):
    """Raised inside a rule that takes too long. Not an Exception, so that its loop does not swallow it."""


class _Asked:
    """A rule, and a thread that asks it, so that one that never answers keeps nobody waiting."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._models: queue.SimpleQueue[Model | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._began_s: float | None = None

    def answer(self, model: Model) -> object:
        """The answer, or what the rule raised; a _Stalled after STALL_S, and then it is never heard again."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="operations-rule-asked")
            self._thread.start()
        self._began_s = None
        self._models.put(model)
        while not self._stalled():
            for limit_s in (STALL_S, 0):  # it may have come while others had the interpreter
                try:
                    return self._answers.get(timeout=limit_s)
                except queue.Empty:
                    pass
        self.end(patience_s=0)
        return _Stalled()

    def _stalled(self) -> bool:
        """Whether the rule, and not the thread before it had the processor, takes too long."""
        return self._began_s is not None and time.monotonic() - self._began_s >= STALL_S

    def end(self, patience_s: float = STALL_S) -> None:
        """Ask no more; may be called again. A rule that goes on for so long is interrupted, and left to itself."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._models.put(None)
        thread.join(patience_s)
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stalled))

    def _work(self) -> None:
        with contextlib.suppress(_Stalled):
            while (model := self._models.get()) is not None:
                self._began_s = time.monotonic()
                try:
                    answer: object = self._rule.admission(model)
                except _Stalled:
                    return
                except BaseException as error:  # a rule may be anybody's
                    answer = error
                self._answers.put(_Stalled() if self._stalled() else answer)
