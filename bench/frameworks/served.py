"""What the programs of the benchmark `pairs` share: their options, and how they serve requests or bursts.

Each speaks the protocol of `runlist.workloads.protocol`, and is ready when it is warm. A module that is missing ends it
with one line.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from runlist.workloads import options, protocol
from runlist.workloads.loops import BurstLoop, RequestLoop

JITTER = 0.5
_FIRST_RATE = 1.0

GpuTime = Callable[[], float | None]
"""Measures the seconds of GPU time that a request takes; None where that cannot be told."""


class Requests(RequestLoop):
    """Requests of which each window also tells what GPU time one takes, in µs, where that was to be measured: when the
    work begins for the first time, as the program then is alone.
    """

    def __init__(
        self,
        request: Callable[[float], float],
        gpu_time: GpuTime | None,
        correct: Callable[[], bool],
        lead_s: float = 0.0,
    ) -> None:
        super().__init__(request, 1 / _FIRST_RATE, jitter=JITTER, lead_s=lead_s, correct=correct)
        self._gpu_time = gpu_time
        self._gpu_us: float | None = None

    def resume(self) -> None:
        if self._gpu_time is not None:
            seconds = self._gpu_time()
            self._gpu_us = None if seconds is None else seconds * 1e6
            self._gpu_time = None
        super().resume()

    def window(self) -> dict[str, Any]:
        """`gpu_us`, if it was measured."""
        return {**super().window(), **({} if self._gpu_us is None else {"gpu_us": self._gpu_us})}


def requests(
    request: Callable[[float], float],
    gpu_time: GpuTime | None,
    correct: Callable[[], bool],
    lead_s: float = 0.0,
) -> None:
    """Serve requests, for as long as there are commands. `gpu_time` is None where nobody asked for it. A request begins
    `lead_s` before its arrival.
    """
    gc.collect()
    gc.disable()  # a collection would show as a slow request
    protocol.run(Requests(request, gpu_time, correct, lead_s), None, pid=os.getpid())


def bursts(burst: Callable[[], None], kernels: int, correct: Callable[[], bool]) -> None:
    """Serve bursts, for as long as there are commands."""
    protocol.run(BurstLoop(burst, kernels, correct), None, pid=os.getpid())


def load(name: str) -> Any:
    """A Python module; where it is missing the program ends with one line."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        sys.exit(f"needs the Python module {name}: {error}")


def apart() -> None:
    """Keep standard output for ourselves: what libraries print there goes to standard error from now on."""
    ours = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = ours


def serve(programs: Mapping[str, Callable[[argparse.Namespace], None]], description: str | None) -> None:
    """Run the one of these programs that the command line names, with its other options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("program", choices=sorted(programs))
    parser.add_argument("--gpu-time", action="store_true", help="measure the GPU time of a request when it first works")
    parser.add_argument("--device", default="cuda", help="PyTorch's name of the device (cuda)")
    arguments = parser.parse_args()
    apart()
    options.main(lambda: programs[arguments.program](arguments), arguments.program)
