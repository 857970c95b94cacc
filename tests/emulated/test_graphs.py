"""Graphs and stream capture on the emulated libcuda, through cuda-bindings as it comes."""

from __future__ import annotations

import os

from tests.emulated.programs import FreshGpu, check, env

__all__ = ["env"]


def test_a_captured_graph_does_what_was_captured_each_time(env: dict[str, str]) -> None:
    check(
        env,
        """
n, s = 5000, stream()
data, out = alloc(4 * n), alloc(4 * n)
put(data, struct.pack(f"<{n}I", *range(n)))
ok(cu.cuStreamBeginCapture(s, GLOBAL))
assert status(s) == S.CU_STREAM_CAPTURE_STATUS_ACTIVE
advance(data, n, 3, s)
ok(cu.cuMemcpyDtoDAsync(out, data, 4 * n, s))
ok(cu.cuMemsetD32Async(data, 7, 10, s))
graph = ok(cu.cuStreamEndCapture(s))
assert status(s) == S.CU_STREAM_CAPTURE_STATUS_NONE
assert words(data, n) == tuple(range(n))  # nothing has run
nodes = ok(cu.cuGraphGetNodes(graph, 8))[0][: ok(cu.cuGraphGetNodes(graph))[1]]
T = cu.CUgraphNodeType
kinds = [T.CU_GRAPH_NODE_TYPE_KERNEL, T.CU_GRAPH_NODE_TYPE_MEMCPY, T.CU_GRAPH_NODE_TYPE_MEMSET]
assert [ok(cu.cuGraphNodeGetType(node)) for node in nodes] == kinds
assert ok(cu.cuGraphGetRootNodes(graph))[1] == 1
ready = instantiate(graph)
ok(cu.cuGraphDestroy(graph))  # what is ready needs it no more
want = list(range(n))
for _ in range(3):
    ok(cu.cuGraphLaunch(ready, s))
    want = [lcg(x, 3) for x in want]
    ok(cu.cuStreamSynchronize(s))
    assert words(out, n) == tuple(want)
    want[:10] = [7] * 10
    assert words(data, n) == tuple(want)
for _ in range(1000):
    ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuGraphExecDestroy(ready))
ok(cu.cuStreamSynchronize(s))
assert word(out + 4 * 11) == lcg(11, 3 * 1003)
""",
    )


def test_capture_follows_events_across_streams(env: dict[str, str]) -> None:
    check(
        env,
        """
n = 132 * 256
a, b, c = stream(), stream(), stream()
data, other = alloc(4 * n), alloc(4 * n)
fork, join = ok(cu.cuEventCreate(2)), ok(cu.cuEventCreate(2))
ok(cu.cuStreamBeginCapture(a, RELAXED))
fill(data, n, 5, a)
ok(cu.cuEventRecord(fork, a))
ok(cu.cuStreamWaitEvent(b, fork, 0))
assert status(b) == S.CU_STREAM_CAPTURE_STATUS_ACTIVE
assert status(c) == S.CU_STREAM_CAPTURE_STATUS_NONE
assert cu.cuEventQuery(join)[0] == E.CUDA_SUCCESS
fill(other, n, 9, b)
advance(data, n, 11, a)
ok(cu.cuEventRecord(join, b))
ok(cu.cuStreamWaitEvent(a, join, 0))
info = ok(cu.cuStreamGetCaptureInfo(a))
assert info[0] == S.CU_STREAM_CAPTURE_STATUS_ACTIVE and int(info[1]) > 0 and len(info[3]) == 2, info
advance(other, n, 4, a)
graph = ok(cu.cuStreamEndCapture(a))
assert status(b) == S.CU_STREAM_CAPTURE_STATUS_NONE
ready = instantiate(graph)
ok(cu.cuGraphLaunch(ready, c))
ok(cu.cuStreamSynchronize(c))
assert (word(data), word(other + 4 * (n - 1))) == (lcg(5, 11), lcg(9, 4))
# Work of b behind its last event is lost to a: the capture does not end well.
ok(cu.cuStreamBeginCapture(a, RELAXED))
ok(cu.cuEventRecord(fork, a))
ok(cu.cuStreamWaitEvent(b, fork, 0))
fill(other, n, 9, b)
assert cu.cuStreamEndCapture(a)[0] == E.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
fill(other, n, 9, b)
ok(cu.cuStreamSynchronize(b))
""",
    )


