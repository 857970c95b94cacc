"""Learning profiles while a program runs: from the library's log into the library, and into what is kept."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import time
from collections.abc import Callable, Iterable, Sequence

from runlist.errors import NotSupportedError, RunlistError
from runlist.log import say
from runlist.operations.device import Device
from runlist.operations.profiles import Learner, Profile, Store
from runlist.operations.profiles.store import LEARNED
from runlist.operations.record import Operation
from runlist.operations.tap import listening

_EVERY_S = 1.0


class Learning:
    """Runs from when it is made until `stop`, or the program's end. Kernels that were known at the begin stay as they
    are. `profile` takes what is learned, once a kernel.
    """

    def __init__(
        self, library: ctypes.CDLL, profile: Callable[..., None], store: Store, gpu: Device | None,
        known: Iterable[Profile],
    ) -> None:  # fmt: skip
        if gpu is None:
            raise NotSupportedError("nothing can be learned here: the driver does not name its GPU")
        self._profile, self._store, self._gpu = profile, store, gpu
        self._learner = Learner()
        self._known = {one.name for one in known}
        self._learned: set[str] = set()
        self._last_s = time.monotonic()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(listening(library, self._see))
        atexit.register(self.stop)

    def stop(self) -> None:
        """Keep what was learned; may be called again."""
        atexit.unregister(self.stop)
        self._stack.close()
        fresh = self._fresh()
        if not fresh:
            return
        self._known |= {one.name for one in fresh}
        try:
            self._store.put(self._gpu.name, fresh, LEARNED)
        except RunlistError as error:
            say(f"what was learned of kernels is lost: {error}")

    def _fresh(self) -> list[Profile]:
        return [one for one in self._learner.profiles() if one.name not in self._known]

    def _see(self, operations: Sequence[Operation], lost: int) -> None:
        del lost
        self._learner.see(operations)
        if time.monotonic() - self._last_s < _EVERY_S:
            return
        self._last_s = time.monotonic()
        for one in self._fresh():
            if one.name not in self._learned:
                self._learned.add(one.name)
                with contextlib.suppress(NotSupportedError):  # no room for more, or it was stopped
                    self._profile(one)
