"""Pools, addresses that a program maps itself, and memory of other processes, on the emulated GPU."""

from __future__ import annotations

from tests.emulated import raw
from tests.emulated.memory_ways import WAYS, env, run

__all__ = ["env"]


def test_pools_keep_what_they_are_told_to(env: dict[str, str]) -> None:
    run(
        env,
        """
begin()
before = used()
pool = ok(cu.cuDeviceGetDefaultMemPool(0))
assert int(ok(cu.cuDeviceGetMemPool(0))) == int(pool)
look = lambda attribute: int(ok(cu.cuMemPoolGetAttribute(pool, attribute)))
assert look(ATTRIBUTE.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0
ok(cu.cuMemPoolSetAttribute(pool, ATTRIBUTE.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cu.cuuint64_t(64 << 20)))
stream = ok(cu.cuStreamCreate(1))
seen = set()
for _ in range(100):
    address = ok(cu.cuMemAllocAsync(30 << 20, stream))
    ok(cu.cuMemsetD8Async(address, 1, 30 << 20, stream))
    ok(cu.cuMemFreeAsync(address, stream))
    seen.add(int(address))
assert len(seen) == 1  # what is freed in a stream can be had in it at once
ok(cu.cuStreamSynchronize(stream))
assert used() == before + (30 << 20) == before + look(ATTRIBUTE.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
assert look(ATTRIBUTE.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0
assert look(ATTRIBUTE.CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 30 << 20
# Kept memory goes to whoever has too little.
big = alloc(ok(cu.cuMemGetInfo())[0] + (30 << 20))
assert look(ATTRIBUTE.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0
ok(cu.cuMemFree(big))
ok(cu.cuMemFreeAsync(ok(cu.cuMemAllocAsync(10 << 20, stream)), stream))
ok(cu.cuStreamSynchronize(stream))
assert used() == before + (10 << 20)
ok(cu.cuMemPoolTrimTo(pool, 0))
assert used() == before
""",
    )


def test_memory_freed_in_a_stream_is_not_anothers_before_its_turn(env: dict[str, str]) -> None:
    run(
        env,
        """
module = begin()
one, two = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1))
flag = int(ok(cu.cuMemHostAlloc(64, 2)))
address = int(ok(cu.cuMemAllocAsync(4 << 20, one)))
launch(kernel(module, b"wait_flag_u32"), (1,), (1,), (U64, U32), flag, 1, stream=one)
ok(cu.cuMemsetD8Async(address, 3, 4 << 20, one))
ok(cu.cuMemFreeAsync(address, one))
other = int(ok(cu.cuMemAllocAsync(4 << 20, two)))
assert other != address
ctypes.c_uint32.from_address(flag).value = 1
ok(cu.cuStreamSynchronize(one))
ok(cu.cuMemFreeAsync(other, two))
assert code(cu.cuMemFreeAsync(other, two)) == 1
ok(cu.cuStreamSynchronize(two))
""",
    )


def test_a_pool_that_cannot_grow_waits_for_what_was_freed(env: dict[str, str]) -> None:
    run(
        env,
        """
module = begin()
one, two = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1))
flag = int(ok(cu.cuMemHostAlloc(64, 2)))
size = ok(cu.cuMemGetInfo())[0]
n = size // 4
address = int(ok(cu.cuMemAllocAsync(size, one)))
launch(kernel(module, b"wait_flag_u32"), (1,), (1,), (U64, U32), flag, 1, stream=one)
launch(kernel(module, b"fill_u32"), (n // 256,), (256,), (U64, U32, U64), address, 5, n, stream=one)
ok(cu.cuMemFreeAsync(address, one))
again = int(ok(cu.cuMemAllocAsync(1 << 20, two)))
ok(cu.cuMemsetD32Async(again, 6, 64, two))
assert cu.cuStreamQuery(two)[0] == E.CUDA_ERROR_NOT_READY
ctypes.c_uint32.from_address(flag).value = 1
ok(cu.cuStreamSynchronize(two))
assert get(again, 256) == struct.pack("<I", 6) * 64
ok(cu.cuMemFree(again))
assert ok(cu.cuMemGetInfo())[0] == size
POOL.maxSize = 3 * PAGE
limited = ok(cu.cuMemPoolCreate(POOL))
first = ok(cu.cuMemAllocFromPoolAsync(2 * PAGE, limited, one))
assert code(cu.cuMemAllocFromPoolAsync(2 * PAGE, limited, one)) == 2
ok(cu.cuMemFreeAsync(first, one)); ok(cu.cuCtxSynchronize())
ok(cu.cuMemAllocFromPoolAsync(3 * PAGE, limited, one))
""",
    )


