"""The less common launches, copies and questions on the emulated libcuda, through cuda-bindings as it comes."""

from __future__ import annotations

from tests.emulated.programs import check, env

__all__ = ["env"]


def test_launches_of_every_kind(env: dict[str, str]) -> None:
    check(
        env,
        """
s, n = stream(), 132 * 256
data = alloc(4 * n)
values = ((data, 6, n), (U64, U32, U64))
ok(cu.cuLaunchCooperativeKernel(fill_f, 132, 1, 1, 256, 1, 1, 0, s, values))
ok(cu.cuStreamSynchronize(s))
assert word(data + 4 * (n - 1)) == 6
assert ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(fill_f, 256, 0)) == 8
assert ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(fill_f, 256, 100000)) == 2
too_many = cu.cuLaunchCooperativeKernel(fill_f, 132 * 8 + 1, 1, 1, 256, 1, 1, 0, s, values)
assert too_many[0] == E.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
config = cu.CUlaunchConfig()
config.gridDimX, config.gridDimY, config.gridDimZ = 132, 1, 1
config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
config.hStream = s
priority, cluster = cu.CUlaunchAttribute(), cu.CUlaunchAttribute()
priority.id, priority.value.priority = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY, -1
cluster.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
cluster.value.clusterDim.x = cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
for attributes in ([], [priority], [priority, cluster]):
    config.attrs, config.numAttrs = attributes, len(attributes)
    ok(cu.cuMemsetD8(data, 0, 4 * n))
    ok(cu.cuLaunchKernelEx(config, fill_f, values, 0))
    ok(cu.cuStreamSynchronize(s))
    assert word(data + 4 * (n - 1)) == 6
cluster.value.clusterDim.x = 5  # 132 blocks are no whole number of these
config.attrs, config.numAttrs = [cluster], 1
assert cu.cuLaunchKernelEx(config, fill_f, values, 0)[0] == E.CUDA_ERROR_INVALID_VALUE
""",
    )


