"""Programs on the emulated libcuda, through cuda-bindings as it comes."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from runlist.emulated import EmulatedGpu
from tests.emulated import raw
from tests.emulated.programs import env

__all__ = ["env"]

FreshGpu = Callable[..., EmulatedGpu]


def test_every_kernel_computes_its_numbers(env: dict[str, str]) -> None:
    program = """
module = begin()
n = 5000
a, b, c = alloc(4 * n), alloc(4 * n), alloc(4 * n)
launch(kernel(module, b"fill_u32"), (20,), (256,), (U64, U32, U64), a, 7, n - 1)
assert struct.unpack(f"<{n}I", get(a, 4 * n)) == (7,) * (n - 1) + (0,)
x = [0.1 * i for i in range(n)]
y = [3.7 / (i + 1) for i in range(n)]
f32 = lambda values: struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values))
x, y = f32(x), f32(y)
put(a, struct.pack(f"<{n}f", *x)); put(b, struct.pack(f"<{n}f", *y))
launch(kernel(module, b"vector_add_f32"), (20,), (256,), (U64, U64, U64, U64), a, b, c, n)
assert struct.unpack(f"<{n}f", get(c, 4 * n)) == f32([p + q for p, q in zip(x, y)])
put(a, struct.pack(f"<{n}I", *range(n)))
launch(kernel(module, b"accumulate_lcg"), (20,), (256,), (U64, U64, U32), a, n - 8, 123)
assert struct.unpack(f"<{n}I", get(a, 4 * n)) == tuple(lcg(i, 123) if i < n - 8 else i for i in range(n))
m = 19
put(a, struct.pack(f"<{m * m}f", *x[: m * m])); put(b, struct.pack(f"<{m * m}f", *y[: m * m]))
launch(kernel(module, b"matmul_f32"), (3, 3), (8, 8), (U64, U64, U64, U32), a, b, c, m)
want = []
for r in range(m):
    for k in range(m):
        s = 0.0
        for i in range(m):
            s = f32([s + f32([x[r * m + i] * y[i * m + k]])[0]])[0]
        want.append(s)
assert list(struct.unpack(f"<{m * m}f", get(c, 4 * m * m))) == want
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_errors_are_cudas(env: dict[str, str]) -> None:
    program = """
module = begin()
E = cu.CUresult
assert cu.cuModuleGetFunction(module, b"no_such_kernel")[0] == E.CUDA_ERROR_NOT_FOUND
assert cu.cuModuleLoadData(b"hello\\0")[0] == E.CUDA_ERROR_INVALID_IMAGE
assert cu.cuModuleLoadData(b"\\x7fELF" + bytes(64))[0] == E.CUDA_ERROR_NO_BINARY_FOR_GPU
foreign = cu.cuModuleLoadData(b".version 8.0\\n.target sm_90\\n.visible .entry fill_u32(.param .u64 a){ret;}\\0")
assert cu.cuModuleGetFunction(ok(foreign), b"fill_u32")[0] == E.CUDA_ERROR_NOT_FOUND
f = kernel(module, b"fill_u32")
assert cu.cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, 0, ((1, 1, 1), (U64, U32, U64)), 0)[0] == E.CUDA_ERROR_INVALID_VALUE
assert cu.cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, 0, ((1, 1, 1), (U64, U32, U64)), 0)[0] == E.CUDA_ERROR_INVALID_VALUE
assert cu.cuMemFree(1234)[0] == E.CUDA_ERROR_INVALID_VALUE
assert cu.cuMemcpyHtoD(alloc(16), bytes(17), 17)[0] == E.CUDA_ERROR_INVALID_VALUE
assert cu.cuDeviceGet(1)[0] == E.CUDA_ERROR_INVALID_DEVICE
assert ok(cu.cuGetErrorName(E.CUDA_ERROR_OUT_OF_MEMORY)) == b"CUDA_ERROR_OUT_OF_MEMORY"
# An address outside every allocation poisons the context, for good.
launch(f, (1,), (32,), (U64, U32, U64), 0xA0000000F000000, 1, 32)
assert cu.cuCtxSynchronize()[0] == E.CUDA_ERROR_ILLEGAL_ADDRESS
assert cu.cuMemsetD32(alloc(16), 0, 4)[0] == E.CUDA_ERROR_ILLEGAL_ADDRESS
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_memory_is_the_cards_and_comes_back(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(memory=1 << 30)
    env = {**os.environ, **gpu.environment()}
    program = """
