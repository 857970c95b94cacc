"""The functions of the driver's library that are watched, and what each means for a request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from runlist.planes.kernel.watching import Function
from runlist.protocol.why_autogen import IN_STRUCTURE

LIBRARY = "libcuda.so"
OUT_OF_MEMORY = 2
"""What a function answers that was refused memory."""


class Kind(Enum):
    """What a call means: work for the GPU, a wait for the GPU, both, or memory asked for or given back."""

    WORK = "launch"
    WAIT = "wait"
    BOTH = "copy"
    MEMORY = "memory"


_EVERY = 0
"""In place of an argument: the call concerns all that the thread has launched."""

_CALLS: tuple[tuple[Kind, str, int], ...] = (
    (Kind.WORK, "cuLaunchKernel", 9),
    (Kind.WORK, "cuLaunchCooperativeKernel", 9),
    (Kind.WORK, "cuLaunchKernelEx", IN_STRUCTURE + 4),  # CUlaunchConfig.hStream, behind seven numbers of 4 bytes
    (Kind.WORK, "cuGraphLaunch", 2),
    (Kind.WORK, "cuMemcpyAsync", 4),
    (Kind.WORK, "cuMemcpyHtoDAsync_v2", 4),
    (Kind.WORK, "cuMemcpyDtoHAsync_v2", 4),
    (Kind.WORK, "cuMemcpyDtoDAsync_v2", 4),
    (Kind.WORK, "cuMemcpy2DAsync_v2", 2),
    (Kind.WORK, "cuMemcpy3DAsync_v2", 2),
    (Kind.WORK, "cuMemsetD8Async", 4),
    (Kind.WORK, "cuMemsetD32Async", 4),
    (Kind.BOTH, "cuMemcpy", _EVERY),
    (Kind.BOTH, "cuMemcpyHtoD_v2", _EVERY),
    (Kind.BOTH, "cuMemcpyDtoH_v2", _EVERY),
    (Kind.BOTH, "cuMemcpy2D_v2", _EVERY),
    (Kind.BOTH, "cuMemcpy3D_v2", _EVERY),
    (Kind.WAIT, "cuStreamSynchronize", 1),
    (Kind.WAIT, "cuEventSynchronize", _EVERY),
    (Kind.WAIT, "cuCtxSynchronize", _EVERY),
    (Kind.WAIT, "cuCtxSynchronize_v2", _EVERY),
    (Kind.MEMORY, "cuMemAlloc_v2", _EVERY),
    (Kind.MEMORY, "cuMemAllocPitch_v2", _EVERY),
    (Kind.MEMORY, "cuMemAllocAsync", _EVERY),
    (Kind.MEMORY, "cuMemAllocFromPoolAsync", _EVERY),
    (Kind.MEMORY, "cuMemAllocManaged", _EVERY),
    (Kind.MEMORY, "cuMemCreate", _EVERY),
    (Kind.MEMORY, "cuMemFree_v2", _EVERY),
)
_SUFFIXES = {
    "cuMemcpy": "_ptds", "cuMemcpyHtoD_v2": "_ptds", "cuMemcpyDtoH_v2": "_ptds", "cuMemcpy2D_v2": "_ptds",
    "cuMemcpy3D_v2": "_ptds",
}  # fmt: skip
"""The forms for default streams of threads: `_ptsz` for all others that have one."""

KINDS: tuple[Kind, ...] = tuple(kind for kind, _, _ in _CALLS)
NAMES: tuple[str, ...] = tuple(name.removesuffix("_v2") for _, name, _ in _CALLS)
"""By the numbers of functions."""


def watched() -> Sequence[Function]:
    """All of them, in all their forms. The ends of launches are not told: they would cost more than they tell."""
    return [
        Function(symbol, number, argument, folds=kind is Kind.WORK, returns=kind is not Kind.WORK)
        for number, (kind, name, argument) in enumerate(_CALLS)
        for symbol in (name, name + _SUFFIXES.get(name, "_ptsz"))
    ]


def number_of(name: str) -> int:
    """The number of a function."""
    return NAMES.index(name)
