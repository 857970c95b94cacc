"""Preemption between the kernels of a library, which cannot be stopped inside: what follows is held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from runlist.blocks import page as pages
from runlist.blocks.page import Page

Wait = Callable[[], object]

_GROUP = 4
"""Steps that are waited for together."""
_GROUPS = 2
"""How many of them may be on the GPU: a stop waits for so many, and the GPU for none."""


class Between:
    """One who runs kernels by a page of `runlist.blocks`, and asks it before each step, such as a layer.

    `mark` is called behind some steps; what it returns waits until all before it has ended. `synchronize` waits for
    all.
    """

    def __init__(self, page: Page, mark: Callable[[], Wait], synchronize: Wait) -> None:
        self._page, self._mark, self._synchronize = page, mark, synchronize
        self._place = page.claim(pages.RUNS)
        self._queued: deque[Wait] = deque()
        self._steps = 0
        self.stops = 0
        """How often it was held back in the middle."""

    def begin(self) -> None:
        """Work is to be queued: waits until nobody asks for a stop."""
        while True:
            self._page.write(self._place, True)
            if not self._page.asked():  # whoever asks from now on sees that we run
                return
            self._page.write(self._place, False)
            self._page.until_free()

    def step(self) -> None:
        """The next step is to be queued."""
        if self._page.asked():
            self.stops += 1
            self.end()
            self.begin()
        self._steps += 1
        if self._steps % _GROUP == 0:
            self._queued.append(self._mark())
            if len(self._queued) > _GROUPS:
                self._queued.popleft()()

    def end(self) -> None:
        """Waits for what was queued, and says that it has left the GPU."""
        self._synchronize()
        self._queued.clear()
        self._page.write(self._place, False)

    def close(self) -> None:
        """Gives its place back."""
        self._page.give_back(self._place)
