"""The memory limit: every API, many processes at once, and nothing that is lost on the way."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from runlist.emulated import EmulatedGpu
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, needs_root
from tests.native.guests import OUT_OF_MEMORY, GiB, Guests, MiB
from tests.native.regions import FILE_BYTES, HEADER, NO_LIMIT, SLOT, SLOTS_AT, UNSEEN_AT, Region

LIMIT = 8 * GiB
PIECE = 256 * MiB
RACERS = 64
APIS = {
    "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate",
    "cuArrayCreate", "cuArray3DCreate", "cuMipmappedArrayCreate", "cuGraphLaunch",
}  # fmt: skip


def test_every_api_is_refused_at_the_limit_and_right_again_after_it(guests: Guests) -> None:
    region = guests.region(LIMIT)
    seen = set()
    for line in guests.lines("apis", PIECE, env=guests.environment(region)):
        name, *numbers = line.split()
        refused, count, before, peak, after, again = map(int, numbers)
        seen.add(name)
        assert (refused, again) == (OUT_OF_MEMORY, 0), line
        assert count * PIECE <= peak - before, line
        assert LIMIT - 2 * PIECE < peak <= LIMIT, line
        assert after == before or (ON_NVIDIA and name == "cuGraphLaunch"), line  # the driver keeps some of its own
    assert seen == APIS
    assert region.used() == 0
    assert region.refusals() >= len(APIS)


def test_what_comes_is_no_more_than_can_be_told_from_what_was_asked(guests: Guests) -> None:
    """Else a tree at its limit holds more for a moment: the library charges what is asked for, before it is."""
    sizes = (3 * MiB, 5 * MiB + 1, 64 * MiB - 4096)
    lines = guests.lines("asks", *sizes, env=guests.environment(preload=""))
    assert len(lines) >= len(sizes)
    for line in lines:
        page, asked, came = map(int, line.split())
        assert came <= -(-asked // (page * 1024 or 4096)) * (page * 1024 or 4096), lines


def fill(guests: Guests, env: dict[str, str], size: int) -> int:
    """Code of taking so much in a process of its own."""
    return int(guests.lines("racer", "fill", size, env=env)[0])


def overhead(guests: Guests) -> int:
    """Bytes that a process takes before it takes any for itself."""
    region = guests.region(NO_LIMIT)
    with guests.started("racer", "count", 1, 0, env=guests.environment(region)) as racer:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
        return region.used()


def test_the_limit_is_met_to_the_byte(guests: Guests) -> None:
    room = LIMIT - overhead(guests)
    room -= room % (2 * MiB)
    env = guests.environment(guests.region(LIMIT))
    assert fill(guests, env, room) == 0
    assert fill(guests, env, room + 1) == OUT_OF_MEMORY
    assert fill(guests, env, room) == 0


def race(guests: Guests, region: Region, kind: str, processes: int, rounds: int) -> list[int]:
    """Lets processes take memory all at once; how much each got."""
    env = guests.environment(region)
    with ExitStack() as stack:
        racers = [stack.enter_context(guests.started("racer", kind, PIECE, rounds, env=env)) for _ in range(processes)]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.close()
            racer.stdin = None
        said = [racer.communicate(timeout=60)[0] for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * processes
    return [int(one) for one in said]


@pytest.mark.skipif(ON_NVIDIA, reason="python -m bench measures it there")
def test_64_processes_never_hold_more_than_the_limit(guests: Guests) -> None:
    limit = 4 * GiB + RACERS * overhead(guests)
    region = guests.region(limit)
    unguarded = guests.environment()
    before = int(guests.lines("observer", env=unguarded)[1].split()[0])
    with guests.started("observer", env=unguarded) as observer:
        got = race(guests, region, "count", RACERS, 3)
        most, looks = map(int, observer.communicate("\n", timeout=60)[0].split()[1:])
    assert looks > 100
    assert limit - 4 * GiB < most - before <= limit
    assert sum(got) > 0
    assert region.used() == 0
    assert fill(guests, guests.environment(region), 4 * GiB) == 0


def test_threads_share_what_their_process_may_have(guests: Guests) -> None:
    region = guests.region(LIMIT)
    (got,) = race(guests, region, "threads", 1, 5)
    assert got > 0
    assert region.used() == 0


def test_children_share_what_their_parent_may_have(guests: Guests) -> None:
    own = overhead(guests)
    piece = 1 * GiB
    env = guests.environment(guests.region(LIMIT + 4 * own))
    together, afterwards = map(int, guests.lines("racer", "children", piece, env=env)[0].split())
    assert 0 < together <= LIMIT // piece
    assert afterwards == (LIMIT + 3 * own) // piece


def test_a_limit_changes_under_way(guests: Guests) -> None:
    region = guests.region(LIMIT)
    env = guests.environment(region)
    assert fill(guests, env, LIMIT) == OUT_OF_MEMORY
    region.set_memory(2 * LIMIT)
    assert fill(guests, env, LIMIT) == 0
    region.set_memory(0)
    done = guests.run("racer", "fill", 1, env=env)
    assert done.code == 9
    assert str(OUT_OF_MEMORY) in done.err
    region.set_memory(NO_LIMIT)
    assert fill(guests, env, LIMIT) == 0


def test_numbers_that_were_written_over_make_no_room(guests: Guests) -> None:
    """Of processes that live: a sum that wraps would be small."""
    for word in range(3):  # held, overhead, asking
        region = guests.region(LIMIT)
        env = guests.environment(region)
        with guests.started("racer", "count", 1, 0, env=env) as racer:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
            with region.path.open("r+b") as file:
                file.seek(SLOTS_AT + SLOT.size + 8 * word)
                file.write((NO_LIMIT - 10 * MiB).to_bytes(8, "little"))
            done = guests.run("racer", "fill", 1, env=env)
            assert (done.code, str(OUT_OF_MEMORY) in done.err) == (9, True), done


def test_what_the_daemon_found_past_the_library_counts(guests: Guests) -> None:
    region = guests.region(LIMIT)
    env = guests.environment(region)
    assert fill(guests, env, LIMIT // 2) == 0
    with region.path.open("r+b") as file:
        file.seek(HEADER.size + UNSEEN_AT)
        file.write((LIMIT // 2).to_bytes(8, "little"))
    assert fill(guests, env, LIMIT // 2) == OUT_OF_MEMORY
    assert fill(guests, env, LIMIT // 4) == 0


LISTS = """
import ctypes, os, sys
import pynvml
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)] == [0, 0]
pynvml.nvmlInit()
listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
print(os.getpid(), *(one.pid for one in listed), flush=True)
sys.stdin.read()
"""


def test_nvml_lists_the_processes_of_the_tree_alone(guests: Guests) -> None:
    region = guests.region(LIMIT)
    with (
        guests.started(sys.executable, "-c", LISTS, env=guests.environment()) as other,
        guests.started(sys.executable, "-c", LISTS, env=guests.environment(region)) as first,
    ):
        pids = []
        for process in (other, first):
            assert process.stdout is not None
            pids.append(process.stdout.readline().split()[0])
        with guests.started(sys.executable, "-c", LISTS, env=guests.environment(region)) as second:
            assert second.stdout is not None
            own, *listed = second.stdout.readline().split()
    assert sorted(listed) == sorted([pids[1], own])


TWO_CONTEXTS = """
import ctypes
cuda, first, second, address = ctypes.CDLL("libcuda.so.1"), *(ctypes.c_void_p() for _ in range(3))
codes = [
    cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(first), 0), cuda.cuCtxSetCurrent(first),
    cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(16 << 20), 1),
    cuda.cuCtxCreate_v2(ctypes.byref(second), 0, 0),
    cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(32 << 20), 1),
]
print(codes, flush=True)
input()
print(cuda.cuCtxDestroy_v2(second), flush=True)
input()
print(cuda.cuDevicePrimaryCtxReset_v2(0), flush=True)
input()
"""


def test_what_ends_with_a_context_is_given_back_and_no_other(guests: Guests) -> None:
    region = guests.region(LIMIT)
    held = []
    with guests.started(sys.executable, "-c", TWO_CONTEXTS, env=guests.environment(region)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        for answer in ("[0, 0, 0, 0, 0, 0]", "0", "0"):
            assert process.stdout.readline().strip() == answer
            held.append([use.held >> 20 for use in region.uses().values()])
            process.stdin.write("\n")
            process.stdin.flush()
    assert held == [[48], [16], [0]]


def total(guests: Guests, env: dict[str, str]) -> int:
    """How much memory the GPU is said to have."""
    return int(guests.lines("routes", env=env)[0].split()[1])


def by_hand(guests: Guests, **variables: str) -> dict[str, str]:
    """An environment without a launcher; a new folder is the user's own."""
    runtime = guests.new_path()
    runtime.mkdir(mode=0o700)
    return guests.environment(preload=str(guests.library), XDG_RUNTIME_DIR=str(runtime), **variables)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"RUNLIST_MEMORY": "3G"}, 3 * GiB),
        ({"RUNLIST_MEMORY": "1.5GiB"}, 3 * GiB // 2),
        ({"RUNLIST_MEMORY": "2 g"}, 2 * GiB),
        ({"RUNLIST_MEMORY": "700M"}, 700 * MiB),
        ({"RUNLIST_MEMORY": str(5 * GiB)}, 5 * GiB),
        ({"RUNLIST_MEMORY": "max"}, None),
        ({"RUNLIST_MEMORY": "0"}, None),
        ({"RUNLIST_MEMORY": "900T"}, None),
        ({"RUNLIST_MEMORY": "3G", "RUNLIST_DISABLE": "1"}, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3g"}, 3 * GiB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3072m"}, 3 * GiB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3145728k"}, 3 * GiB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "0"}, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}, 2 * GiB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3g", "CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}, 2 * GiB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_1": "2g"}, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3g", "CUDA_DISABLE_CONTROL": "true"}, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "3g", "RUNLIST_MEMORY": "2G"}, 2 * GiB),
    ],
)
def test_limits_by_hand(guests: Guests, variables: dict[str, str], expected: int | None) -> None:
    whole = total(guests, guests.environment())
    assert total(guests, by_hand(guests, **variables)) == (expected or whole)