begin()
free, total = ok(cu.cuMemGetInfo())
assert total == 1 << 30 and total - (16 << 20) <= free < total, (free, total)
held = [alloc(1 << 28) for _ in range(3)]
last = free - 3 * (1 << 28)
assert cu.cuMemAlloc(last + 1)[0] == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
held.append(alloc(last))
assert ok(cu.cuMemGetInfo())[0] == 0
ok(cu.cuMemFree(held[1]))
again = alloc(1 << 28)
put(again, b"x")
say("right")
"""
    assert raw.run(env, program) == ["right"]
    assert raw.run(env, program) == ["right"]  # the first one's end gave everything back


def test_two_processes_share_the_memory(fresh_gpu: FreshGpu) -> None:
    env = {**os.environ, **fresh_gpu(memory=1 << 30).environment()}
    holder = raw.Running(env, 'begin()\nalloc(1 << 29)\nsay("ready")\nsys.stdin.readline()\n')
    assert holder.line() == "ready"
    program = "begin()\nsay(ok(cu.cuMemGetInfo())[0] < 1 << 29, code(cu.cuMemAlloc(1 << 29)))\n"
    assert raw.run(env, program) == ["True 2"]
    holder.end()


def test_copies_of_every_kind(env: dict[str, str]) -> None:
    program = """
import random
begin()
size = 9 * (1 << 20) + 5
data = random.Random(1).randbytes(size)
a, b = alloc(size), alloc(size)
put(a, data)
ok(cu.cuMemcpyDtoD(b, a, size))
assert get(b, size) == data
stream = ok(cu.cuStreamCreate(1))
pinned = int(ok(cu.cuMemHostAlloc(size, 0)))
ctypes.memmove(pinned, data[::-1], size)
ok(cu.cuMemcpyHtoDAsync(a, pinned, size, stream))
ok(cu.cuMemcpyDtoHAsync(pinned, b, size, stream))
ok(cu.cuStreamSynchronize(stream))
assert get(a, size) == data[::-1]
assert ctypes.string_at(pinned, size) == data
# What an asynchronous copy from pageable memory takes is what was there at the call.
source = bytearray(b"1" * 1000)
ok(cu.cuMemcpyHtoDAsync(a, source, 1000, stream))
source[:] = b"2" * 1000
ok(cu.cuStreamSynchronize(stream))
assert get(a, 1000) == b"1" * 1000
ok(cu.cuMemsetD8(a, 0xAB, 10)); ok(cu.cuMemsetD32(a + 12, 0x01020304, 1))
assert get(a, 16) == b"\\xab" * 10 + b"11" + b"\\4\\3\\2\\1"
assert int(ok(cu.cuMemHostGetDevicePointer(pinned, 0))) == pinned
ok(cu.cuMemFreeHost(pinned))
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_streams_and_events_keep_their_order(env: dict[str, str]) -> None:
    program = """
module = begin()
n = 132 * 256
data = alloc(4 * n)
f, fill = kernel(module, b"accumulate_lcg"), kernel(module, b"fill_u32")
one, two = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreateWithPriority(1, -5))
assert ok(cu.cuStreamGetPriority(two)) == -5
start, end = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
took, asked = [], []
for _ in range(20):
    launch(fill, (132,), (256,), (U64, U32, U64), data, 5, n, stream=one)
    ok(cu.cuEventRecord(start, one))
    launch(f, (132,), (256,), (U64, U64, U32), data, n, 70000, stream=one)
    ok(cu.cuEventRecord(end, one))
    asked.append(cu.cuStreamQuery(one)[0] == cu.CUresult.CUDA_ERROR_NOT_READY)  # unless others had the processor
    ok(cu.cuStreamWaitEvent(two, end, 0))
    launch(f, (132,), (256,), (U64, U64, U32), data, n, 3, stream=two)
    ok(cu.cuStreamSynchronize(two))
    assert struct.unpack("<I", get(data + 400, 4))[0] == lcg(5, 70003)
    took.append(ok(cu.cuEventElapsedTime(start, end)))
assert 0.99 < min(took) < 2, took
assert any(asked)
# The default stream waits for blocking streams, and they for it.
three = ok(cu.cuStreamCreate(0))
launch(fill, (132,), (256,), (U64, U32, U64), data, 5, n, stream=three)
launch(f, (132,), (256,), (U64, U64, U32), data, n, 50000, stream=three)
launch(f, (132,), (256,), (U64, U64, U32), data, n, 1)
launch(f, (132,), (256,), (U64, U64, U32), data, n, 1, stream=three)
ok(cu.cuStreamSynchronize(three))
assert struct.unpack("<I", get(data, 4))[0] == lcg(5, 50002)
ok(cu.cuStreamDestroy(one)); ok(cu.cuEventDestroy(start))
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_a_kernel_waits_for_a_flag_in_host_memory(env: dict[str, str]) -> None:
    program = """
