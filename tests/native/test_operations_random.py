"""Random programs of several clients on one GPU: streams, events, graphs, copies and host functions. Each has one right
result, the processor's own (operations/generate.cpp).

`make checks` runs 100,000 of them. To see one again: the program with its seed, 1, and --say.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runlist.emulated import artefacts
from tests.conftest import ON_NVIDIA
from tests.fixtures.compiler import CXX, compiler
from tests.fixtures.effort import TIMES
from tests.native.guests import CUDA, Guests, headers

HERE = Path(__file__).parent
SOURCES = HERE / "operations"
PROGRAMS = 300 if TIMES == 1 else 5_000 * TIMES
BUILD_S = 600
RUN_S = 100 if TIMES == 1 else 7_200


@pytest.fixture(scope="module")
def program(guests: Guests) -> Path:
    """The program that makes and runs them."""
    built = guests.folder / "operations-random"
    whole = built.with_suffix(".cpp")  # what all of them include is read once
    whole.write_text("".join(f'#include "{source}"\n' for source in sorted(SOURCES.glob("*.cpp"))))
    words = ["-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    library = f"-l:{CUDA}" if ON_NVIDIA else str(artefacts() / CUDA)
    folders = [f"-I{SOURCES}", f"-I{HERE.parents[1] / 'native' / 'include'}", *headers()]
    command = [*compiler(*CXX), *words, *folders, str(whole)]
    done = subprocess.run(
        [*command, library, "-ldl", "-o", str(built)], capture_output=True, text=True, timeout=BUILD_S
    )
    assert done.returncode == 0, done.stderr
    return built


def ran(program: Path, guests: Guests, *words: object, **environment: str) -> list[str]:
    """What it says when all programs gave what they should."""
    # A handle that is none is answered by a crash, as NVIDIA's driver does: the library must use none, either.
    # Streams that share a queue of the GPU wait for each other, also for what waits for the host.
    own = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32", "RUNLIST_EMULATED_CRASHES": "1"}
    env = guests.environment(**own, **environment)
    apart = ["--apart"] if ON_NVIDIA else []
    done = subprocess.run(
        [program, *map(str, words), *apart],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(BUILD_S + RUN_S)
def test_programs_give_what_they_should(program: Path, guests: Guests) -> None:
    assert ran(program, guests, 1, PROGRAMS) == [f"right {PROGRAMS}"]
    assert ran(program, guests, 1, PROGRAMS // 5, "--events") == [f"right {PROGRAMS // 5}"]


RULES = ("exclusive", "greedy", "complementary", "tiny", "bounded", "changing", "changing --events", "restarting")
RULED = 60 if TIMES == 1 else 1_000 * TIMES


@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.parametrize("rule", RULES)
def test_they_give_the_same_as_clients_of_the_scheduler(program: Path, guests: Guests, rule: str) -> None:
    """Many operations wait for their turn, and no wait reaches its bound."""
    environment = {"LD_PRELOAD": str(guests.library), "RUNLIST_OPERATIONS": "threads"}
    counted, right = ran(program, guests, 1, RULED, "--rule", *rule.split(), **environment)
    numbers = dict(zip(counted.split()[::2], map(int, counted.split()[1::2]), strict=True))
    assert right == f"right {RULED}"
    assert numbers["launched"] > 20 * RULED
    assert (numbers["deferred"] > 0) == (rule != "greedy")
    assert numbers["opened"] == 0