def test_rows_and_slices(env: dict[str, str]) -> None:
    check(
        env,
        """
import random
pitch, rows, width = 512, 40, 300
source = random.Random(2).randbytes(width * rows)
held = ctypes.create_string_buffer(source, len(source))
back = ctypes.create_string_buffer(len(source))
data = alloc(pitch * rows)
ok(cu.cuMemsetD8(data, 0xEE, pitch * rows))
M = cu.CUmemorytype
there = cu.CUDA_MEMCPY2D()
there.srcMemoryType, there.dstMemoryType = M.CU_MEMORYTYPE_HOST, M.CU_MEMORYTYPE_DEVICE
there.srcHost, there.srcPitch, there.dstDevice, there.dstPitch = ctypes.addressof(held), width, data, pitch
there.WidthInBytes, there.Height = width, rows
ok(cu.cuMemcpy2D(there))
whole = get(data, pitch * rows)
for row in range(rows):
    assert whole[row * pitch : (row + 1) * pitch] == source[row * width : (row + 1) * width] + b"\\xee" * 212
# Part of it and back, in a stream and in a graph.
s = stream()
part = cu.CUDA_MEMCPY2D()
part.srcMemoryType, part.dstMemoryType = M.CU_MEMORYTYPE_DEVICE, M.CU_MEMORYTYPE_HOST
part.srcDevice, part.srcPitch, part.dstHost, part.dstPitch = data, pitch, ctypes.addressof(back), 100
part.srcXInBytes, part.srcY, part.WidthInBytes, part.Height = 50, 3, 100, 7
want = b"".join(source[row * width + 50 : row * width + 150] for row in range(3, 10))
ok(cu.cuMemcpy2DAsync(part, s))
ok(cu.cuStreamSynchronize(s))
assert back.raw[:700] == want
ok(cu.cuStreamBeginCapture(s, RELAXED))
ok(cu.cuMemcpy2DAsync(part, s))
ok(cu.cuMemsetD2D16Async(data + 2, pitch, 0x0102, 3, 4, s))
graph = ok(cu.cuStreamEndCapture(s))
assert ok(cu.cuGraphGetNodes(graph))[1] == 2
back.raw = bytes(len(source))
ok(cu.cuGraphLaunch(instantiate(graph), s))
ok(cu.cuStreamSynchronize(s))
assert back.raw[:701] == want + b"\\0"
assert [get(data + row * pitch + 2, 6) for row in range(4)] == [b"\\2\\1" * 3] * 4
assert get(data + 8, 2) == source[8:10]
ok(cu.cuMemsetD2D32(data, pitch, 9, 2, rows))
assert [words(data + row * pitch, 2) for row in (0, rows - 1)] == [(9, 9)] * 2
ok(cu.cuMemsetD2D8(data, pitch, 1, pitch, rows))
assert get(data, pitch * rows) == b"\\1" * pitch * rows
# A box out of a box.
box = alloc(8 * 8 * 8)
put(box, bytes(range(256)) * 2)
cut = cu.CUDA_MEMCPY3D()
cut.srcMemoryType = cut.dstMemoryType = M.CU_MEMORYTYPE_DEVICE
cut.srcDevice, cut.srcPitch, cut.srcHeight = box, 8, 8
cut.srcXInBytes, cut.srcY, cut.srcZ = 1, 2, 3
cut.dstDevice, cut.dstPitch, cut.dstHeight = data, 4, 3
cut.WidthInBytes, cut.Height, cut.Depth = 4, 3, 2
ok(cu.cuMemcpy3D(cut))
assert get(data, 24) == bytes((x + 1 + 8 * (y + 2) + 64 * (z + 3)) % 256
                              for z in range(2) for y in range(3) for x in range(4))
cut.srcMemoryType = M.CU_MEMORYTYPE_HOST
assert cu.cuMemcpy3D(cut)[0] == E.CUDA_ERROR_INVALID_VALUE
ctx = ok(cu.cuCtxGetCurrent())
ok(cu.cuMemcpyPeer(data, ctx, box, ctx, 512))
ok(cu.cuMemcpyPeerAsync(data + 512, ctx, box, ctx, 512, s))
ok(cu.cuStreamSynchronize(s))
assert get(data, 1024) == bytes(range(256)) * 4
""",
    )


def test_per_thread_forms_have_streams_of_their_own(env: dict[str, str]) -> None:
    check(
        env,
        """
lib = ctypes.CDLL("libcuda.so.1")
def address(name, version=13000, flags=0):
    found, status = U64(), ctypes.c_int()
    call = lib.cuGetProcAddress_v2
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
    result = call(name, ctypes.addressof(found), version, flags, ctypes.addressof(status))
    assert (result, status.value) == (0, 0), name
    return found.value
def symbol(name):
    return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
# What is found by name and by symbol is the same function.
for name, version, plain, per_thread in (
    (b"cuLaunchKernel", 7000, "cuLaunchKernel", "cuLaunchKernel_ptsz"),
    (b"cuMemcpyHtoD", 7000, "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"),
    (b"cuMemcpy2DAsync", 7000, "cuMemcpy2DAsync_v2", "cuMemcpy2DAsync_v2_ptsz"),
    (b"cuMemPrefetchAsync", 8000, "cuMemPrefetchAsync", "cuMemPrefetchAsync_ptsz"),
    (b"cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2", "cuMemPrefetchAsync_v2_ptsz"),
    (b"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"),
    (b"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3", "cuStreamGetCaptureInfo_v3_ptsz"),
    (b"cuGraphLaunch", 10000, "cuGraphLaunch", "cuGraphLaunch_ptsz"),
    (b"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags"),
):
    assert address(name, version) == symbol(plain), name
    assert address(name, version, 2) == symbol(per_thread), name
n = 132 * 256
data, flag = alloc(4 * n), int(ok(cu.cuMemHostAlloc(64, 2)))
ctypes.memset(flag, 0, 64)
wait_f = kernel(module, b"wait_flag_u32")
# The default stream waits; the thread's own, which is asked for by these functions, is behind it only if it blocks.
capture = ctypes.CFUNCTYPE(ctypes.c_int, U64, ctypes.c_int)(address(b"cuStreamBeginCapture", 13000, 2))
launch_own = ctypes.CFUNCTYPE(ctypes.c_int, U64, *[ctypes.c_uint] * 7, U64, U64, U64)(
    address(b"cuLaunchKernel", 13000, 2))
end = ctypes.CFUNCTYPE(ctypes.c_int, U64, ctypes.c_void_p)(address(b"cuStreamEndCapture", 13000, 2))
run = ctypes.CFUNCTYPE(ctypes.c_int, U64, U64)(address(b"cuGraphLaunch", 13000, 2))
sync = ctypes.CFUNCTYPE(ctypes.c_int, U64)(address(b"cuStreamSynchronize", 13000, 2))
assert capture(0, 2) == 0  # stream 0 is one that can capture
held = U64(data), U32(13), U64(n)
parameters = (ctypes.c_void_p * 3)(*map(ctypes.addressof, held))
assert launch_own(int(fill_f), 132, 1, 1, 256, 1, 1, 0, 0, ctypes.addressof(parameters), 0) == 0
assert status(cu.CUstream(2)) == S.CU_STREAM_CAPTURE_STATUS_ACTIVE  # CU_STREAM_PER_THREAD
graph = U64()
assert end(0, ctypes.addressof(graph)) == 0
ready = instantiate(cu.CUgraph(graph.value))
assert run(int(ready), 0) == 0 and sync(0) == 0
assert word(data) == 13
""",
    )


