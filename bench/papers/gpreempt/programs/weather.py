"""A weather model: a request advances it by a step, in place, so that no kernel may run twice.

The model begins anew after --period requests. What each leaves is compared, bit for bit, with what the kernels as they
are written left when the program began: with --blocks, those that nobody can stop.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from bench.papers.common.programs import serving
from bench.papers.gpreempt.atmosphere import CASES, averages
from bench.papers.gpreempt.forecast import Kernels, Model, Plain, Stoppable
from runlist.blocks.device import Device
from runlist.blocks.page import Page
from runlist.workloads import options as workload_options

_CELLS = {"cuda": 3200, "host": 64}
"""Of a row: those of the published run, and what processor threads can do."""

MASS, ENERGY = 1e-9, 1e-4
"""The most that these may change by, where nothing comes in or goes out: parts of the whole."""


class Weather(serving.Program):
    """Steps of one case."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._device = _device(options)
        nx = options.cells or _CELLS[options.device]
        self._steps, self._period = options.steps, options.period
        case, first = CASES[options.case], averages(CASES[options.case], nx, nx // 2)

        def made(kernels: Kernels) -> Model:
            return Model(self._device, kernels, case, nx, nx // 2, first)

        self._model = made(Plain(self._device))
        self._before = self._model.totals()
        self._expected = [self._digest_of_next() for _ in range(self._period)]
        if options.blocks is not None and not options.urgent:
            self._model.close()
            del self._model  # there may not be room for two
            self._model = made(Stoppable(self._device, Page(options.blocks)))
        self.ways = frozenset({"blocks"})
        self._facts = {
            "repeats": False,  # which step a request is depends on those before it; `correct` has compared it
            "case": options.case,
            "cells": [nx, nx // 2],
            "steps": options.steps,
            "seconds": self._model.seconds,
            "device": getattr(self._device, "label", self._device.name),
        }
        self._done, self._wrong = 0, 0
        self._pending = False
        self._last: str | None = None

    @property
    def stream(self) -> int:
        return int(getattr(self._device, "stream", 0))

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def infer(self) -> None:
        if self._done % self._period == 0:
            self._model.renew()
        for _ in range(self._steps):
            self._model.step()
        self._done += 1

    def copy_output(self) -> None:
        self._model.digest()
        self._pending = True

    def synchronize(self) -> None:
        self._device.synchronize()

    def check(self) -> str | None:
        if self._pending:
            self._pending = False
            self._last = self._model.digested()
            self._wrong += self._last != self._expected[(self._done - 1) % self._period]
        return self._last

    def correct(self) -> bool:
        """Whether every step left the bits that it should, and the plane still has its mass and energy."""
        if self._wrong or not self._model.case.closed:
            return not self._wrong
        now = self._model.totals()
        changes = [abs(after - before) / before for before, after in zip(self._before, now, strict=True)]
        return changes[0] <= MASS and changes[1] <= ENERGY

    def _digest_of_next(self) -> str:
        for _ in range(self._steps):
            self._model.step()
        self._model.digest()
        self._device.synchronize()
        return self._model.digested()


def _device(options: argparse.Namespace) -> Device:
    if options.device == "host":
        from runlist.blocks.host import Host

        return Host()
    from runlist.blocks.driver import Cuda

    return Cuda(options.gpu, priority=options.priority)


def _cells(text: str) -> int:
    cells = workload_options.positive_int(text)
    if cells < 8 or cells % 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not an even number from 8 on")
    return cells


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--case", choices=sorted(CASES), default="collision", help="what happens (collision)")
    add("--cells", type=_cells, metavar="N", help="of a row; a column has half as many (3200; on processor threads 64)")
    add("--steps", type=workload_options.positive_int, default=1, metavar="N", help="steps a request (1)")
    add("--period", type=workload_options.positive_int, default=100, metavar="N",
        help="requests until the model begins anew (100)")  # fmt: skip
    add("--device", choices=sorted(_CELLS), default="cuda", help="a GPU, or processor threads (cuda)")


if __name__ == "__main__":
    serving.main(Weather, __doc__, _add_options)