def test_what_cannot_be_captured_makes_the_capture_fail(env: dict[str, str]) -> None:
    check(
        env,
        """
import threading
a, b = stream(), stream()
data = alloc(4096)
event, before = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
ok(cu.cuEventRecord(before, b))
def fails(call, expected, begin=lambda: None, mode=RELAXED):
    ok(cu.cuStreamBeginCapture(a, mode))
    begin()
    got = call()[0]
    assert got == expected, got
    assert status(a) == S.CU_STREAM_CAPTURE_STATUS_INVALIDATED
    assert cu.cuMemsetD8Async(data, 0, 16, a)[0] == E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    assert cu.cuStreamEndCapture(a)[0] == E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    assert status(a) == S.CU_STREAM_CAPTURE_STATUS_NONE
    ok(cu.cuMemsetD8Async(data, 0, 16, a))
    ok(cu.cuStreamSynchronize(a))
record = lambda: ok(cu.cuEventRecord(event, a))
fails(lambda: cu.cuStreamSynchronize(a), E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
fails(lambda: cu.cuStreamQuery(a), E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
fails(lambda: cu.cuCtxSynchronize(), E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
fails(lambda: cu.cuEventQuery(event), E.CUDA_ERROR_CAPTURED_EVENT, record)
fails(lambda: cu.cuEventSynchronize(event), E.CUDA_ERROR_CAPTURED_EVENT, record)
fails(lambda: cu.cuStreamWaitEvent(a, before, 0), E.CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
# Nor may be asked for anything else, or made in order, unless the capture is relaxed.
unsafe = {
    "event": lambda: cu.cuEventQuery(before),
    "wait for event": lambda: cu.cuEventSynchronize(before),
    "stream": lambda: cu.cuStreamQuery(b),
    "wait for stream": lambda: cu.cuStreamSynchronize(b),
    "default stream": lambda: cu.cuStreamQuery(0),
    "wait for default stream": lambda: cu.cuStreamSynchronize(0),
    "memory": lambda: cu.cuMemAllocAsync(4096, b),
}
for name, call in unsafe.items():
    for mode in (GLOBAL, LOCAL):
        fails(call, E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, mode=mode)
    ok(cu.cuStreamBeginCapture(a, RELAXED))
    ok(call())
    ok(cu.cuStreamEndCapture(a))
# Another thread may ask, unless a capture is global and the thread does not say that it may.
asked = []
def ask(mode):
    def run():
        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuThreadExchangeStreamCaptureMode(mode))
        asked.append(cu.cuEventQuery(before)[0])
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return (asked[-1],)
context = ok(cu.cuCtxGetCurrent())
fails(lambda: ask(GLOBAL), E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, mode=GLOBAL)
for mode, asker in ((LOCAL, GLOBAL), (GLOBAL, RELAXED), (GLOBAL, LOCAL)):
    ok(cu.cuStreamBeginCapture(a, mode))
    assert ask(asker) == (E.CUDA_SUCCESS,)
    ok(cu.cuStreamEndCapture(a))
assert ok(cu.cuThreadExchangeStreamCaptureMode(RELAXED)) == GLOBAL
ok(cu.cuStreamBeginCapture(a, GLOBAL))
assert cu.cuEventQuery(before)[0] == E.CUDA_SUCCESS
ok(cu.cuStreamEndCapture(a))
ok(cu.cuThreadExchangeStreamCaptureMode(GLOBAL))
# Beginnings and ends that do not fit.
assert cu.cuStreamBeginCapture(0, RELAXED)[0] == E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
assert cu.cuStreamEndCapture(a)[0] == E.CUDA_ERROR_ILLEGAL_STATE
ok(cu.cuStreamBeginCapture(a, RELAXED))
assert cu.cuStreamBeginCapture(a, RELAXED)[0] == E.CUDA_ERROR_ILLEGAL_STATE
record()
ok(cu.cuStreamWaitEvent(b, event, 0))
assert cu.cuStreamEndCapture(b)[0] == E.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
assert cu.cuStreamEndCapture(a)[0] == E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
ok(cu.cuStreamBeginCapture(a, RELAXED))
ok(cu.cuStreamBeginCapture(b, RELAXED))
record()
assert cu.cuStreamWaitEvent(b, event, 0)[0] == E.CUDA_ERROR_STREAM_CAPTURE_MERGE
for s in (a, b):
    assert cu.cuStreamEndCapture(s)[0] == E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
# The default stream orders with blocking streams, which it cannot while one captures.
blocking = stream(0)
ok(cu.cuStreamBeginCapture(blocking, RELAXED))
assert cu.cuStreamIsCapturing(0)[0] == E.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
assert cu.cuMemsetD8Async(data, 0, 16, 0)[0] == E.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
assert cu.cuStreamEndCapture(blocking)[0] == E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
ok(cu.cuStreamBeginCapture(a, RELAXED))
ok(cu.cuMemsetD8Async(data, 0, 16, 0))
ok(cu.cuGraphDestroy(ok(cu.cuStreamEndCapture(a))))
ok(cu.cuStreamBeginCapture(b, RELAXED))
ok(cu.cuStreamDestroy(b))
""",
    )


