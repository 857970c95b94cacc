"""CUDA's checkpoints of another process, by the driver API: what `cuda-checkpoint` does."""

from __future__ import annotations

import time
from typing import Any

from cuda.bindings import driver

from runlist.workloads.gpu import check


def checkpoint_and_restore(pid: int) -> float:
    """Lock, checkpoint, restore and unlock a process; returns when it was unlocked (time.perf_counter). Raises GpuError
    where the driver refuses.
    """
    check(driver.cuInit(0))
    steps: tuple[Any, ...] = (
        driver.cuCheckpointProcessLock,
        driver.cuCheckpointProcessCheckpoint,
        driver.cuCheckpointProcessRestore,
        driver.cuCheckpointProcessUnlock,
    )
    for step in steps:
        check(step(pid, None))
    return time.perf_counter()