def test_processes_that_name_one_shared_cache_share_a_limit(guests: Guests) -> None:
    own = overhead(guests)
    path = guests.new_path()
    variables = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(path)}
    with guests.started("racer", "count", 1, 0, env=by_hand(guests, **variables)) as racer:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
        assert path.stat().st_size == FILE_BYTES
        assert Region(path).used() == own
        assert fill(guests, by_hand(guests, **variables), 4 * GiB - 2 * own + 2 * MiB) == OUT_OF_MEMORY
        assert fill(guests, by_hand(guests, **variables), 4 * GiB - 2 * own) == 0


def test_children_of_a_limit_by_hand_share_it(guests: Guests) -> None:
    env = by_hand(guests, RUNLIST_MEMORY="8G")
    (child,) = guests.lines("sh", "-c", 'echo "$RUNLIST_REGION"', env=env)
    assert Path(child).parent.stat().st_mode & 0o077 == 0
    own = overhead(guests)
    done = guests.run("racer", "children", 1 * GiB, env=env)  # a child may find no room for its context, and says so
    together, afterwards = map(int, done.out.split())
    assert together <= (LIMIT - 4 * own) // GiB
    assert afterwards == (LIMIT - own) // GiB


@needs_root
def test_a_limit_by_hand_holds_for_who_becomes_another_user(guests: Guests) -> None:
    """As in the first program of many containers (gosu, su-exec): it may not open the region that root began."""
    folder = guests.new_path()
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    become = f"XDG_RUNTIME_DIR='{folder}' exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups \"$@\""
    shows = ("sh", "-c", 'echo "$RUNLIST_REGION"')
    for strict in ("0", "1"):
        env = by_hand(guests, RUNLIST_MEMORY="3G", RUNLIST_STRICT=strict)
        (path,) = guests.lines("sh", "-c", become, "sh", *shows, env=env)
        assert Path(path).is_relative_to(folder)
        assert Region(Path(path)).memory() == 3 * GiB