def test_a_graph_made_by_hand_keeps_its_order(env: dict[str, str]) -> None:
    check(
        env,
        """
n, s = 3000, stream()
data, out = alloc(4 * n), alloc(4 * n)
graph = ok(cu.cuGraphCreate(0))
memset = cu.CUDA_MEMSET_NODE_PARAMS()
memset.dst, memset.value, memset.elementSize, memset.width, memset.height = data, 3, 4, n, 1
ctx = ok(cu.cuCtxGetCurrent())
# Added in another order than that in which they have to run.
copy = cu.CUDA_MEMCPY3D()
copy.srcMemoryType = copy.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
copy.srcDevice, copy.dstDevice, copy.WidthInBytes, copy.Height, copy.Depth = data, out, 4 * n, 1, 1
copied = ok(cu.cuGraphAddMemcpyNode(graph, [], 0, copy, ctx))
kernel_params = kernel_node(lcg_f, 12, 256, (U64, U64, U32), data, n, 21)
advanced = ok(cu.cuGraphAddKernelNode(graph, [], 0, kernel_params))
cleared = ok(cu.cuGraphAddMemsetNode(graph, [], 0, memset, ctx))
empty = ok(cu.cuGraphAddEmptyNode(graph, [cleared], 1))
ok(cu.cuGraphAddDependencies(graph, [empty, advanced], [advanced, copied], None, 2))
assert cu.cuGraphAddDependencies(graph, [empty], [advanced], None, 1)[0] == E.CUDA_ERROR_INVALID_VALUE
copy_of_it = ok(cu.cuGraphClone(graph))
ready = instantiate(graph)
def result():
    ok(cu.cuMemsetD8(out, 0, 4 * n))
    ok(cu.cuGraphLaunch(ready, s))
    ok(cu.cuStreamSynchronize(s))
    found = set(words(out, n))
    assert len(found) == 1
    return found.pop()
assert result() == lcg(3, 21)
# New parameters for what is ready, and then for the graph.
kernel_params.kernelParams = ((data, n, 5), (U64, U64, U32))
ok(cu.cuGraphExecKernelNodeSetParams(ready, advanced, kernel_params))
assert result() == lcg(3, 5)
kernel_params.kernelParams = ((data, n, 8), (U64, U64, U32))
ok(cu.cuGraphKernelNodeSetParams(advanced, kernel_params))
assert result() == lcg(3, 5)
got = ok(cu.cuGraphKernelNodeGetParams(advanced))
assert (got.gridDimX, got.blockDimX, int(got.func)) == (12, 256, int(lcg_f))
assert ok(cu.cuGraphExecUpdate(ready, graph)).result == cu.CUgraphExecUpdateResult.CU_GRAPH_EXEC_UPDATE_SUCCESS
assert result() == lcg(3, 8)
ready = instantiate(copy_of_it)
assert result() == lcg(3, 21)
# A graph inside a graph, and one that is not like it.
outer = ok(cu.cuGraphCreate(0))
child = ok(cu.cuGraphAddChildGraphNode(outer, [], 0, copy_of_it))
twice = cu.CUDA_MEMCPY3D()
ok(cu.cuGraphAddKernelNode(outer, [child], 1, kernel_node(lcg_f, 12, 256, (U64, U64, U32), out, n, 2)))
changed = cu.cuGraphExecUpdate(ready, outer)
assert changed[0] == E.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
ready = instantiate(outer)
assert result() == lcg(3, 23)
# What needs itself cannot be made ready.
ok(cu.cuGraphAddDependencies(graph, [copied], [cleared], None, 1))
assert cu.cuGraphInstantiate(graph, 0)[0] == E.CUDA_ERROR_INVALID_VALUE
""",
    )