def test_mapped_addresses_are_one_range(env: dict[str, str]) -> None:
    run(
        env,
        """
module = begin()
before = used()
base = int(ok(cu.cuMemAddressReserve(8 * PAGE, 0, 0, 0)))
assert used() == before
handles = [ok(cu.cuMemCreate(PAGE, PROPS, 0)) for _ in range(4)]
assert used() == before + 4 * PAGE
for i, handle in enumerate(handles):
    ok(cu.cuMemMap(base + i * PAGE, PAGE, 0, handle, 0))
assert code(cu.cuMemcpyHtoD(base, b"x", 1)) == 1  # no access yet
ok(cu.cuMemSetAccess(base, 4 * PAGE, [ACCESS], 1))
n = 4 * PAGE // 4
launch(kernel(module, b"fill_u32"), (n // 256,), (256,), (U64, U32, U64), base, 77, n)
assert get(base, 4 * PAGE) == struct.pack("<I", 77) * n
assert code(cu.cuMemcpyHtoD(base + 4 * PAGE, b"x", 1)) == 1  # reserved, not mapped
assert code(cu.cuMemMap(base, PAGE, 0, handles[0], 0)) == 1
assert code(cu.cuMemAddressFree(base, 8 * PAGE)) == 1
assert int(ok(cu.cuMemRetainAllocationHandle(base + PAGE + 5))) == int(handles[1])
ok(cu.cuMemRelease(handles[1]))
for handle in handles:
    ok(cu.cuMemRelease(handle))
assert used() == before + 4 * PAGE  # the mappings hold it
assert code(cu.cuMemRelease(handles[0])) == 1
ok(cu.cuMemUnmap(base + PAGE, PAGE))
assert used() == before + 3 * PAGE
ok(cu.cuMemsetD8(base, 1, PAGE))
assert code(cu.cuMemsetD8(base, 1, 2 * PAGE)) == 1
ok(cu.cuMemUnmap(base, PAGE)); ok(cu.cuMemUnmap(base + 2 * PAGE, 2 * PAGE))
ok(cu.cuMemAddressFree(base, 8 * PAGE))
assert used() == before
""",
    )


def test_an_unmapped_address_is_illegal_to_a_kernel(env: dict[str, str]) -> None:
    run(
        env,
        """
module = begin()
where, give = TAKE["virtual"](2 * PAGE)
ok(cu.cuMemUnmap(where, 2 * PAGE))
launch(kernel(module, b"fill_u32"), (1,), (32,), (U64, U32, U64), where, 1, 32)
assert cu.cuCtxSynchronize()[0] == E.CUDA_ERROR_ILLEGAL_ADDRESS
""",
    )


SHARER = """
begin()
address = alloc(100)
big = alloc(6 << 20)
put(address, b"mine"); put(big + 5, b"big")
where, give = TAKE["virtual"](PAGE)
put(where, b"virtual")
handle = ok(cu.cuMemRetainAllocationHandle(where))
shared = ok(cu.cuMemExportToShareableHandle(handle, PROPS.requestedHandleTypes, 0))
def text(address):
    handle = ok(cu.cuIpcGetMemHandle(address))
    return ctypes.string_at(handle.getPtr(), 64).hex()
say("ready", text(address), text(big), shared, used())
sys.stdin.readline()
assert get(address, 4) == b"back"
say("seen")
sys.stdin.readline()
"""


def test_memory_of_another_process_is_shared_and_charged_once(env: dict[str, str]) -> None:
    sharer = raw.Running(env, WAYS + SHARER)
    try:
        _, small, big, shared, theirs = sharer.line().split()
        run(
            env,
            f"""
begin()
before = ok(cu.cuMemGetInfo())[0]
def open_handle(text):
    handle = cu.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), 64)
    return cu.cuIpcOpenMemHandle(handle, 1)
address = int(ok(open_handle("{small}")))
assert get(address, 4) == b"mine"
put(address, b"back")
big = int(ok(open_handle("{big}")))
assert get(big, 8) == bytes(5) + b"big"
fd = os.open("/proc/{sharer.pid}/fd/{shared}", os.O_RDONLY)
imported = ok(cu.cuMemImportFromShareableHandle(fd, PROPS.requestedHandleTypes))
where = int(ok(cu.cuMemAddressReserve(PAGE, 0, 0, 0)))
ok(cu.cuMemMap(where, PAGE, 0, imported, 0))
ok(cu.cuMemSetAccess(where, PAGE, [ACCESS], 1))
assert get(where, 7) == b"virtual"
assert ok(cu.cuMemGetInfo())[0] == before
listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
memory = {{p.pid: p.usedGpuMemory for p in listed}}
assert memory[{sharer.pid}] == {theirs}
assert memory[os.getpid()] == ok(cu.cuMemGetInfo())[1] - before - {theirs}
assert code(cu.cuMemFree(address)) == 1
ok(cu.cuIpcCloseMemHandle(address))
ok(cu.cuIpcCloseMemHandle(big))
assert code(cu.cuMemcpyDtoD(big, where, 4)) == 1
ok(cu.cuMemUnmap(where, PAGE)); ok(cu.cuMemRelease(imported))
assert code(open_handle("00" * 64)) == 1
""",
        )
        sharer.tell()
        assert sharer.line() == "seen"
    finally:
        sharer.end()
