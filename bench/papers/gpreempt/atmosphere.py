"""Cases of the weather program: what the air is like at first, and what rests. In metres, seconds, kelvins, kilograms.

The cases are those that models of this kind are usually tried with: warm air rises, cold air falls and spreads, both
meet, wind is lifted in stable air, a cold jet is blown in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CP, CV = 1004.0, 717.0
R = CP - CV
GAMMA = CP / CV
P0 = 1e5
GRAVITY = 9.8
C = P0 * (R / P0) ** GAMMA
"""The pressure is C (r t)^GAMMA."""

GROUND = 300.0
"""Kelvins."""

LENGTH, HEIGHT = 20_000.0, 10_000.0
COURANT = 1.0
"""Cells that sound goes in a step; some 1.2 would be too many."""

_GAUSS = (-np.sqrt(0.6) / 2, np.sqrt(0.6) / 2, 0.0), (5 / 18, 5 / 18, 8 / 18)
"""Points of a cell, from its middle in widths, and their weights. A mirror leaves sums in this order as they are."""


@dataclass(frozen=True)
class Air:
    """At points: what is kept of it (kernels/weather.cu). One number stands for the same everywhere."""

    density: Array
    """Beyond the background's."""
    across: Array
    """Momenta."""
    up: Array
    heat: Array
    """Density times potential temperature, beyond the background's."""


NONE: Array = np.zeros(())

Background = Callable[[Array], tuple[Array, Array]]
"""By heights: density, and density times potential temperature."""


@dataclass(frozen=True)
class Jet:
    """Wind that comes in from the left between two heights."""

    bottom: float
    top: float
    speed: float
    temperature: float


@dataclass(frozen=True)
class Case:
    """One of them. `air` is by x (0 in the middle), z and the background there; `lift` an acceleration by x and z."""

    background: Background
    air: Callable[[Array, Array, Array, Array], Air]
    lift: Callable[[Array, Array], Array] | None = None
    jet: Jet | None = None
    length: float = LENGTH
    height: float = HEIGHT
    gravity: float = GRAVITY
    wind: float = 60.0
    """The most that is expected, for the length of a step."""

    @property
    def closed(self) -> bool:
        """Whether nothing comes in or goes out."""
        return self.jet is None

    def seconds(self, dx: float, dz: float) -> float:
        """Of a step on a grid with such cells."""
        density, heat = self.background(np.linspace(0.0, self.height, 101))
        sound = float(np.sqrt(GAMMA * C * heat**GAMMA / density).max())
        return COURANT * min(dx, dz) / (sound + self.wind)


def mixed(heights: Array) -> tuple[Array, Array]:
    """Air of one potential temperature."""
    exner = 1 - GRAVITY * heights / (CP * GROUND)
    heat = (P0 * exner ** (CP / R) / C) ** (1 / GAMMA)
    return heat / GROUND, heat


def stable(heights: Array, frequency: float = 0.02) -> tuple[Array, Array]:
    """Air that swings back with a frequency, in 1/s, where it was lifted."""
    warmer = np.exp(frequency**2 * heights / GRAVITY)
    exner = 1 - GRAVITY**2 / (CP * frequency**2 * GROUND) * (1 - 1 / warmer)
    heat = (P0 * exner ** (CP / R) / C) ** (1 / GAMMA)
    return heat / (GROUND * warmer), heat


def bump(x: Array, z: Array, most: float, at: tuple[float, float], radii: tuple[float, float]) -> Array:
    """A smooth hill over an ellipse, 0 outside."""
    far = ((x - at[0]) / radii[0]) ** 2 + ((z - at[1]) / radii[1]) ** 2
    inside = far < 1
    height = np.zeros(far.shape)
    height[inside] = most * np.cos(np.pi / 2 * np.sqrt(far[inside])) ** 2
    return height