def test_captured_graphs_capture_and_graphs_take_turns(env: dict[str, str]) -> None:
    check(
        env,
        """
n, s, t = 132 * 256, stream(), stream()
data = alloc(4 * n)
fill(data, n, 1, s)
ok(cu.cuStreamSynchronize(s))
ok(cu.cuStreamBeginCapture(s, RELAXED))
advance(data, n, 20000, s)
inner = instantiate(ok(cu.cuStreamEndCapture(s)))
ok(cu.cuStreamBeginCapture(s, RELAXED))
ok(cu.cuGraphLaunch(inner, s))
advance(data, n, 1, s)
ok(cu.cuGraphLaunch(inner, s))
outer = instantiate(ok(cu.cuStreamEndCapture(s)))
ok(cu.cuGraphLaunch(outer, s))
ok(cu.cuStreamSynchronize(s))
assert word(data) == lcg(1, 40001)
# One graph in two streams: one launch after the other.
for _ in range(10):
    ok(cu.cuGraphLaunch(inner, s))
    ok(cu.cuGraphLaunch(inner, t))
ok(cu.cuStreamSynchronize(t))
assert word(data) == lcg(1, 440001)
""",
    )


def test_graphs_reach_host_memory_in_their_turn(env: dict[str, str]) -> None:
    check(
        env,
        """
s, size = stream(), 100_000
a, b = alloc(size), alloc(size)
source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
pinned = int(ok(cu.cuMemHostAlloc(size, 0)))
calls = []
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def called(argument):
    calls.append((argument, target.raw[:1], ctypes.string_at(pinned, 1)))
call = ctypes.cast(called, ctypes.c_void_p).value
ok(cu.cuStreamBeginCapture(s, RELAXED))
ok(cu.cuMemcpyHtoDAsync(a, ctypes.addressof(source), size, s))
ok(cu.cuMemcpyDtoHAsync(pinned, a, size, s))
ok(cu.cuMemcpyDtoDAsync(b, a, size, s))
ok(cu.cuMemcpyDtoHAsync(ctypes.addressof(target), b, size, s))
ok(cu.cuLaunchHostFunc(s, call, 77))
graph = ok(cu.cuStreamEndCapture(s))
ready = instantiate(graph)
for letter in (b"x", b"y", b"z"):
    source.raw = letter * size
    ok(cu.cuGraphLaunch(ready, s))
    ok(cu.cuStreamSynchronize(s))
    assert target.raw == letter * size
    assert ctypes.string_at(pinned, size) == letter * size
assert calls == [(77, letter, letter) for letter in (b"x", b"y", b"z")]
host = cu.CUDA_HOST_NODE_PARAMS()
host.fn, host.userData = call, 78
ok(cu.cuGraphAddHostNode(graph, [], 0, host))
ready = instantiate(graph)
ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuStreamSynchronize(s))
assert sorted(argument for argument, *_ in calls[3:]) == [77, 78]
ok(cu.cuGraphExecDestroy(ready))
""",
    )


def test_parameters_are_those_of_the_capture(env: dict[str, str]) -> None:
    check(
        env,
        """
s, data = stream(), alloc(4)
address, value, count = U64(data), U32(41), U64(1)
parameters = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (address, value, count)))
ok(cu.cuStreamBeginCapture(s, RELAXED))
ok(cu.cuLaunchKernel(fill_f, 1, 1, 1, 32, 1, 1, 0, s, ctypes.addressof(parameters), 0))
graph = ok(cu.cuStreamEndCapture(s))
value.value = 42
ready = instantiate(graph)
ok(cu.cuGraphUpload(ready, s))
ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuStreamSynchronize(s))
assert word(data) == 41
""",
    )


def test_long_graphs_and_many_copies_overrun_nothing(env: dict[str, str]) -> None:
    check(
        env,
        """
s, data = stream(), alloc(4)
put(data, bytes(4))
ok(cu.cuStreamBeginCapture(s, RELAXED))
for _ in range(3000):
    advance(data, 1, 1, s)
ready = instantiate(ok(cu.cuStreamEndCapture(s)))
for _ in range(4):
    ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuStreamSynchronize(s))
assert word(data) == lcg(0, 12000)
""",
    )


