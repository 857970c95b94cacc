"""Programs that get device memory in every way that CUDA has."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from runlist.emulated import EmulatedGpu
from tests.emulated import raw

CARD = 256 << 20
"""Bytes of the card that they run on."""

# `take(name, bytes)` gets memory in one of the ways and returns (address to use, function that gives it back).
WAYS = """
import pynvml
PAGE = 2 << 20
E = cu.CUresult
PROPS = cu.CUmemAllocationProp()
PROPS.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
PROPS.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
PROPS.location.id = 0
PROPS.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
ACCESS = cu.CUmemAccessDesc()
ACCESS.location = PROPS.location
ACCESS.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
POOL = cu.CUmemPoolProps()
POOL.allocType, POOL.location = PROPS.type, PROPS.location
ATTRIBUTE = cu.CUmemPool_attribute

class Refused(Exception):
    pass

def made(result):
    if result[0] == E.CUDA_ERROR_OUT_OF_MEMORY:
        raise Refused
    return ok(result)

def used():
    free, total = ok(cu.cuMemGetInfo())
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    listed = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == total - free == sum(listed.values())
    assert listed[os.getpid()] % PAGE == 0
    return listed[os.getpid()]

def take_malloc(size):
    address = int(made(cu.cuMemAlloc(size)))
    return address, lambda: ok(cu.cuMemFree(address))

def take_pitch(size):
    address, pitch = made(cu.cuMemAllocPitch(1000, size // 1024, 4))
    assert pitch == 1024
    return int(address), lambda: ok(cu.cuMemFree(address))

def take_async(size):
    address = int(made(cu.cuMemAllocAsync(size, 0)))
    def give():
        ok(cu.cuMemFreeAsync(address, 0))
        ok(cu.cuCtxSynchronize())
    return address, give

def take_pool(size):
    pool = ok(cu.cuMemPoolCreate(POOL))
    result = cu.cuMemAllocFromPoolAsync(size, pool, 0)
    if int(result[0]) != 0:
        ok(cu.cuMemPoolDestroy(pool))
    address = int(made(result))
    def give():
        ok(cu.cuMemFreeAsync(address, 0))
        ok(cu.cuMemPoolDestroy(pool))
        ok(cu.cuStreamSynchronize(0))
    return address, give

def take_virtual(size):
    assert ok(cu.cuMemGetAllocationGranularity(PROPS, cu.CUmemAllocationGranularity_flags(0))) == PAGE
    handle = made(cu.cuMemCreate(size, PROPS, 0))
    address = int(ok(cu.cuMemAddressReserve(size, 0, 0, 0)))
    ok(cu.cuMemMap(address, size, 0, handle, 0))
    ok(cu.cuMemRelease(handle))
    ok(cu.cuMemSetAccess(address, size, [ACCESS], 1))
    def give():
        ok(cu.cuMemUnmap(address, size))
        ok(cu.cuMemAddressFree(address, size))
    return address, give

def descriptor(width, height, depth=0):
    shape = cu.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.Depth, shape.NumChannels = width, height, depth, 1
    shape.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    return shape

def take_array(size):
    array = made(cu.cuArray3DCreate(descriptor(1024, size // 4096)))
    assert ok(cu.cuArrayGetDescriptor(array)).Height == size // 4096
    return array, lambda: ok(cu.cuArrayDestroy(array))

def take_mipmap(size):
    mipmap = made(cu.cuMipmappedArrayCreate(descriptor(1024, size // 8192), 3))
    return ok(cu.cuMipmappedArrayGetLevel(mipmap, 0)), lambda: ok(cu.cuMipmappedArrayDestroy(mipmap))

def check(where):
    data = bytes(range(256)) * 16
    if isinstance(where, int):
        ok(cu.cuMemsetD8(where, 7, 100))
        assert get(where, 100) == bytes([7]) * 100
        put(where + PAGE, data)
        assert get(where + PAGE, len(data)) == data
    else:
        out = bytearray(len(data))
        ok(cu.cuMemcpyHtoA(where, PAGE, data, len(data)))
        ok(cu.cuMemcpyAtoH(out, where, PAGE, len(data)))
        assert bytes(out) == data

TAKE = {name[5:]: function for name, function in list(globals().items()) if name.startswith("take_")}
pynvml.nvmlInit()
"""
NAMES = ("malloc", "pitch", "async", "pool", "virtual", "array", "mipmap")


def run(env: dict[str, str], program: str) -> None:
    assert raw.run(env, WAYS + program + '\nsay("right")\n') == ["right"]


@pytest.fixture
def env(fresh_gpu: Callable[..., EmulatedGpu]) -> dict[str, str]:
    return {**os.environ, **fresh_gpu(memory=CARD).environment()}