module = begin()
n = 132 * 256
data = alloc(4 * n)
stream = ok(cu.cuStreamCreate(1))
flag = ctypes.c_uint32.from_address(int(ok(cu.cuMemHostAlloc(64, 2))))
for turn in range(1, 20):
    launch(kernel(module, b"wait_flag_u32"), (1,), (1,), (U64, U32), ctypes.addressof(flag), turn, stream=stream)
    launch(kernel(module, b"fill_u32"), (132,), (256,), (U64, U32, U64), data, turn, n, stream=stream)
    time.sleep(0.0003 * turn)
    assert cu.cuStreamQuery(stream)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    flag.value = turn
    ok(cu.cuStreamSynchronize(stream))
    assert struct.unpack("<I", get(data, 4))[0] == turn
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_many_launches_do_not_overrun_anything(env: dict[str, str]) -> None:
    program = """
module = begin()
data = alloc(4)
f = kernel(module, b"accumulate_lcg")
put(data, bytes(4))
for _ in range(5000):
    launch(f, (1,), (1,), (U64, U64, U32), data, 1, 1)
assert struct.unpack("<I", get(data, 4))[0] == lcg(0, 5000)
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_contexts_come_and_go(env: dict[str, str]) -> None:
    program = """
module = begin()
primary = ok(cu.cuCtxGetCurrent())
for _ in range(100):
    made = ok(cu.cuCtxCreate(None, 0, 0))
    assert int(ok(cu.cuCtxGetCurrent())) == int(made)
    data = alloc(1024)
    put(data, bytes(1024))
    ok(cu.cuCtxDestroy(made))
    assert cu.cuMemFree(data)[0] != 0
ok(cu.cuCtxSetCurrent(primary))
put(alloc(4), b"abcd")
say("right")
"""
    assert raw.run(env, program) == ["right"]


@pytest.mark.parametrize("way", ["made", "reset", "released"])
def test_a_context_ends_while_a_stream_has_functions_to_call(env: dict[str, str], way: str) -> None:
    """They are called first, or never; those of the next context are."""
    program = f"""
import ctypes, time
ok(cu.cuInit(0))
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def called(argument):
    calls.append(argument)
    time.sleep(0.02)
call = ctypes.cast(called, ctypes.c_void_p).value
for _ in range(3):
    context = ok(cu.cuCtxCreate(None, 0, 0)) if {way == "made"} else ok(cu.cuDevicePrimaryCtxRetain(0))
    ok(cu.cuCtxSetCurrent(context))
    calls = []
    s = ok(cu.cuStreamCreate(1))
    ok(cu.cuLaunchHostFunc(s, call, 1))
    ok(cu.cuStreamSynchronize(s))
    assert calls == [1]
    for argument in range(2, 6):
        ok(cu.cuLaunchHostFunc(s, call, argument))
    if {way == "made"}:
        ok(cu.cuCtxDestroy(context))
    elif {way == "reset"}:
        ok(cu.cuDevicePrimaryCtxReset(0))
    else:
        ok(cu.cuDevicePrimaryCtxRelease(0))
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_a_forked_child_has_no_gpu_and_hurts_no_one(env: dict[str, str]) -> None:
    program = """
module = begin()
data = alloc(4)
child = os.fork()
if child == 0:
    results = {code(cu.cuCtxSynchronize()), code(cu.cuMemAlloc(4)), code(cu.cuInit(0)), code(cu.cuDeviceGetCount())}
    os._exit(0 if results == {3} else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
put(data, b"abcd")
assert get(data, 4) == b"abcd"
say("right")
"""
    assert raw.run(env, program) == ["right"]


def test_without_a_device_there_is_none(env: dict[str, str]) -> None:
    env["RUNLIST_EMULATED_GPU"] = "/nonexistent"
    assert raw.run(env, "say(code(cu.cuInit(0)))") == ["100"]


def test_a_lost_device_is_an_error_not_a_hang(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    program = """
module = begin()
stream = ok(cu.cuStreamCreate(1))
flag = int(ok(cu.cuMemHostAlloc(64, 2)))
launch(kernel(module, b"wait_flag_u32"), (1,), (1,), (U64, U32), flag, 1, stream=stream)
say("ready")
say(code(cu.cuStreamSynchronize(stream)))
"""
    running = raw.Running({**os.environ, **gpu.environment()}, program)
    assert running.line() == "ready"
    gpu.stop()
    assert running.line() == "46"  # CUDA_ERROR_DEVICE_UNAVAILABLE
    running.end()


def test_a_process_shows_in_nvml(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(gpus=2)
    env = {**os.environ, **gpu.environment()}
    program = "begin(1)\nalloc(1 << 30)\nsay(ok(cu.cuDeviceGetUuid(1)).bytes.hex())\nsys.stdin.readline()\n"
    running = raw.Running(env, program)
    uuid = running.line()
    look = """
import pynvml
pynvml.nvmlInit()
for i in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(i)
    found = [(p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    say(pynvml.nvmlDeviceGetUUID(handle)[4:].replace("-", ""), *found, pynvml.nvmlDeviceGetMemoryInfo(handle).used)
pynvml.nvmlShutdown()
"""
    first, second = raw.run(env, look)
    assert first.split()[1:] == ["0"]
    used = int(second.split()[-1])
    assert second == f"{uuid} ({running.pid}, {used}) {used}"
    assert 1 << 30 < used <= (1 << 30) + (16 << 20)
    assert used % (2 << 20) == 0
    running.end()
