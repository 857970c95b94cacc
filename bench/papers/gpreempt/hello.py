"""Whether all that a run needs works here: each step in a line, PASS or FAIL, in a few seconds."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.harness.contexts import contexts_of
from runlist.errors import RunlistError
from runlist.planes.nvidia.context import GpuContext
from runlist.workloads.gpu import Flag, Gpu, GpuError, current_kernel, synchronize

SLICE_US = 1_000
RELEASES = 60

FAILURES = (GpuError, RunlistError, OSError, RuntimeError)


@dataclass
class _Here:
    """What the steps have found so far."""

    stack: contextlib.ExitStack
    gpu: Gpu | None = None
    context: GpuContext | None = None


def main(say: Callable[[str], object] = print) -> int:
    """Exit code 0 when every step passed, else 1. A step that needs one that failed is not tried."""
    with contextlib.ExitStack() as stack:
        here = _Here(stack)
        for name, step in _STEPS:
            try:
                found = step(here)
            except FAILURES as error:
                say(f"FAIL {name}: {str(error).splitlines()[0] if str(error) else error!r}")
                return 1
            say(f"PASS {name}: {found}")
    say("PASS all")
    return 0


def _find(here: _Here) -> str:
    here.gpu = here.stack.enter_context(Gpu(0))
    return f"{here.gpu.name}, {here.gpu.sm_count} SMs; context made"


def _group(here: _Here) -> str:
    found = contexts_of(os.getpid(), here.stack)
    if not found:
        raise RuntimeError("the driver shows no channel group of this process")
    here.context = found[0]
    return f"{len(here.context.groups)} channel groups, {here.context.channels} channels"


def _slice(here: _Here) -> str:
    context = here.context
    assert context is not None
    before = context.timeslices()
    try:
        began = time.perf_counter()
        context.set_timeslice(SLICE_US)
        took_us = (time.perf_counter() - began) * 1e6
        if set(context.timeslices().values()) != {SLICE_US}:
            raise RuntimeError(f"slices are {sorted(context.timeslices().values())} µs, and {SLICE_US} were set")
    finally:
        context.set_timeslice(None)
    if context.timeslices() != before:
        raise RuntimeError("the slices are not what they were before")
    return f"{SLICE_US} µs in {took_us:.0f} µs, and {max(before.values())} µs again"


def _release(here: _Here) -> str:
    """From the CPU's write to the CPU's seeing that the kernel ended."""
    assert here.gpu is not None
    flag, kernel, stream = Flag(), current_kernel("wait_flag_u32"), here.gpu.stream()
    found = []
    for ticket in range(1, RELEASES + 1):
        kernel.launch(stream, 1, flag.address, ticket, threads=1)
        time.sleep(200e-6)  # until it waits
        began = time.perf_counter()
        flag.value = ticket
        synchronize(stream)
        found.append((time.perf_counter() - began) * 1e6)
    return f"{median(found):.1f} µs from the CPU's write to the end seen by the CPU, median of {RELEASES}"


_STEPS: tuple[tuple[str, Callable[[_Here], str]], ...] = (
    ("find GPU", _find),
    ("find its channel groups", _group),
    ("set slice", _slice),
    ("release from the CPU", _release),
)

if __name__ == "__main__":
    sys.exit(main())
