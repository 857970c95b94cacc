"""Parts of librunlist.so under sanitizers, and fuzzed; then all of it, preloaded into programs.

`make checks` runs the same for longer, with RUNLIST_CHECKS_TIMES times the rounds.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fixtures.compiler import CXX, cmake, compiler
from tests.fixtures.effort import TIMES
from tests.native.guests import GiB, Guests

ROOT = Path(__file__).parents[2]
BUILD_S = 900
RUN_S = 120 * TIMES
CHECKS = (
    "check_actuator",
    "check_clock",
    "check_flights",
    "check_objects",
    "check_operations",
    "check_quota",
    "check_signals",
    "check_slots",
)
PLAIN = "plain"
"""Without a sanitizer: as the library is built. Only in `make checks`."""
KINDS = ("address", "thread") if TIMES == 1 else (PLAIN, "address", "thread")
FORKS = "check_slots"
"""Makes children of kinds that the thread sanitizer does not know."""
FUZZED = {"fuzz_environment": 20_000, "fuzz_region": 500}
"""Programs, and how many inputs each is given in `make test`."""
INPUTS = 1_000_000
"""How many it is in `make checks`."""
FUZZ_S = RUN_S if TIMES == 1 else 3600
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0",  # NVIDIA's driver maps what is in that gap
    "TSAN_OPTIONS": "halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def run(*words: object, timeout: float, **options: str) -> subprocess.CompletedProcess[str]:
    """Where a program that fails may leave its input."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, **OPTIONS, **options}
    return subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=timeout, env=environment, cwd=folder
    )


class Checked(NamedTuple):
    """What was built for one sanitizer."""

    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "native" / "checks" / name


@cache
def built(sanitizer: str) -> Checked | str:
    """The checks, built for a sanitizer in build/, so that only what changed is built again; or why that cannot be."""
    command = compiler(*CXX)
    option = [] if sanitizer == PLAIN else [f"-fsanitize={sanitizer}"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("int main() {}\n")
        answer = run(*command, *option, source, "-o", source.with_suffix(""), timeout=BUILD_S)
        if answer.returncode == 0:
            answer = run(source.with_suffix(""), timeout=RUN_S)
    if answer.returncode != 0:
        return f"{command[0]} -fsanitize={sanitizer}: {(answer.stderr.strip().splitlines() or ['fails'])[-1]}"
    where = ROOT / "build" / f"checks-{sanitizer}"
    configure = cmake(ROOT, where, RUNLIST_CHECKS="ON", RUNLIST_SANITIZE="" if sanitizer == PLAIN else sanitizer)
    for words in (configure, [configure[0], "--build", where, "--target", "checks", "-j2"]):
        done = run(*words, timeout=BUILD_S)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return Checked(where)


@pytest.fixture
def checked(request: pytest.FixtureRequest) -> Checked:
    answer = built(request.param)
    if isinstance(answer, str):
        pytest.skip(answer)
    return answer


@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.parametrize(
    ("checked", "name"),
    [(kind, name) for kind in KINDS for name in CHECKS if (kind, name) != ("thread", FORKS)],
    indirect=["checked"],
)
def test_parts(checked: Checked, name: str) -> None:
    for _ in range(TIMES):
        done = run(checked.program(name), timeout=RUN_S)
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-4000:]


@pytest.mark.timeout(BUILD_S + FUZZ_S)
@pytest.mark.parametrize("checked", ["address"], indirect=True)
@pytest.mark.parametrize("name", FUZZED)
def test_any_bytes(checked: Checked, name: str) -> None:
    done = run(checked.program(name), FUZZED[name] if TIMES == 1 else INPUTS, 4, timeout=FUZZ_S)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-4000:]


@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.parametrize("checked", ["address"], indirect=True)
def test_all_of_it_in_programs(checked: Checked, guests: Guests) -> None:
    """The thread sanitizer needs programs that were built for it."""
    names = [
        run(*compiler(*CXX), f"-print-file-name={name}", timeout=RUN_S).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(name).is_absolute() for name in names):
        pytest.skip(f"{compiler(*CXX)[0]} brings no {' or '.join(names)}")
    library = checked.program("librunlist-checked.so")
    preload = ":".join([*names, str(library)])
    for act in ("answers", "many_threads", "handlers", "heirs", "computes", "destructors", "closes_before"):
        bare = guests.run("nasty", act, env=guests.environment())
        done = guests.run("nasty", act, env=guests.environment(guests.region(), preload, **OPTIONS))
        assert (done.code, done.out, done.err) == bare
    lines = guests.lines("routes", env=guests.environment(guests.region(6 * GiB), preload, **OPTIONS))
    assert lines[0] == f"linked {6 * GiB}"
