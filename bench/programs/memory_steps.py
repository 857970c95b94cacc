"""Takes device memory by every function of the driver that does: `python -m bench.programs.memory_steps`.

For each line with a step's name it takes memory that way and says so, `undo` gives it back. The answers are JSON:
`{}` when it is done, `{"missing": …}` where the driver has no such function.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

from cuda.bindings import driver

from bench.harness.child import serve
from bench.harness.compiled import PTX
from bench.harness.figures import MIB
from runlist.workloads.gpu import GpuError, check

SIZE = 64 * MIB
ODD = 37 * MIB + 12_345
"""No multiple of anything."""

Undo = Callable[[], object]

_MODULE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .b8 taken[67108864];
\0"""


def _context() -> Undo:
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    return lambda: None


def _second_context() -> Undo:
    first = check(driver.cuCtxGetCurrent())
    context = check(driver.cuCtxCreate(None, 0, 0))

    def undo() -> None:
        check(driver.cuCtxDestroy(context))
        check(driver.cuCtxSetCurrent(first))

    return undo


def _sync(size: int, count: int = 1) -> Undo:
    memory = [check(driver.cuMemAlloc(size)) for _ in range(count)]
    return lambda: [check(driver.cuMemFree(each)) for each in memory]


def _pitch() -> Undo:
    memory, _ = check(driver.cuMemAllocPitch(1000, 64 * 1024, 4))
    return lambda: check(driver.cuMemFree(memory))


def _managed() -> Undo:
    memory = check(driver.cuMemAllocManaged(SIZE, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
    check(driver.cuMemsetD8(memory, 1, SIZE))
    check(driver.cuCtxSynchronize())
    return lambda: check(driver.cuMemFree(memory))


def _async() -> Undo:
    memory = check(driver.cuMemAllocAsync(SIZE, 0))
    check(driver.cuStreamSynchronize(0))

    def undo() -> None:
        check(driver.cuMemFreeAsync(memory, 0))
        check(driver.cuStreamSynchronize(0))

    return undo


def _location() -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 0
    return location


def _pool_properties() -> Any:
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location()
    return properties


def _pool() -> Undo:
    """Freed, but kept by the pool: still taken."""
    pool = check(driver.cuMemPoolCreate(_pool_properties()))
    keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(pool, keep, driver.cuuint64_t(1 << 40)))
    check(driver.cuMemFreeAsync(check(driver.cuMemAllocFromPoolAsync(SIZE, pool, 0)), 0))
    check(driver.cuStreamSynchronize(0))
    return lambda: check(driver.cuMemPoolDestroy(pool))


def _created() -> Undo:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location()
    handle = check(driver.cuMemCreate(SIZE, properties, 0))
    return lambda: check(driver.cuMemRelease(handle))


def _imported() -> Undo:
    """Exported and imported again: one piece of memory, which counts once."""
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location()
    properties.requestedHandleTypes = kind
    handle = check(driver.cuMemCreate(SIZE, properties, 0))
    exported = int(check(driver.cuMemExportToShareableHandle(handle, kind, 0)))
    again = check(driver.cuMemImportFromShareableHandle(exported, kind))

    def undo() -> None:
        check(driver.cuMemRelease(again))
        check(driver.cuMemRelease(handle))
        os.close(exported)

    return undo


def _array() -> Undo:
    wanted = driver.CUDA_ARRAY_DESCRIPTOR()
    wanted.Width, wanted.Height, wanted.NumChannels = 4096, 4096, 1
    wanted.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    array = check(driver.cuArrayCreate(wanted))
    return lambda: check(driver.cuArrayDestroy(array))


def _mipmap() -> Undo:
    wanted = driver.CUDA_ARRAY3D_DESCRIPTOR()
    wanted.Width, wanted.Height, wanted.Depth, wanted.NumChannels = 4096, 4096, 0, 1
    wanted.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
    array = check(driver.cuMipmappedArrayCreate(wanted, 5))
    return lambda: check(driver.cuMipmappedArrayDestroy(array))


def _graph_node() -> Undo:
    graph = check(driver.cuGraphCreate(0))
    wanted = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    wanted.poolProps = _pool_properties()
    wanted.bytesize = SIZE
    access = driver.CUmemAccessDesc()
    access.location = _location()
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    wanted.accessDescs, wanted.accessDescCount = [access], 1
    node = check(driver.cuGraphAddMemAllocNode(graph, None, 0, wanted))
    check(driver.cuGraphAddMemFreeNode(graph, [node], 1, wanted.dptr))
    executable = check(driver.cuGraphInstantiate(graph, 0))
    check(driver.cuGraphLaunch(executable, 0))
    check(driver.cuStreamSynchronize(0))

    def undo() -> None:
        check(driver.cuGraphExecDestroy(executable))
        check(driver.cuGraphDestroy(graph))
        check(driver.cuDeviceGraphMemTrim(0))

    return undo


def _module() -> Undo:
    """Its variable is 64 MiB large."""
    module = check(driver.cuModuleLoadData(_MODULE))
    return lambda: check(driver.cuModuleUnload(module))


def _kernels() -> Undo:
    """The project's kernels, loaded, and one launched."""
    module = check(driver.cuModuleLoadData(PTX.read_bytes() + b"\0"))
    kernel = check(driver.cuModuleGetFunction(module, b"fill_u32"))
    nothing = ((0, 0, 0), (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64))
    check(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, nothing, 0))
    check(driver.cuCtxSynchronize())
    return lambda: check(driver.cuModuleUnload(module))


def _streams() -> Undo:
    streams = [check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(32)]
    return lambda: [check(driver.cuStreamDestroy(each)) for each in streams]


CONTEXT = "context"

STEPS: Mapping[str, Callable[[], Undo]] = {
    CONTEXT: _context,
    "cuMemAlloc 1 byte": lambda: _sync(1),
    "cuMemAlloc 1,000 × 4 KiB": lambda: _sync(4096, 1000),
    "cuMemAlloc 64 × 1 MiB": lambda: _sync(MIB, 64),
    "cuMemAlloc 64 MiB": lambda: _sync(SIZE),
    "cuMemAlloc 37 MiB and some": lambda: _sync(ODD),
    "cuMemAllocPitch": _pitch,
    "cuMemAllocManaged": _managed,
    "cuMemAllocAsync": _async,
    "pool of its own": _pool,
    "cuMemCreate": _created,
    "cuMemCreate and its import": _imported,
    "array": _array,
    "mipmapped array": _mipmap,
    "graph memory node": _graph_node,
    "second context": _second_context,
    "module with 64 MiB": _module,
    "kernels": _kernels,
    "32 streams": _streams,
}
"""In the order in which they are to be taken; the context comes first and stays."""

ON_THE_CARD = frozenset({"cuMemAllocManaged"})
"""What NVML does not count for the process, so that only the whole card shows it.

The driver keeps some of the card for itself after the first use by a process, and serves the next one from it: only
after that does the card show what the program holds.
"""


def _main() -> None:
    undo: list[Undo] = []

    def answer(line: str) -> Mapping[str, Any]:
        if line == "undo":
            undo.pop()()
            return {}
        try:
            undo.append(STEPS[line]())
        except GpuError as error:
            if "NOT_SUPPORTED" in str(error) or "NOT_FOUND" in str(error):
                return {"missing": str(error)}
            raise
        except RuntimeError as error:
            if "is not found" in str(error):  # cuda.bindings: the driver has none of this name
                return {"missing": str(error).splitlines()[0]}
            raise
        return {}

    serve(answer)


if __name__ == "__main__":
    _main()
