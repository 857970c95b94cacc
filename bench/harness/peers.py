"""What other systems reach, to be shown beside our own figures; each says where it is from."""

from __future__ import annotations

HAMI_CORE = {
    "process start, ms (its issue tracker)": 297,
    "obtained under a limit of 4 GiB (8f3a89c, CUDA 13.0, H200), GiB": 8,
    "rate at core limits 10, 30 and 50 / without (the same)": 485 / 487,
    "held at a core limit of 50, % (its issue tracker)": 99.5,
    "after SIGKILL (its issue tracker)": "hangs",
}
"""HAMi-core, libvgpu.so."""

CALLS_NS = {
    "kernel launch, back to back": 2_830,
    "CUDA graph of 16 launches": 970,
    "cudaMalloc+cudaFree 1 MiB": 48_500,
    "cudaMallocAsync+cudaFreeAsync": 572,
}
"""Calls without any library between, on the H200, by hand."""
