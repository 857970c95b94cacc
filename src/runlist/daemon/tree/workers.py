"""Looking at processes in threads, so that no user and no tree holds up another.

Two looks of an owner run at a time, one of a tree; the others wait for them. One that takes too long, because the
kernel waits for the process that is looked at, is left alone with its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from runlist.errors import RunlistError
from runlist.proc.owners import Owner

LOOKS_OF_ONE = 2
PATIENCE_S = 15.0
MAX_STUCK = 8
"""How many looks at the processes of one owner may be stuck; then there are no further ones."""


_Result = TypeVar("_Result")


class Workers:
    """The threads, by owner and tree, in the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._owners: WeakValueDictionary[Owner, asyncio.Semaphore] = WeakValueDictionary()
        self._trees: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._running: Counter[Owner] = Counter()

    async def run(
        self,
        owner: Owner,
        tree: int,
        prepare: Callable[[], Callable[[], _Result]],
        discard: Callable[[_Result], None] = lambda _: None,
    ) -> _Result:
        """What a look returns or raises, in a thread, for a process of that owner below root `tree`. `prepare` is
        called when its turn has come, and returns the look. A result that nobody waits for any more goes to `discard`.
        Raises RunlistError for one that does not come.
        """
        lock = self._trees.setdefault(tree, asyncio.Lock())
        room = self._owners.setdefault(owner, asyncio.Semaphore(LOOKS_OF_ONE))
        async with lock, room:
            if self._running[owner] >= MAX_STUCK:
                raise RunlistError(f"{MAX_STUCK} processes of {owner} do not let themselves be looked at: end them")
            future: asyncio.Future[_Result] = self._loop.create_future()
            threading.Thread(target=self._work, args=(future, prepare()), daemon=True).start()
            self._running[owner] += 1
            future.add_done_callback(lambda _: self._leave(owner))
            try:
                return await asyncio.wait_for(asyncio.shield(future), PATIENCE_S)
            except TimeoutError:
                raise RunlistError("a look at it takes too long: the kernel waits for it") from None
            finally:
                if not future.done():
                    future.add_done_callback(lambda late: None if late.exception() else discard(late.result()))

    def _leave(self, owner: Owner) -> None:
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def _work(self, future: asyncio.Future[_Result], work: Callable[[], _Result]) -> None:
        say: Callable[[], None]
        try:
            result = work()
        except BaseException as error:
            problem = error
            say = lambda: future.set_exception(problem)  # noqa: E731
        else:
            say = lambda: future.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(say)
