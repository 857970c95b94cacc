"""The thread that asks a rule for its admission, a few times a second. The library decides by the newest answer: no
launch waits for this thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from runlist.errors import RunlistError
from runlist.log import say
from runlist.operations.admission import ANY, COMPLEMENTS, LONGEST_REST_NS, Admission
from runlist.operations.rules.interface import LEAST_EVERY_S, STALL_S, Model, Rule
from runlist.plugins import line_of

FALLBACK = Admission(COMPLEMENTS)
"""In force in place of a rule that was dropped."""


class Feedback:
    """Keeps a rule's answers in force. `look` makes the model; `admit` takes an answer that differs from the last."""

    def __init__(self, rule: Rule, look: Callable[[], Model], admit: Callable[[Admission], None]) -> None:
        self._rule, self._look, self._admit = rule, look, admit
        self._admitted: Admission | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Ask once, at once; then from a thread, if the rule wants to be asked again."""
        if self._ask() and self._rule.every_s is not None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="operations-rule")
            self._thread.start()

    def stop(self) -> None:
        """Ask no more; may be called again."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * STALL_S)  # one that hangs is left to itself: it is never heard again

    def _work(self) -> None:
        every_s = max(LEAST_EVERY_S, self._rule.every_s or 0)
        with contextlib.suppress(RunlistError):  # the scheduler was stopped by other hands, such as a C library's
            while not self._end.wait(every_s) and self._ask():
                pass

    def _ask(self) -> bool:
        """Whether the rule is still one."""
        model = self._look()
        began_s = time.monotonic()
        try:
            answer = self._rule.admission(model)
            _check(answer)
        except Exception as error:  # a rule may be anybody's
            return self._drop(f"{line_of(error.__traceback__)}{type(error).__name__}: {error}")
        if (took_s := time.monotonic() - began_s) > STALL_S:
            return self._drop(f"it took {took_s:.2f} s for an answer")
        if answer != self._admitted:
            self._put(answer)
        return True

    def _drop(self, why: str) -> bool:
        say(f"the rule {type(self._rule).__name__} is dropped, complements go from now on: {why}")
        self._put(FALLBACK)
        return False

    def _put(self, answer: Admission) -> None:
        if not self._end.is_set():
            self._admit(answer)
            self._admitted = answer


def _check(answer: object) -> None:
    if not isinstance(answer, Admission):
        raise TypeError(f"it answered {type(answer).__name__}, not Admission")
    if not 0 <= answer.bits() < 1 << 9:
        raise ValueError("an admission names pairs of Bound")
    for name, kind, least, most in _NUMBERS:
        number = getattr(answer, name)
        if not isinstance(number, kind) or not (number is None or least <= number <= most):
            raise ValueError(f"no admission has {name}={number}")


_NUMBERS: tuple[tuple[str, Any, int, int], ...] = (
    ("sms", int, 0, ANY),
    ("gate_ns", int | None, -1, (1 << 63) - 1),
    ("ahead_ns", int | None, 1, (1 << 63) - 1),
    ("rest_ns", int, 0, LONGEST_REST_NS),
)
"""What is a number in an admission, from which to which."""