@pytest.mark.skipif(ON_NVIDIA, reason="needs two GPUs of its own")
def test_each_gpu_has_its_own_limit(guests: Guests, fresh_gpu: type[EmulatedGpu]) -> None:
    two = Guests(guests.folder, fresh_gpu(gpus=2).environment())
    variables = {"CUDA_DEVICE_MEMORY_LIMIT": "3g", "CUDA_DEVICE_MEMORY_LIMIT_1": "2g"}
    program = """
from cuda.bindings import driver as cu
cu.cuInit(0)
print(*(cu.cuDeviceTotalMem(gpu)[1] for gpu in range(2)))
for gpu in range(2):
    cu.cuCtxSetCurrent(cu.cuDevicePrimaryCtxRetain(gpu)[1])
    print(cu.cuMemGetInfo()[2], int(cu.cuMemAlloc(2 << 30)[0]))
"""
    lines = two.lines(sys.executable, "-c", program, env=by_hand(two, **variables))
    assert lines == [f"{3 * GiB} {2 * GiB}", f"{3 * GiB} 0", f"{2 * GiB} {OUT_OF_MEMORY}"]
    reordered = by_hand(two, **variables, CUDA_VISIBLE_DEVICES=" 1, 0")  # as CUDA then counts them
    assert two.lines(sys.executable, "-c", program, env=reordered)[0] == f"{2 * GiB} {3 * GiB}"
    nvml = """
import pynvml as nv
nv.nvmlInit()
print(*(nv.nvmlDeviceGetMemoryInfo(nv.nvmlDeviceGetHandleByIndex(gpu)).total for gpu in range(2)))
"""
    assert two.lines(sys.executable, "-c", nvml, env=reordered) == [f"{3 * GiB} {2 * GiB}"]


def test_what_lies_at_a_shared_path_is_left_alone(guests: Guests) -> None:
    path = guests.new_path()
    path.write_bytes(os.urandom(1 << 20))
    before = path.read_bytes()
    env = by_hand(guests, CUDA_DEVICE_MEMORY_LIMIT="3g", CUDA_DEVICE_MEMORY_SHARED_CACHE=str(path))
    done = guests.run("routes", env=env)
    assert done.lines[0] == f"linked {3 * GiB}"
    assert "is damaged: remove it; another one holds now" in done.err
    assert path.read_bytes() == before


def test_many_small_pieces(guests: Guests) -> None:
    """They are cut out of larger ones, which are what is counted."""
    region = guests.region(overhead(guests) + 64 * MiB)
    env = guests.environment(region)
    with guests.started("racer", "count", 64 * 1024, 1, env=env) as racer:
        out = racer.communicate(timeout=60)[0]
    count = int(out.split()[1])
    assert 0 < count * 64 * 1024 <= 64 * MiB
    assert region.used() == 0
