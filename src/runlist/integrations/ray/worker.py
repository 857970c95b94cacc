"""A worker of Ray: what it is managed as, from task to task."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from runlist import managing
from runlist.errors import NotSupportedError, RunlistError
from runlist.integrations.gpu_sizes import gpu_sizes
from runlist.integrations.ray.shares import Options, settings_of, share_of
from runlist.planes.registry import choose_plane

PATIENCE_S = 5.0
"""How long a task waits for the daemon's answer: then it runs as it would without us."""


LOOK_S = 30.0
"""How often a daemon that was told is looked for: one that was started again knows nothing of a task that goes on."""


class Worker:
    """This process, whose tasks come one after the other. An actor has one all its life."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._said: set[str] = set()
        self._layer: managing.Layer | None = None
        self._sizes: dict[str, int] | None = None
        self._looking: threading.Thread | None = None

    def next_task(self, resources: Mapping[str, float], gpus: Sequence[object]) -> None:
        """Have the process managed as its next task asked; one that asked for no GPU has what the process had before
        any did.
        """
        before, self._layer = self._layer, None
        share = share_of(resources, gpus)
        if share > 0:
            try:
                self._layer = self._begin(share, gpus)
            except RunlistError as error:
                self.say_once(f"Ray's num_gpus is not kept: {error}")
            else:
                self._look_for_others()
        if before is not None:
            before.end()

    def _look_for_others(self) -> None:
        """From now on, in a thread that waits nearly all the time: an actor may live for weeks."""
        if self._looking is None:
            self._looking = threading.Thread(target=self._renew, name="runlist-ray", daemon=True)
            self._looking.start()

    def _renew(self) -> None:
        while True:
            if (layer := self._layer) is not None:
                with contextlib.suppress(RunlistError, OSError):  # none runs now, or it refuses: the task goes on
                    layer.renew()
            time.sleep(LOOK_S)

    def say_once(self, line: str) -> None:
        """Say a thing once in the life of this worker."""
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _begin(self, share: float, gpus: Sequence[object]) -> managing.Layer:
        settings = settings_of(share, self._options, self._memory(gpus) if self._options.memory else None)
        try:
            return managing.begin(settings, patience_s=PATIENCE_S)
        except NotSupportedError as error:
            if settings.pop("memory", None) is None:
                raise
            self.say_once(f"num_gpus is no memory quota: {error}")
            return managing.begin(settings, patience_s=PATIENCE_S)

    def _memory(self, gpus: Sequence[object]) -> int | None:
        """The memory of the smallest of these GPUs in bytes, and None where nobody knows it."""
        if self._sizes is None:  # asked once: afterwards a quota is what the driver tells
            try:
                self._sizes = gpu_sizes(choose_plane())
            except RunlistError as error:
                self._sizes = {}
                self.say_once(f"num_gpus is no memory quota: {error}")
        found = (_size_of(str(gpu), self._sizes) for gpu in gpus)
        return min((size for size in found if size is not None), default=None)


def _size_of(gpu: str, sizes: Mapping[str, int]) -> int | None:
    """Of a GPU by its index, its UUID, or the beginning of that, as CUDA_VISIBLE_DEVICES may name it."""
    if gpu in sizes:
        return sizes[gpu]
    begun = [size for name, size in sizes.items() if gpu.startswith("GPU-") and name.startswith(gpu)]
    return begun[0] if len(begun) == 1 else None
