"""Device memory on the emulated GPU: every way in which CUDA gives it takes whole pages from the card, and back."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest

from runlist.emulated import EmulatedGpu
from tests.emulated import raw
from tests.emulated.memory_ways import CARD, NAMES, env, run

__all__ = ["env"]

FreshGpu = Callable[..., EmulatedGpu]


@pytest.mark.parametrize("way", NAMES)
def test_memory_comes_in_pages_is_usable_and_goes_back(env: dict[str, str], way: str) -> None:
    run(
        env,
        f"""
begin()
before = used()
where, give = TAKE["{way}"](10 << 20)
assert 8 << 20 <= used() - before <= 10 << 20, used() - before
check(where)
give()
assert used() == before
""",
    )


@pytest.mark.parametrize("way", NAMES)
def test_a_full_card_refuses_and_all_works_afterwards(env: dict[str, str], way: str) -> None:
    run(
        env,
        f"""
begin()
before = used()
held = []
for size in (32 << 20, 4 << 20, 2 << 20):
    try:
        while True:
            held.append(TAKE["{way}"](size))
    except Refused:
        pass
full = used()
assert {CARD} - full < 4 << 20, full
for name, take in TAKE.items():
    try:
        take(8 << 20)
        raise AssertionError(name)
    except Refused:
        assert used() == full, name
assert code(cu.cuCtxCreate(None, 0, 0)) == 2
assert used() == full
for where, give in held:
    give()
assert used() == before
for name, take in TAKE.items():
    where, give = take(8 << 20)
    check(where)
    give()
assert used() == before
ok(cu.cuCtxCreate(None, 0, 0))
""",
    )


@pytest.mark.parametrize("end", ["object", "device", "client", "file"])
def test_the_driver_gives_memory_to_a_client_and_takes_it_back(fresh_gpu: FreshGpu, end: str) -> None:
    """By ioctl alone, as libcuda does it."""
    gpu = fresh_gpu(memory=CARD, gpus=2)
    page, device, first, second = 2 << 20, 0xA0000001, 0xA0000010, 0xA0000011
    with raw.open_file(gpu.dir) as other, raw.open_file(gpu.dir) as file:
        fd = file.fileno()
        client = raw.own_client(fd)
        watcher = raw.own_client(other.fileno())
        raw.allocate(fd, client, client, device, raw.DEVICE, struct.pack("<II48x", 1, client))
        raw.allocate(other.fileno(), watcher, watcher, device, raw.DEVICE, struct.pack("<II48x", 1, watcher))

        def is_all_free() -> bool:
            status, came, _ = raw.take_device_memory(other.fileno(), watcher, device, first, CARD)
            if status == raw.OK:
                assert came == CARD
                assert raw.free(other.fileno(), watcher, first) == raw.OK
            return status == raw.OK

        assert is_all_free()
        assert raw.take_device_memory(fd, client, device, first, 1) == (raw.OK, page, 0)
        assert raw.take_device_memory(fd, client, device, second, 3 * page + 1) == (raw.OK, 4 * page, page)
        assert raw.take_device_memory(fd, client, device, second, page)[0] == raw.DUPLICATE
        assert raw.take_device_memory(fd, client, device, 0, CARD - 5 * page + 1)[0] == raw.NO_MEMORY
        assert raw.take_device_memory(fd, client, device, 0, 0)[0] == raw.BAD_ARGUMENT
        assert raw.take_device_memory(fd, client, client, 0, page)[0] == raw.BAD_OBJECT
        assert raw.take_device_memory(other.fileno(), client, device, 0, page)[0] == raw.BAD_CLIENT
        assert not is_all_free()
        if end == "object":
            assert raw.free(fd, client, first) == raw.OK
            assert not is_all_free()
            assert raw.free(fd, client, first) == raw.NOT_FOUND
            assert raw.free(fd, client, second) == raw.OK
        elif end == "file":
            file.close()
        else:
            assert raw.free(fd, client, device if end == "device" else client) == raw.OK
        deadline = time.monotonic() + 5
        while not is_all_free():  # the driver hears of a closed file when it comes to it
            assert time.monotonic() < deadline


def test_rectangles_of_pitched_memory_and_arrays(env: dict[str, str]) -> None:
    run(
        env,
        """