def test_memory_of_graphs_is_taken_at_the_first_launch(fresh_gpu: FreshGpu) -> None:
    env = {**os.environ, **fresh_gpu(memory=1 << 30).environment()}
    check(
        env,
        """
s, n = stream(), 1000
out = alloc(4 * n)
def free():
    return ok(cu.cuMemGetInfo())[0]
before = free()
A = cu.CUgraphMem_attribute
def attribute(name):
    return int(ok(cu.cuDeviceGetGraphMemAttribute(0, name)))
def captured(size, give_back):
    ok(cu.cuStreamBeginCapture(s, RELAXED))
    data = int(ok(cu.cuMemAllocAsync(size, s)))
    fill(data, n, 3, s)
    advance(data, n, 5, s)
    ok(cu.cuMemcpyDtoDAsync(out, data, 4 * n, s))
    if give_back:
        ok(cu.cuMemFreeAsync(data, s))
    return ok(cu.cuStreamEndCapture(s)), data
graph, _ = captured(3 << 20, True)
ready = instantiate(graph)
assert free() == before
for _ in range(2):
    ok(cu.cuMemsetD8(out, 0, 4 * n))
    ok(cu.cuGraphLaunch(ready, s))
    ok(cu.cuStreamSynchronize(s))
    assert set(words(out, n)) == {lcg(3, 5)}
    assert free() == before - (4 << 20)  # kept for the next launch
assert attribute(A.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 4 << 20
assert attribute(A.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0
ok(cu.cuDeviceGraphMemTrim(0))
assert free() == before
ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuStreamSynchronize(s))
ok(cu.cuGraphExecDestroy(ready))
ok(cu.cuGraphDestroy(graph))
ok(cu.cuDeviceGraphMemTrim(0))
assert free() == before
assert attribute(A.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 4 << 20
# What a graph leaves allocated is there behind it, until somebody frees it.
graph, data = captured(4 * n, False)
ready = instantiate(graph)
ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuStreamSynchronize(s))
assert set(words(data, n)) == {lcg(3, 5)}
assert cu.cuGraphLaunch(ready, s)[0] == E.CUDA_ERROR_INVALID_VALUE
ok(cu.cuDeviceGraphMemTrim(0))
assert free() == before - (2 << 20)
ok(cu.cuMemFreeAsync(data, s))
ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuMemFree(data))
assert cu.cuMemFree(data)[0] == E.CUDA_ERROR_INVALID_VALUE
ready = ok(cu.cuGraphInstantiate(graph, 1))  # frees before each launch
for _ in range(3):
    ok(cu.cuGraphLaunch(ready, s))
ok(cu.cuMemFreeAsync(data, s))
ok(cu.cuStreamSynchronize(s))
ok(cu.cuDeviceGraphMemTrim(0))
# More than there is: the launch is refused, and nothing of the graph has run.
graph, _ = captured(2 << 30, True)
big = instantiate(graph)
ok(cu.cuMemsetD8(out, 0, 4 * n))
assert cu.cuGraphLaunch(big, s)[0] == E.CUDA_ERROR_OUT_OF_MEMORY
ok(cu.cuStreamSynchronize(s))
assert set(words(out, n)) == {0}
# The same by hand.
graph = ok(cu.cuGraphCreate(0))
wanted = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
wanted.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
wanted.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
wanted.poolProps.location.id = 0
wanted.bytesize = 4 * n
made = ok(cu.cuGraphAddMemAllocNode(graph, [], 0, wanted))
data = int(wanted.dptr)
filled = ok(cu.cuGraphAddKernelNode(graph, [made], 1, kernel_node(fill_f, 4, 256, (U64, U32, U64), data, 9, n)))
copy = cu.CUDA_MEMCPY3D()
copy.srcMemoryType = copy.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
copy.srcDevice, copy.dstDevice, copy.WidthInBytes, copy.Height, copy.Depth = data, out, 4 * n, 1, 1
copied = ok(cu.cuGraphAddMemcpyNode(graph, [filled], 1, copy, ok(cu.cuCtxGetCurrent())))
ok(cu.cuGraphAddMemFreeNode(graph, [copied], 1, data))
ok(cu.cuGraphLaunch(instantiate(graph), s))
ok(cu.cuStreamSynchronize(s))
assert set(words(out, n)) == {9}
""",
    )
