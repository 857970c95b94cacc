"""The compute cap in the process, against a GPU in simulated time: ten seconds of each program take no time. Then caps
of single GPUs, in a program that uses several.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import runlist.planes.process.region
from runlist.emulated import EmulatedGpu
from tests.fixtures.compiler import compiler
from tests.native.guests import OUT_OF_MEMORY, GiB, Guests
from tests.native.regions import NO_LIMIT, Region

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NATIVE = ROOT / "native"
SOURCES = (
    HERE / "cap_check.cpp",
    *(NATIVE / name for name in ("cap/context.cpp", "cap/gate.cpp", "cap/meter.cpp")),
    *(NATIVE / name for name in ("core/pages.cpp", "core/say.cpp", "core/space.cpp")),
    *(NATIVE / name for name in ("region/region.cpp", "region/process.cpp")),
)
CAPS = (10, 30, 50)
POINTS = 2.0
EVENTS = 8.0
"""Points by which a program of nothing but short kernels, each waited for, may be below its cap: it pays for events."""


class Share(NamedTuple):
    """What a program got, in percent: of GPU time with the cap and without, and its rate over the one without."""

    name: str
    cap: int
    capped: float
    alone: float
    rate: float


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What the check says, by line and word."""
    built = tmp_path_factory.mktemp("cap") / "cap_check"
    headers = subprocess.run(
        [sys.executable, ROOT / "tools" / "cuda_headers.py"], capture_output=True, text=True, check=True
    ).stdout.strip()
    words = ["-std=c++20", "-O2", "-pthread", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    folders = [f"-I{NATIVE}", f"-I{ROOT}", f"-I{HERE}", *(f"-isystem{folder}" for folder in headers.split(";"))]
    whole = built.with_suffix(".cpp")  # what all of them include is read once
    whole.write_text("".join(f'#include "{source}"\n' for source in SOURCES))
    command = [*compiler("CXX", ("c++", "g++", "clang++", "zig-c++")), *words, *folders, str(whole)]
    done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = subprocess.run([built], capture_output=True, text=True, timeout=100, env={"PATH": os.environ["PATH"]})
    assert said.returncode in {0, 1}, said.stderr
    return [line.split("\t") for line in said.stdout.splitlines()]


@pytest.fixture(scope="module")
def shares(output: list[list[str]]) -> list[Share]:
    return [Share(name, int(cap), *map(float, numbers)) for kind, name, cap, *numbers in output_of(output, "share")]


def output_of(output: list[list[str]], kind: str) -> list[list[str]]:
    return [words for words in output if words[0] == kind]


def test_programs_get_no_more_than_their_cap(shares: list[Share]) -> None:
    assert {share.cap for share in shares} == set(CAPS)
    assert not [share for share in shares if share.capped > share.cap + POINTS]


def test_programs_that_need_more_get_their_cap(shares: list[Share]) -> None:
    """In GPU time, or in work done over what is done alone: the GPU is never quite busy with kernels that are short."""
    for share in shares:
        below = EVENTS if share.name.startswith("kernels of 10 us, each") else POINTS
        assert max(share.capped, share.rate) >= min(share.cap, share.alone) - below, share


def test_programs_that_saturate_the_gpu_keep_to_their_cap(shares: list[Share]) -> None:
    saturating = [share for share in shares if share.alone > 90]
    assert len(saturating) >= 10 * len(CAPS)
    for share in saturating:
        assert min(abs(share.rate - share.cap), abs(share.capped - share.cap)) <= POINTS, share


def test_cases(output: list[list[str]]) -> None:
    cases = {name: verdict for _, name, verdict in output_of(output, "case")}
    assert len(cases) >= 15
    assert not [name for name, verdict in cases.items() if verdict != "right"]


SEVERAL_GPUS = """
import os, sys
from cuda.bindings import driver as cu
cu.cuInit(0)
contexts = {}
print(os.environ["RUNLIST_REGION"], flush=True)
for line in sys.stdin:
    for gpu in map(int, line.split()):
        if gpu not in contexts:
            contexts[gpu] = cu.cuDevicePrimaryCtxRetain(gpu)[1]
        cu.cuCtxSetCurrent(contexts[gpu])
        error, much = cu.cuMemAlloc(2 << 30)
        if not error:
            cu.cuMemFree(much)
        data = cu.cuMemAlloc(1 << 20)[1]
        for _ in range(10):
            cu.cuMemsetD8Async(data, 1, 1 << 20, 0)
            cu.cuCtxSynchronize()
        print(bytes(cu.cuDeviceGetUuid(gpu)[1].bytes).hex(), cu.cuMemGetInfo()[2], int(error), flush=True)
"""
"""Uses the GPUs that each line names; says their UUIDs, their memory, and whether 2 GiB of it were refused."""


def test_each_gpu_has_its_own_cap_and_limit(guests: Guests, fresh_gpu: Callable[..., EmulatedGpu]) -> None:
    runtime = guests.new_path()
    runtime.mkdir(mode=0o700)
    single = {f"CUDA_DEVICE_SM_LIMIT_{gpu}": cap for gpu, cap in ((0, "20"), (2, "60"))}
    memory = {"CUDA_DEVICE_MEMORY_LIMIT": "3g", "CUDA_DEVICE_MEMORY_LIMIT_1": "2g", "CUDA_DEVICE_MEMORY_LIMIT_2": "1g"}
    machine = Guests(guests.folder, fresh_gpu(gpus=3).environment())
    env = machine.environment(preload=str(guests.library), XDG_RUNTIME_DIR=str(runtime), **single, **memory)
    process = subprocess.Popen(
        [sys.executable, "-c", SEVERAL_GPUS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        region = Region(Path(process.stdout.readline().strip()))

        def use(*gpus: int) -> list[list[str]]:
            print(*gpus, file=process.stdin, flush=True)
            return [process.stdout.readline().split() for _ in gpus]  # type: ignore[union-attr]

        told = use(0, 1)
        assert [words[1:] for words in told] == [[str(3 * GiB), "0"], [str(2 * GiB), str(OUT_OF_MEMORY)]]
        capped, free = region.device(0), region.device(1)
        assert [capped.uuid.hex(), free.uuid.hex()] == [words[0] for words in told]
        assert (region.cap(), capped.cap, free.cap) == (10_000, 2_000, 0)
        assert (capped.cap_check, free.cap_check) == (2_000 ^ NO_LIMIT, 0)
        assert (capped.next_turn > 0, free.next_turn) == (True, 0)
        assert region.uses(0)[process.pid].gpu_ns > 0
        assert region.uses(1)[process.pid].gpu_ns == 0

        outside = runlist.planes.process.region.Region.adopt(os.open(region.path, os.O_RDWR), os.geteuid())
        outside.set_cap(0.4)
        outside.set_memory(4 * GiB)
        assert [words[1:] for words in use(1, 2)] == [[str(4 * GiB), "0"]] * 2  # the third was never met before
        outside.close()
        assert [region.cap(), *(region.device(index).cap for index in range(3))] == [4_000] * 4
        assert region.device(1).next_turn > 0
        assert region.device(2).next_turn > 0
        process.stdin.close()
