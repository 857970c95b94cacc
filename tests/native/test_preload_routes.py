"""Whatever way a program takes to a function of the driver, it gets there by the library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from runlist.emulated import EmulatedGpu
from tests.conftest import ON_NVIDIA
from tests.native.guests import GiB, Guests, MiB
from tests.native.regions import MEMORY_ENFORCED, QUERIES_ENFORCED, Region

LIMIT = 6 * GiB

ORDERS = {"alone": "{library}", "before": "{other}:{library}", "after": "{library}:{other}"}
"""What is preloaded, when there is another library that stands before the same functions."""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("program", ["routes", "opens"])
def test_every_route_sees_the_limit(guests: Guests, program: str, order: str) -> None:
    preload = ORDERS[order].format(library=guests.library, other=guests.path("interposer.so"))
    bare = guests.lines(program, env=guests.environment(preload=preload.replace(str(guests.library), "")))
    env = guests.environment(guests.region(LIMIT), preload)
    totals = {line.split()[1] for line in bare if line.startswith("dlsym-handle")}
    assert len(totals) == 1
    assert len(bare) > 60
    assert [line.replace(totals.copy().pop(), str(LIMIT)) for line in bare] == guests.lines(program, env=env)
    assert ("interposed-0 1" in bare) == (order != "alone")


def test_libcuda_that_comes_and_goes(guests: Guests) -> None:
    lines = guests.lines("opens", "again", env=guests.environment(guests.region(LIMIT), LIMIT=str(LIMIT)))
    assert lines == [f"again {LIMIT}", "over-again 2"] * 10


@pytest.mark.parametrize("way", ["space", "deep"])
def test_libraries_that_look_past_what_is_preloaded(guests: Guests, way: str) -> None:
    lines = guests.lines("opens", way, env=guests.environment(guests.region(LIMIT), LIMIT=str(LIMIT)))
    assert lines == [f"aside {LIMIT}", "over-aside 2"]


def contexts_by_the_table(guests: Guests, region: Region, ordinal: int = 0) -> None:
    with guests.started("opens", "table", ordinal, env=guests.environment(region, LIMIT=str(LIMIT))) as process:
        assert process.stdout is not None
        total, refused, *used = [process.stdout.readline().strip() for _ in range(5)]
        assert (total, refused) == (f"table {LIMIT}", "over-table 2")
        bare, full, after = map(int, used)
        use = region.uses()[process.pid]
    assert full - bare == 24 * MiB
    assert after == bare > 0
    assert (use.held, use.overhead) == (0, bare)


def test_a_context_by_the_table_of_the_cuda_runtime(guests: Guests) -> None:
    """The table only names it. It is the driver's overhead all the same, and what goes with it is given back."""
    contexts_by_the_table(guests, guests.region(LIMIT))


@pytest.mark.skipif(ON_NVIDIA, reason="needs two GPUs of its own")
def test_the_books_of_a_gpu_that_is_not_the_first_to_be_heard_of(
    guests: Guests, fresh_gpu: Callable[..., EmulatedGpu]
) -> None:
    """Such as the only one that may be used, where the driver tells of all."""
    two = Guests(guests.folder, fresh_gpu(gpus=2).environment())
    region = two.region(LIMIT)
    with two.started("racer", "count", 1 * GiB, 0, env=two.environment(region)) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        assert region.uses(0)[first.pid].overhead > 0
        contexts_by_the_table(two, Region(region.path, two.gpu(1)), 1)
        assert region.uses(1)[first.pid] == (0, 0, 0, 0)


FORKS = """
import ctypes, os
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
init, retain = cuda.cuInit, cuda.cuDevicePrimaryCtxRetain
if os.fork() == 0:
    print(os.getpid(), init(0), retain(ctypes.byref(context), 0), flush=True)
    input()
    os._exit(0)
os.wait()
"""


def test_a_child_of_fork_says_what_its_parent_found(guests: Guests) -> None:
    region = guests.region(LIMIT)
    with guests.started(sys.executable, "-c", FORKS, env=guests.environment(region)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid, *results = map(int, process.stdout.readline().split())
        assert results == [0, 0]
        (enforced,) = [bits for one, bits, _ in region.slots() if one == pid]
        process.stdin.write("\n")
        process.stdin.flush()
    assert enforced == MEMORY_ENFORCED | QUERIES_ENFORCED


def test_functions_that_are_not_there_stay_so(guests: Guests) -> None:
    guests.same("opens", "absent")


NVML = """
import ctypes, uuid
import pynvml as nv
cuda, ours = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(16)
assert cuda.cuInit(0) == cuda.cuDeviceGetUuid(ours, 0) == 0
nv.nvmlInit()
device = nv.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.UUID(bytes=ours.raw)}")  # NVML counts hidden GPUs, too
first, second = nv.nvmlDeviceGetMemoryInfo(device), nv.nvmlDeviceGetMemoryInfo(device, version=nv.nvmlMemory_v2)
print(first.total, first.used, first.free, second.total, second.used, second.free)
print([process.usedGpuMemory for process in nv.nvmlDeviceGetComputeRunningProcesses(device)])
"""


def test_nvml_answers_with_the_limit(guests: Guests) -> None:
    region = guests.region(LIMIT)
    env = guests.environment(region)
    with guests.started("racer", "count", 1 * GiB, 0, env=env) as racer:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
        used = region.used()
        totals, processes = guests.lines(sys.executable, "-c", NVML, env=env)
    assert [int(word) for word in totals.split()] == [LIMIT, used, LIMIT - used] * 2
    assert processes == f"[{used}]"


def test_nvml_tells_of_no_process_outside_the_tree(guests: Guests) -> None:
    region = guests.region(LIMIT)
    inside, outside = guests.environment(region), guests.environment()
    with ExitStack() as stack:
        for env in (outside, inside, outside):
            racer = stack.enter_context(guests.started("racer", "count", 1 * GiB, 0, env=env))
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        bare, told = [guests.lines(sys.executable, "-c", NVML, env=env)[-1] for env in (outside, inside)]
        used = region.used()
    assert told == f"[{used}]"
    assert len(ast.literal_eval(bare)) >= 3


RUNTIME = """
import ctypes, importlib.metadata, sys
files = importlib.metadata.files("nvidia-cuda-runtime") or []
path = next(str(file.locate()) for file in files if file.name.startswith("libcudart.so."))
runtime = ctypes.CDLL(path)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
result = runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
address = ctypes.c_void_p()
print(result, total.value, runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]) + 1)))
"""


def test_the_cuda_runtime_of_the_wheel(guests: Guests) -> None:
    """It starts on NVIDIA's driver alone. What it makes of another is not changed by the library."""
    bare = guests.lines(sys.executable, "-c", RUNTIME, LIMIT, env=guests.environment())
    lines = guests.lines(sys.executable, "-c", RUNTIME, LIMIT, env=guests.environment(guests.region(LIMIT)))
    assert lines == ([f"0 {LIMIT} 2"] if ON_NVIDIA else bare)
    assert bare[0].startswith("0 ") == ON_NVIDIA
