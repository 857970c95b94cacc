"""Programs that ask for more than their quota in every way that CUDA has, with sizes that nobody means, and that let go
of memory in unusual order. What they hold is what the driver says to others, never more than the limit, and none of it
is charged when they have given it back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ON_NVIDIA
from tests.emulated.memory_ways import WAYS
from tests.emulated.raw import PRELUDE
from tests.fixtures.daemon import Commands, Daemon, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

MiB = 1 << 20
ROOM = 90 * MiB
"""What the limit leaves beside a context."""

# `room()` is what is left of the limit; `fill()` takes pieces until there is none.
PROGRAM = (
    f"{PRELUDE}{WAYS}"
    """
MiB = 1 << 20
LIMIT, OOM = int(sys.argv[1]), 2
def room():
    return ok(cu.cuMemGetInfo())[0]
def flush():
    ok(cu.cuCtxSynchronize())
module = begin()
begun = room()
assert ok(cu.cuMemGetInfo())[1] == LIMIT and 0 < begun < LIMIT
"""
)
END = """
assert room() == begun, (room(), begun)
taken = alloc(begun)
assert code(cu.cuMemAlloc(1)) == OOM
say("right")
sys.stdin.readline()
"""

WAYS_TO_TRY = {
    "graphs": """
params = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
params.poolProps = POOL
params.poolProps.allocType, params.poolProps.location = PROPS.type, PROPS.location
params.bytesize = 30 * MiB
held, execs = [], []
for _ in range(6):
    graph = ok(cu.cuGraphCreate(0))
    _, made = ok(cu.cuGraphAddMemAllocNode(graph, None, 0, params)), params.dptr
    result = cu.cuGraphInstantiate(graph, 0)
    if int(result[0]):
        assert code(result) == OOM
        continue
    answer = code(cu.cuGraphLaunch(result[1], 0))
    assert answer in (0, OOM), answer
    if answer == 0:
        held.append(int(made))
    ok(cu.cuGraphDestroy(graph))
    execs.append(result[1])
assert 1 <= len(held) <= 3, held
assert room() <= begun - len(held) * 30 * MiB
for exec in execs: ok(cu.cuGraphExecDestroy(exec))
for address in held: ok(cu.cuMemFreeAsync(address, 0))
flush()
ok(cu.cuDeviceGraphMemTrim(0))
""",
    "partly mapped": """
base = int(ok(cu.cuMemAddressReserve(400 * MiB, 0, 0, 0)))
held = []
for i in range(20):
    result = cu.cuMemCreate(20 * MiB, PROPS, 0)
    if int(result[0]): break
    ok(cu.cuMemMap(base + i * PAGE, PAGE, 0, result[1], 0))
    ok(cu.cuMemSetAccess(base + i * PAGE, PAGE, [ACCESS], 1))
    ok(cu.cuMemRelease(result[1]))
    held.append(i)
assert 1 <= len(held) <= 4
assert room() == begun - len(held) * 20 * MiB
again = [ok(cu.cuMemRetainAllocationHandle(base + i * PAGE)) for i in held]
for i in held: ok(cu.cuMemUnmap(base + i * PAGE, PAGE))
assert room() == begun - len(held) * 20 * MiB
for handle in again: ok(cu.cuMemRelease(handle))
ok(cu.cuMemAddressFree(base, 400 * MiB))
""",
    "pools": """
held, pools = [], []
for i in range(9):
    pool = ok(cu.cuMemPoolCreate(POOL)); pools.append(pool)
    ok(cu.cuMemPoolSetAttribute(pool, ATTRIBUTE.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cu.cuuint64_t((1 << 64) - 1)))
    result = cu.cuMemAllocFromPoolAsync(30 * MiB, pool, 0)
    if i % 2: ok(cu.cuMemPoolDestroy(pool))
    if int(result[0]) == 0: held.append(int(result[1]))
assert 1 <= len(held) <= 3
for address in held: ok(cu.cuMemFreeAsync(address, 0))
flush()
again = alloc(begun)  # what pools only keep is had again
ok(cu.cuMemFree(again))
for pool in pools[::2]: ok(cu.cuMemPoolDestroy(pool))
flush()
""",
    "managed": """