def _warmer(*bumps: tuple[float, tuple[float, float], tuple[float, float]]) -> Callable[..., Air]:
    """Air at rest, as warm as the bumps say, and at the background's pressure: so no sound comes of it."""

    def air(x: Array, z: Array, density: Array, heat: Array) -> Air:
        warmer = sum((bump(x, z, *each) for each in bumps), np.zeros_like(x))
        return Air(heat / (heat / density + warmer) - density, NONE, NONE, NONE)

    return air


def _windy(speed: float) -> Callable[..., Air]:
    def air(x: Array, z: Array, density: Array, heat: Array) -> Air:  # noqa: ARG001
        return Air(NONE, speed * density, NONE, NONE)

    return air


_RADII = (2_000.0, 2_000.0)

CASES: Mapping[str, Case] = {
    "collision": Case(mixed, _warmer((20.0, (0.0, 2_000.0), _RADII), (-20.0, (0.0, 8_000.0), _RADII))),
    "thermal": Case(mixed, _warmer((3.0, (0.0, 2_000.0), _RADII))),
    "density-current": Case(mixed, _warmer((-20.0, (0.0, 5_000.0), (4_000.0, 2_000.0)))),
    "waves": Case(
        stable, _windy(15.0), lift=lambda x, z: bump(x, z, 0.01, (-3 / 8 * LENGTH, 1_000.0), (1_500.0, 500.0))
    ),
    "injection": Case(mixed, _windy(0.0), jet=Jet(7_000.0, 8_000.0, 50.0, 298.0)),
}  # fmt: skip


def middles(cells: int) -> Array:
    """Of the cells of a row, in widths from the middle of all."""
    return np.asarray(np.arange(cells) - (cells - 1) / 2)


def averages(case: Case, nx: int, nz: int) -> Array:
    """The state at first, [4][nz + 4][nx + 4] with what is around it 0: averages over cells."""
    dx, dz = case.length / nx, case.height / nz
    state = np.zeros((4, nz + 4, nx + 4))
    inner = state[:, 2:-2, 2:-2]
    for right, weight in zip(*_GAUSS, strict=True):
        inner += weight * _over_heights(case, (middles(nx) + right) * dx, nz, dz)
    return state


def _over_heights(case: Case, x: Array, nz: int, dz: float) -> Array:
    """Averages over the heights of cells, at these x: [4][nz][nx]."""
    average = np.zeros((4, nz, len(x)))
    for higher, weight in zip(*_GAUSS, strict=True):
        z = (np.arange(nz) + 0.5 + higher) * dz
        wide = [np.broadcast_to(each[:, None], (nz, len(x))) for each in (z, *case.background(z))]
        air = case.air(np.broadcast_to(x, (nz, len(x))), *wide)
        for variable, value in enumerate((air.density, air.across, air.up, air.heat)):
            average[variable] += weight * value
    return average


def background_cells(case: Case, nz: int) -> tuple[Array, Array]:
    """Density and heat of the cells of a column, two more below and above: averages."""
    dz = case.height / nz
    heights = (np.arange(-2, nz + 2) + 0.5) * dz
    density, heat = np.zeros(nz + 4), np.zeros(nz + 4)
    for higher, weight in zip(*_GAUSS, strict=True):
        at_points = case.background(heights + higher * dz)
        density += weight * at_points[0]
        heat += weight * at_points[1]
    return density, heat


def pressure(heat: Array) -> Array:
    """Of air with so much density times potential temperature."""
    return np.asarray(C * heat**GAMMA)


def totals(case: Case, state: Array) -> tuple[float, float]:
    """Mass and energy of the whole plane, for each metre of its depth: kilograms and joules."""
    nz, nx = (size - 4 for size in state.shape[1:])
    cell = case.length / nx * case.height / nz
    density, heat = (each[2:-2, None] for each in background_cells(case, nz))
    heights = ((np.arange(nz) + 0.5) * case.height / nz)[:, None]
    inner = state[:, 2:-2, 2:-2]
    whole, warm = inner[0] + density, inner[3] + heat
    energy = CV / R * pressure(warm) + (inner[1] ** 2 + inner[2] ** 2) / (2 * whole) + whole * case.gravity * heights
    return float(whole.sum() * cell), float(energy.sum() * cell)
