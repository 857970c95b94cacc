"""Programs of cuda-bindings for the tests of graphs and launches: what they have in common."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from runlist.emulated import EmulatedGpu
from tests.emulated import raw

FreshGpu = Callable[..., EmulatedGpu]

BEGIN = """
module = begin()
E, S = cu.CUresult, cu.CUstreamCaptureStatus
lcg_f, fill_f = kernel(module, b"accumulate_lcg"), kernel(module, b"fill_u32")
GLOBAL, LOCAL, RELAXED = (
    cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
)
def stream(flags=1):
    return ok(cu.cuStreamCreate(flags))
def word(address):
    return struct.unpack("<I", get(address, 4))[0]
def words(address, n):
    return struct.unpack(f"<{n}I", get(address, 4 * n))
def advance(data, n, rounds, s):
    launch(lcg_f, (-(-n // 256),), (256,), (U64, U64, U32), data, n, rounds, stream=s)
def fill(data, n, value, s):
    launch(fill_f, (-(-n // 256),), (256,), (U64, U32, U64), data, value, n, stream=s)
def status(s):
    return ok(cu.cuStreamIsCapturing(s))
def instantiate(graph):
    return ok(cu.cuGraphInstantiate(graph, 0))
def kernel_node(f, grid, block, types, *values):
    node = cu.CUDA_KERNEL_NODE_PARAMS()
    node.func = f
    node.gridDimX, node.gridDimY, node.gridDimZ = grid, 1, 1
    node.blockDimX, node.blockDimY, node.blockDimZ = block, 1, 1
    node.kernelParams = (values, types)
    return node
"""


@pytest.fixture
def env(fresh_gpu: FreshGpu) -> dict[str, str]:
    return {**os.environ, **fresh_gpu().environment()}


def check(env: dict[str, str], program: str) -> None:
    """Runs a program that says `right` at its end."""
    assert raw.run(env, BEGIN + program + 'say("right")\n') == ["right"]
