"""Sequences of kernels that stop between blocks, and resume at the kernel and the block where they stopped."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runlist.blocks import page as pages
from runlist.blocks.device import Device, Dim, Function, Memory, Shape, shape
from runlist.blocks.page import Page, Progress, Stopper
from runlist.errors import RunlistError, UsageError

AHEAD = 32
"""Kernels on the stream at once. A stop waits for those behind the one that it cuts to come and go, some microseconds
each; a GPU waits for the host once in so many.
"""

_WORD = 8


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a sequence stopped: its first `step` kernels (and calls) ended, and of the one that follows the first
    `next` logical blocks. Plain numbers, which may be kept beside a copy of the data.
    """

    step: int
    next: int


@dataclass(frozen=True, slots=True)
class _Kernel:
    function: Function
    grid: Shape
    block: Shape
    arguments: tuple[Any, ...]
    shared: int
    physical: int

    @property
    def total(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


class BLPExecutor:
    """Block-level preemption of a sequence of resumable kernels, in the order in which they are added.

    `page` is what others stop it by: a file, or a Page that several of this process share; with none it has one of its
    own. With `anew` a kernel that was stopped begins from its first block again, as a reset does: right only where its
    blocks may run twice.

    `ahead` is how many kernels it queues at a time; whoever waits for it queues the next. What it does to the device's
    stream is to be done by one thread at a time; `stop`, `resume` and `progress` may be called by any.
    """

    def __init__(
        self, device: Device, page: str | Path | Page | None = None, *, anew: bool = False, ahead: int = AHEAD
    ) -> None:
        if ahead < 1:
            raise UsageError("at least one kernel has to be queued at a time")
        self.device = device
        self._ahead = ahead
        self._own_page = not isinstance(page, Page)
        self.page = page if isinstance(page, Page) else Page(page)
        try:
            self._place = self.page.claim(pages.RUNS)
            self._stops = device.share(self.page.address, pages.SIZE) + pages.STOPS
        except BaseException:
            if self._own_page:
                self.page.close()
            raise
        self._stopper: Stopper | None = None
        self._anew = anew
        self._steps: list[_Kernel | Callable[[], object]] = []
        self._words: Memory | None = None  # whether one has left early, then how many blocks of each step were taken
        self._lock, self._asking = threading.RLock(), threading.Lock()
        self._at = Saved(0, 0)
        self._queued = 0  # steps before this one are on the stream, or have ended
        self._physical: int | None = None
        self._begun = self._flying = self._in_run = self._closed = False
        self._epoch = 0

    def add(
        self,
        function: Function,
        grid: Dim,
        block: Dim,
        arguments: Sequence[Any],
        *,
        shared: int = 0,
        physical: int | None = None,
    ) -> None:
        """Adds a resumable kernel, what `resumable` made or its `function`: its logical grid, its block, its own
        arguments, bytes of dynamic shared memory, and how many physical blocks run it (default: as many as the GPU has
        room for).
        """
        _check_physical(physical)
        if shared < 0:
            raise UsageError(f"no block has {shared} bytes of shared memory")
        function = getattr(function, "function", function)
        threads = shape(block)
        room = physical or self.device.fitting(function, threads, shared)
        self._append(_Kernel(function, shape(grid), threads, tuple(arguments), shared, room))

    def call(self, function: Callable[[], object]) -> None:
        """Adds a call of the host, such as a library's kernels on the same stream. It happens once all before it has
        ended, and is not stopped in the middle; what it queues may still run when the next kernel is queued behind it.
        """
        if not callable(function):
            raise TypeError(f"a call of the host is a function, not {function!r}")
        self._append(function)

    def clear(self) -> None:
        """Forgets all steps. Raises RunlistError while some may run."""
        with self._lock:
            self._check_off()
            self._steps.clear()
            self._begun = False

    def start(self) -> None:
        """Queues the sequence from its beginning."""
        with self._lock:
            self._check_off()
            self._go(Saved(0, 0), None)

    def run(self) -> None:
        """From the beginning to the end, through all stops: waits until nobody asks for one, and goes on."""
        self._in_run = True
        try:
            self.start()
            while not self.wait():
                self.page.until_free()
                with self._lock:
                    if not self._flying:
                        self._go(self._at, self._physical)
        finally:
            self._in_run = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until all has ended, which it tells, or has left the GPU because of a stop. Raises RunlistError when
        neither is so within the time.
        """
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                if not self._flying:
                    return self._begun and self._at.step == len(self._steps)
            if not self.device.synchronize(None if ends is None else max(0.0, ends - time.monotonic())):
                raise RunlistError(f"a block runs for more than {timeout_s:g} s: kernels stop between blocks only")
            with self._lock:
                if self._flying:
                    self._settle()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Asks for a stop and waits until it is off the GPU. Whether something is left to do."""
        with self._asking:  # not behind a call of the host, which may take long
            if self._stopper is None:
                self._stopper = Stopper(self.page)
            self._stopper.stop()
        return not self.wait(timeout_s)

    def resume(self, saved: Saved | None = None, *, physical: int | None = None) -> None:
        """Lets go of its own stop, and goes on where it stopped, or at `saved`; with `physical` blocks for each kernel
        instead of those it had. Its kernels come and go while others still ask for a stop, and `wait` tells that:
        `page.until_free` waits until they have let go.
        """
        _check_physical(physical)
        with self._asking:
            if self._stopper is not None:
                self._stopper.resume()
        with self._lock:
            if saved is not None:
                self._check_off()
                self._check_saved(saved)
            if self._in_run and saved is None:  # the thread that runs it goes on
                self._physical = physical
            elif not self._flying and (saved is not None or self._begun):
                self._go(saved or self._at, physical)

    def save(self) -> Saved:
        """Where it stopped. Raises RunlistError while it runs."""
        with self._lock:
            self._check_off()
            return self._at

    def progress(self) -> Progress:
        """How far it was when it was last looked at."""
        with self._lock:
            step, done = self._at.step, self._at.next
            one = self._steps[step] if step < len(self._steps) else None
            total = one.total if isinstance(one, _Kernel) else 0
            return Progress(os.getpid(), self._epoch, step, len(self._steps), done, total)

    def close(self) -> None:
        """Stops, and gives back what it has of the page."""
        if self._closed:
            return
        if self._flying:
            self.stop()
        self._closed = True
        if self._stopper is not None:
            self._stopper.close()
        self.device.unshare(self.page.address)
        self.page.give_back(self._place)
        if self._own_page:
            self.page.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, step: _Kernel | Callable[[], object]) -> None:
        with self._lock:
            self._check_off()
            self._steps.append(step)
            self._begun = False

    def _check_off(self) -> None:
        if self._closed:
            raise RunlistError("this sequence was closed: make another")
        if self._flying:
            raise RunlistError("kernels of this sequence may be running: wait for them, or stop them")

    def _check_saved(self, saved: Saved) -> None:
        step = self._steps[saved.step] if 0 <= saved.step < len(self._steps) else None
        most = step.total if isinstance(step, _Kernel) else 0
        if not 0 <= saved.step <= len(self._steps) or not 0 <= saved.next <= most:
            raise UsageError(f"{saved} is not in this sequence of {len(self._steps)}")

    def _go(self, at: Saved, physical: int | None) -> None:
        """Begins or goes on there."""
        self._begun, self._at, self._physical = True, at, physical
        self.page.asked()  # kernels would see what a dead one asks for
        self._reset(at)
        self._queue()

    def _queue(self) -> None:
        """Queues what follows, up to a call. Where that is a call, it happens here."""
        while self._at.step < len(self._steps) and not isinstance(step := self._steps[self._at.step], _Kernel):
            if self.page.asked():
                break
            step()
            self._at = Saved(self._at.step + 1, 0)
        first = self._queued = self._at.step
        kernels = self._steps[first : first + self._ahead]
        if not kernels or not isinstance(kernels[0], _Kernel):
            self._tell()
            return
        assert self._words is not None
        self._epoch += 1
        self._flying = True
        self.page.write(self._place, True)
        self._tell()
        try:
            for kernel in kernels:
                if not isinstance(kernel, _Kernel):
                    break
                self._launch(kernel, self._words.address + (1 + self._queued) * _WORD, self._words.address)
                self._queued += 1
        except BaseException:  # such as arguments that are none: what was queued is seen to its end
            self.device.synchronize()
            self._flying = self._begun = False
            self.page.write(self._place, False)
            raise

    def _launch(self, kernel: _Kernel, counter: int, halted: int) -> None:
        self.device.launch(
            kernel.function,
            (min(kernel.total, self._physical or kernel.physical), 1, 1),
            kernel.block,
            (*kernel.arguments, counter, halted, self._stops, *kernel.grid),
            kernel.shared,
        )

    def _reset(self, at: Saved) -> None:
        """The words on the device, for going on there: nobody has left, and of what follows nothing was taken. Nobody
        asks for those of what has ended.
        """
        words = [0] * (1 + len(self._steps))
        if at.step < len(self._steps):
            words[1 + at.step] = at.next
        data = struct.pack(f"={len(words)}Q", *words)
        if self._words is None or self._words.size < len(data):
            self._words = self.device.allocate(2 * len(data))
        self.device.write(self._words, data)

    def _settle(self) -> None:
        """All that was queued has left the GPU: sees how far it came, and queues what follows."""
        assert self._words is not None
        self.page.write(self._place, False)  # others wait for this
        self._flying = False
        counted = struct.unpack_from(f"={1 + len(self._steps)}Q", self.device.read(self._words))
        for number in range(self._at.step, self._queued):
            kernel = self._steps[number]
            assert isinstance(kernel, _Kernel)
            if counted[1 + number] < kernel.total:
                self._at = Saved(number, 0 if self._anew else counted[1 + number])
                self._tell()
                return
        self._at = Saved(self._queued, 0)
        self._queue()

    def _tell(self) -> None:
        self.page.tell(self._place, self.progress())


def _check_physical(physical: int | None) -> None:
    if physical is not None and physical < 1:
        raise UsageError("a kernel needs at least one physical block")