def test_small_questions(env: dict[str, str]) -> None:
    check(
        env,
        """
L = cu.CUlimit
assert ok(cu.cuCtxGetLimit(L.CU_LIMIT_STACK_SIZE)) == 1024
ok(cu.cuCtxSetLimit(L.CU_LIMIT_STACK_SIZE, 4096))
assert ok(cu.cuCtxGetLimit(L.CU_LIMIT_STACK_SIZE)) == 4096
assert cu.cuCtxGetLimit(L.CU_LIMIT_CIG_ENABLED)[0] == E.CUDA_ERROR_UNSUPPORTED_LIMIT
context = ok(cu.cuCtxGetCurrent())
other = ok(cu.cuCtxCreate(None, 0, 0))
ids = {ok(cu.cuCtxGetId(context)), ok(cu.cuCtxGetId(other))}
assert len(ids) == 2 and ok(cu.cuCtxGetId(None)) == ok(cu.cuCtxGetId(other))
assert ok(cu.cuCtxGetLimit(L.CU_LIMIT_STACK_SIZE)) == 1024
s = stream()
assert int(ok(cu.cuStreamGetDevice(s))) == 0
assert int(ok(cu.cuStreamGetCtx(s))) == int(other)
assert ok(cu.cuStreamGetId(s)) != ok(cu.cuStreamGetId(stream()))
assert ok(cu.cuDeviceCanAccessPeer(0, 0)) == 0
start, end = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
ok(cu.cuEventRecordWithFlags(start, s, 0)); ok(cu.cuEventRecordWithFlags(end, s, 0))
ok(cu.cuEventSynchronize(end))
assert ok(cu.cuEventElapsedTime(start, end)) >= 0
""",
    )


def test_a_full_stream_makes_who_fills_it_wait(env: dict[str, str]) -> None:
    check(
        env,
        """
import threading
s, other, data = stream(), stream(), alloc(64)
flag = int(ok(cu.cuMemHostAlloc(64, 2)))
ctypes.memset(flag, 0, 64)
launch(kernel(module, b"wait_flag_u32"), (1,), (1,), (U64, U32), flag, 1, stream=s)
timer = threading.Timer(0.5, lambda: ctypes.memset(flag, 1, 1))
timer.start()
event = ok(cu.cuEventCreate(2))
for _ in range(2000):
    ok(cu.cuMemcpyDtoDAsync(data, data + 32, 16, s))
    ok(cu.cuMemsetD8Async(data, 1, 16, s))
    ok(cu.cuEventRecord(event, s))
ok(cu.cuStreamSynchronize(s))
timer.join()
assert get(data, 16) == b"\\1" * 16
""",
    )