held = []
for i in range(6):
    result = cu.cuMemAllocManaged(30 * MiB, 1 + i % 2)
    if int(result[0]): continue
    held.append(int(result[1]))
assert 1 <= len(held) <= 3
assert room() == begun - len(held) * 30 * MiB
assert code(cu.cuMemFree(held[0] + 4096)) != 0
assert room() == begun - len(held) * 30 * MiB
for address in held: ok(cu.cuMemFree(address))
for address in held: assert code(cu.cuMemFree(address)) != 0
""",
    "sizes": """
TOP = 1 << 64
for size in (TOP // 2 - 1, TOP // 2, TOP - 1, TOP - PAGE, TOP - PAGE + 1, 1 << 48, (1 << 48) + 1, 1 << 49):
    for call in (
        lambda: cu.cuMemAlloc(size), lambda: cu.cuMemAllocAsync(size, 0), lambda: cu.cuMemAllocManaged(size, 1),
        lambda: cu.cuMemCreate(size, PROPS, 0), lambda: cu.cuMemAllocPitch(size, 1, 4),
        lambda: cu.cuMemAllocPitch(1, size, 4),
        lambda: cu.cuMemAllocPitch(size, size, 16), lambda: cu.cuMemAllocPitch(1 << 32, 1 << 32, 16),
        lambda: cu.cuArray3DCreate(descriptor(size, 1)), lambda: cu.cuArray3DCreate(descriptor(1, size)),
        lambda: cu.cuArray3DCreate(descriptor(size, size, size)),
        lambda: cu.cuMipmappedArrayCreate(descriptor(size, size), 3),
        lambda: cu.cuArray3DCreate(descriptor(1 << 16, 1 << 15, 1 << 14)),
    ):
        result = call()
        assert code(result) != 0, (size, result)
        assert room() == begun, (size, result)
""",
    "contexts": """
CREATE = [None] if cu.CUDA_VERSION >= 13000 else []
made = []
for _ in range(200):
    result = cu.cuCtxCreate(*CREATE, 0, 0)
    if int(result[0]): break
    made.append(result[1])
assert code(result) == OOM, result
assert room() < begun
held = [ok(cu.cuMemAllocManaged(PAGE, 1))] if room() > 2 * PAGE else []
for context in made: ok(cu.cuCtxDestroy(context))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
""",
    "modules": """
loaded = []
for _ in range(400):
    result = cu.cuModuleLoadData(PTX)
    if int(result[0]): break
    loaded.append(result[1])
assert room() < begun
for one in loaded: ok(cu.cuModuleUnload(one))
""",
    "streams": """
made = []
for _ in range(3000):
    result = cu.cuStreamCreate(0)
    if int(result[0]): break
    made.append(result[1])
for one in made: ok(cu.cuStreamDestroy(one))
""",
}  # fmt: skip


@pytest.fixture
def limit(commands: Commands, daemon: Daemon) -> int:
    """In bytes: that room, and what a context takes, which is much more on a real GPU."""
    del daemon  # it is asked before
    says = f"{PRELUDE}{WAYS}\nbegin(); print((2 << 30) - ok(cu.cuMemGetInfo())[0])"
    return int(commands.ok("run", "--memory", "2G", "--", sys.executable, "-c", says)) + ROOM >> 20 << 20


OF_THE_EMULATED = ("partly mapped", "sizes", "contexts", "modules", "streams")
"""These rely on what the emulated driver takes for each of them."""


@pytest.mark.parametrize("way", [way for way in WAYS_TO_TRY if not ON_NVIDIA or way not in OF_THE_EMULATED])
def test_every_way(commands: Commands, daemon: Daemon, limit: int, way: str) -> None:
    """The child ends when its input does."""
    words = [sys.executable, "-c", PROGRAM + WAYS_TO_TRY[way] + END, str(limit)]
    process = commands.start("run", "--memory", f"{limit >> 20}M", "--", *words, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "right\n", process.communicate()
    full = limit - 20 * MiB
    wait_for(lambda: any(task.memory_bytes > full for task in daemon.client.ps()), "the driver's word on it")
    (task,) = daemon.client.ps()
    assert task.memory_bytes <= limit
    assert not task.suspended
    process.communicate("\n")
    assert process.returncode == 0
