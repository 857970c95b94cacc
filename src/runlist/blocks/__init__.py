"""Block-level preemption: kernels that stop between blocks and resume where they stopped (docs/blocks.md).

Neither CuPy nor NVIDIA's libraries are imported before something of them is asked for.
"""

from __future__ import annotations

from pathlib import Path

from runlist.blocks.cubin import INCLUDE
from runlist.blocks.kernel import Resumable, resumable
from runlist.blocks.page import Page, Progress, Stopper
from runlist.blocks.sequence import BLPExecutor, Saved

__all__ = ["BLPExecutor", "Page", "Progress", "Resumable", "Saved", "Stopper", "include", "resumable"]


def include() -> Path:
    """The folder of `blocks.cuh`, for a compiler's `-I`."""
    return INCLUDE