begin()
width, height = 100, 70
address, pitch = ok(cu.cuMemAllocPitch(width, height, 4))
array = ok(cu.cuArray3DCreate(descriptor(width // 4, height)))
T = cu.CUmemorytype
data = bytes(i * 7 % 251 for i in range(width * height))
source, out = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(len(data))
def rectangle(**fields):
    shape = cu.CUDA_MEMCPY2D()
    for name, value in {"WidthInBytes": width, "Height": height, **fields}.items():
        setattr(shape, name, value)
    return shape
ok(cu.cuMemcpy2D(rectangle(srcMemoryType=T.CU_MEMORYTYPE_HOST, srcHost=ctypes.addressof(source), srcPitch=width,
    dstMemoryType=T.CU_MEMORYTYPE_DEVICE, dstDevice=address, dstPitch=pitch)))
assert get(int(address) + 3 * pitch, width) == data[3 * width : 4 * width]
ok(cu.cuMemcpy2D(rectangle(srcMemoryType=T.CU_MEMORYTYPE_DEVICE, srcDevice=address, srcPitch=pitch,
    dstMemoryType=T.CU_MEMORYTYPE_ARRAY, dstArray=array)))
ok(cu.cuMemsetD2D8(address, pitch, 9, width - 1, height))
assert get(int(address) + pitch, width) == bytes([9]) * (width - 1) + data[2 * width - 1 : 2 * width]
ok(cu.cuMemcpy2D(rectangle(srcMemoryType=T.CU_MEMORYTYPE_ARRAY, srcArray=array,
    dstMemoryType=T.CU_MEMORYTYPE_HOST, dstHost=ctypes.addressof(out), dstPitch=width)))
assert out.raw == data
ok(cu.cuArrayDestroy(array))
assert code(cu.cuArrayDestroy(array)) == 400
""",
    )


def test_many_copies_do_not_overrun_a_stream(env: dict[str, str]) -> None:
    run(
        env,
        """
begin()
stream = ok(cu.cuStreamCreate(1))
data = alloc(1 << 20)
for i in range(6000):
    ok(cu.cuMemsetD32Async(data, i, 64, stream))
ok(cu.cuStreamSynchronize(stream))
assert get(data, 4) == struct.pack("<I", 5999)
""",
    )


def test_a_context_and_a_module_take_memory_for_themselves(env: dict[str, str]) -> None:
    run(
        env,
        """
module = begin()
first = used()
assert first >= 2 * PAGE
second = ok(cu.cuCtxCreate(None, 0, 0))
third = ok(cu.cuModuleLoadData(PTX))
alloc(100); alloc(3 << 20)
assert used() > first + 3 * PAGE
ok(cu.cuCtxDestroy(second))
assert used() == first
ok(cu.cuModuleUnload(third))
held = []
while code(allocated := cu.cuMemAlloc(PAGE)) == 0:
    held.append(allocated[1])
ok(cu.cuModuleUnload(module))
assert used() == first - PAGE + len(held) * PAGE
held.append(ok(cu.cuMemAlloc(PAGE)))
assert code(cu.cuModuleLoadData(PTX)) == 2
ok(cu.cuMemFree(held.pop()))
module = ok(cu.cuModuleLoadData(PTX))
launch(kernel(module, b"fill_u32"), (1,), (32,), (U64, U32, U64), int(held[0]), 9, 32)
assert struct.unpack("<32I", get(int(held[0]), 128)) == (9,) * 32
""",
    )


def test_small_allocations_share_pages(env: dict[str, str]) -> None:
    run(
        env,
        """
begin()
before = used()
addresses = [alloc(size) for size in (1, 1000, 100_000, 1 << 20)]
assert len(set(addresses)) == 4 and all(address % 512 == 0 for address in addresses)
assert used() == before + PAGE
for i, address in enumerate(addresses):
    ok(cu.cuMemsetD8(address, i, 1))
assert [get(address, 1) for address in addresses] == [bytes([i]) for i in range(4)]
assert [int(v) for v in ok(cu.cuMemGetAddressRange(addresses[1] + 5))] == [addresses[1], 1000]
for address in addresses[:3]:
    ok(cu.cuMemFree(address))
assert used() == before + PAGE
ok(cu.cuMemFree(addresses[3]))
assert used() == before
big = alloc((1 << 20) + 1)
assert used() == before + PAGE
assert code(cu.cuMemcpyDtoD(big, big + (1 << 20), 2)) == 1
ok(cu.cuMemFree(big))
assert code(cu.cuMemFree(big)) == 1
""",
    )


def test_a_freed_page_reads_as_zero_for_the_next(env: dict[str, str]) -> None:
    run(
        env,
        """
begin()
size = 200 << 20
address = alloc(size)
ok(cu.cuMemsetD8(address, 0xEE, size))
ok(cu.cuMemFree(address))
again = alloc(size)
assert get(again, 1 << 20) == bytes(1 << 20) and get(again + size - 4096, 4096) == bytes(4096)
""",
    )


def test_pieces_of_the_card_make_one_allocation(env: dict[str, str]) -> None:
    """Physical memory has no holes that an allocation could not be made of."""
    run(
        env,
        """
module = begin()
held = []
while code(allocated := cu.cuMemAlloc(PAGE)) == 0:
    held.append(int(allocated[1]))
for address in held[::2]:
    ok(cu.cuMemFree(address))
size = len(held[::2]) * PAGE
whole = alloc(size)
n = size // 4
launch(kernel(module, b"fill_u32"), (n // 256,), (256,), (U64, U32, U64), whole, 5, n)
assert get(whole, size) == struct.pack("<I", 5) * n
assert all(get(address, 4096) == bytes(4096) for address in held[1::2])
""",
    )


def test_managed_memory_is_everyones_and_no_memory_of_the_card(env: dict[str, str]) -> None:
    run(
        env,
        f"""
module = begin()
before = used()
size = {2 * CARD}
address = int(ok(cu.cuMemAllocManaged(size, 1)))
assert used() == before
ctypes.memmove(address, b"abcd", 4)
assert get(address, 4) == b"abcd"
launch(kernel(module, b"fill_u32"), (1,), (32,), (U64, U32, U64), address + size - 128, 7, 32)
ok(cu.cuMemPrefetchAsync(address, size, PROPS.location, 0, 0))
ok(cu.cuCtxSynchronize())
assert ctypes.string_at(address + size - 128, 128) == struct.pack("<I", 7) * 32
assert ok(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, address))
assert code(cu.cuMemFreeHost(address)) == 1
ok(cu.cuMemFree(address))
assert code(cu.cuMemFree(address)) == 1
""",
    )
