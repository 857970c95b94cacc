"""The weather model on a device: what it keeps there, and which kernels of kernels/weather.cu make a step."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.gpreempt import atmosphere
from bench.papers.gpreempt.atmosphere import Array, Case
from runlist.blocks import source
from runlist.blocks.device import Device, Memory, Shape
from runlist.blocks.page import Page
from runlist.blocks.sequence import BLPExecutor

SOURCE = Path(__file__).parent / "kernels" / "weather.cu"

DAMPING = 0.05
"""The part of a wave of two cells that a step takes away."""

_STAGES = (1 / 3, 1 / 2, 1.0)
_BLOCK: Shape = (64, 4, 1)
_LINE: Shape = (128, 1, 1)
_ROWS = 64  # of a column, for one thread of the digest
_WORDS = 64  # that the digest is spread over
_RENEWING = 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a sequence."""

    kernel: str
    grid: Shape
    block: Shape
    arguments: tuple[Any, ...]


class Plain:
    """The kernels as they are, queued on the device's stream."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._module = device.compile(SOURCE.read_text(), SOURCE.name, rounding(device))

    def sequence(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """What queues them."""
        kernels = [(self._module.function(each.kernel), each) for each in launches]

        def queue() -> None:
            for function, each in kernels:
                self._device.launch(function, each.grid, each.block, each.arguments)

        return queue

    def close(self) -> None:
        """Nothing to give back."""


class Stoppable:
    """The same kernels made resumable. A sequence is waited for, through all stops that the page asks for."""

    def __init__(self, device: Device, page: Page) -> None:
        self._device, self._page = device, page
        text = source.resumable(SOURCE.read_text(), label=SOURCE.name)
        self._module = device.compile(text, SOURCE.name, rounding(device))
        self.executors: list[BLPExecutor] = []

    def sequence(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """What runs them to their end."""
        executor = BLPExecutor(self._device, self._page)
        self.executors.append(executor)
        for each in launches:
            executor.add(self._module.function(each.kernel), each.grid, each.block, each.arguments)
        return executor.run

    def close(self) -> None:
        """Gives back what they have of the page."""
        for each in self.executors:
            each.close()


Kernels = Plain | Stoppable


def rounding(device: Device) -> tuple[str, ...]:
    """Each sum and product rounded by itself: then a compiler has no choice that changes bits."""
    return ("-ffp-contract=off",) if device.name == "host" else ("--fmad=false",)


class Model:
    """A case on a grid of `nx` x `nz` cells, in the memory of a device. `first` is atmosphere.averages of it, where
    that is there already.
    """

    def __init__(
        self, device: Device, kernels: Kernels, case: Case, nx: int, nz: int, first: Array | None = None
    ) -> None:
        self._device, self._kernels, self.case, self._shape = device, kernels, case, (nz, nx)
        self._dx, self._dz = case.length / nx, case.height / nz
        self.seconds = case.seconds(self._dx, self._dz)
        first = atmosphere.averages(case, nx, nz) if first is None else first
        self._cells = first.size
        self._state, self._between, self._first = (self._kept(first) for _ in range(3))
        self._flux = device.allocate(4 * (nz + 1) * (nx + 1) * 8)
        density, heat = atmosphere.background_cells(case, nz)
        self._column = tuple(map(self._kept, (density, heat, atmosphere.pressure(heat))))
        density, heat = case.background(np.linspace(0.0, case.height, nz + 1))
        self._faces = tuple(map(self._kept, (density, heat, atmosphere.pressure(heat))))
        self._lift = None if case.lift is None else self._kept(self._lifted(case))
        self._sums = device.allocate(_WORDS * 8)
        self._seen = mmap.mmap(-1, mmap.PAGESIZE)
        self._seen_at = ctypes.addressof(ctypes.c_char.from_buffer(self._seen))
        shown = device.share(self._seen_at, mmap.PAGESIZE)
        across, up = self._sweep_x(), self._sweep_z()
        self._orders = kernels.sequence([*across, *up]), kernels.sequence([*up, *across])
        self._digest = kernels.sequence(self._digesting(shown))
        renewing = Launch("renew", (_RENEWING, 1, 1), _LINE, (self._first, self._state, self._cells))
        self._renew = kernels.sequence([renewing])
        self.steps = 0

    def step(self) -> None:
        """Advances by `seconds`; which direction comes first changes each time."""
        self._orders[self.steps % 2]()
        self.steps += 1

    def sweep(self, direction: str, begin: int = 0) -> None:
        """The part of a step in one direction, `x` or `z`, from one of its nine kernels on: for looks at a step."""
        launches = self._sweep_x() if direction == "x" else self._sweep_z()
        self._kernels.sequence(launches[begin:])()

    def renew(self) -> None:
        """Begin again."""
        self._renew()
        self.steps = 0

    def digest(self) -> None:
        """Makes the digest of the state, which `digested` then tells."""
        self._digest()

    def digested(self) -> str:
        """The digest, once that has ended."""
        return f"{sum(struct.unpack_from(f'={_WORDS}Q', self._seen)) & (1 << 64) - 1:016x}"

    def state(self) -> Array:
        """A copy, as kernels/weather.cu has it."""
        nz, nx = self._shape
        return np.frombuffer(self._device.read(self._state), np.float64).reshape(4, nz + 4, nx + 4).copy()

    def flux(self) -> Array:
        """A copy of the last fluxes, [4][nz + 1][nx + 1]."""
        nz, nx = self._shape
        return np.frombuffer(self._device.read(self._flux), np.float64).reshape(4, nz + 1, nx + 1).copy()

    def totals(self) -> tuple[float, float]:
        """Mass and energy."""
        return atmosphere.totals(self.case, self.state())

    def close(self) -> None:
        """Nothing that was queued runs any more."""
        self._device.synchronize()
        self._device.unshare(self._seen_at)

    def _kept(self, array: Array) -> Memory:
        memory = self._device.allocate(array.nbytes)
        self._device.write(memory, array.tobytes())
        return memory

    def _lifted(self, case: Case) -> Array:
        nz, nx = self._shape
        assert case.lift is not None
        x, z = atmosphere.middles(nx) * self._dx, (np.arange(nz) + 0.5) * self._dz
        return np.ascontiguousarray(case.lift(*np.broadcast_arrays(x[None, :], z[:, None])))

    def _jet(self) -> tuple[int, int, float, float]:
        if self.case.jet is None:
            return 0, 0, 0.0, 0.0
        jet = self.case.jet
        return round(jet.bottom / self._dz), round(jet.top / self._dz), jet.speed, jet.temperature

    def _sweep_x(self) -> list[Launch]:
        nz, nx = self._shape
        edges = (*self._column[:2], nx, nz, *self._jet())
        return self._sweep("x", (-(-nz // _LINE[0]), 1, 1), edges, self._column, self._dx, 1, None, 0.0)

    def _sweep_z(self) -> list[Launch]:
        nz, nx = self._shape
        edges = (self._column[0], nx, nz)
        grid = (-(-nx // _LINE[0]), 1, 1)
        return self._sweep("z", grid, edges, self._faces, self._dz, nx + 1, self._lift, self.case.gravity)

    def _sweep(
        self,
        name: str,
        edges_grid: Shape,
        edges: tuple[Any, ...],
        background: tuple[Memory, ...],
        width: float,
        apart: int,
        lift: Memory | None,
        gravity: float,
    ) -> list[Launch]:
        """The three stages in one direction."""
        nz, nx = self._shape
        grid = (-(-(nx + 1) // _BLOCK[0]), -(-(nz + 1) // _BLOCK[1]), 1)
        damping = DAMPING * width / (16 * self.seconds)
        launches: list[Launch] = []
        now = self._state
        for part in _STAGES:
            into = self._state if part == _STAGES[-1] else self._between
            fluxes = (now, *background, self._flux, nx, nz, damping)
            seconds = part * self.seconds
            sums = (self._state, now, into, self._flux, self._column[0], lift, nx, nz, apart, seconds, width, gravity)
            launches += [
                Launch(f"edges_{name}", edges_grid, _LINE, (now, *edges)),
                Launch(f"flux_{name}", grid, _BLOCK, fluxes),
                Launch("add_up", grid, _BLOCK, sums),
            ]
            now = into
        return launches

    def _digesting(self, shown: int) -> list[Launch]:
        nz, nx = self._shape
        grid = (-(-nx // _BLOCK[0]), -(-nz // (_BLOCK[1] * _ROWS)), 1)
        return [
            Launch("zero", (1, 1, 1), _LINE, (self._sums, _WORDS)),
            Launch("digest", grid, _BLOCK, (self._state, self._sums, _WORDS, nx, nz)),
            Launch("show", (1, 1, 1), _LINE, (self._sums, shown, _WORDS)),
        ]
