"""librunlist.so for 64-bit ARM: built by a cross compiler, and its checks run under an emulator of that processor. Part
of `make checks`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.compiler import cmake
from tests.fixtures.effort import TIMES

ROOT = Path(__file__).parents[2]
COMPILER, EMULATOR, SYSTEM = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
BUILD_S, RUN_S = 900, 600
CHECKS = ("check_clock", "check_objects", "check_quota", "check_signals")
"""check_slots needs namespaces and locks of open files, which the emulator passes on only in part."""
PROGRAM = """
#include <dlfcn.h>
int main(void) {
    return dlsym(RTLD_DEFAULT, "dlopen") == 0 || dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND) == 0;
}
"""


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of the build."""
    if TIMES == 1:
        pytest.skip("minutes of emulation: `make checks` runs it")
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: apt-get install g++-aarch64-linux-gnu qemu-user")
    folder = ROOT / "build" / "checks-aarch64"
    options = {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64", "RUNLIST_CHECKS": "ON"}
    configure = [*cmake(ROOT, folder, **options), f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    for words in (configure, [configure[0], "--build", str(folder), "--target", "runlist-native", "checks"]):
        done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_S)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.parametrize("name", CHECKS)
def test_checks(built: Path, name: str) -> None:
    command = [EMULATOR, "-L", SYSTEM, built / "native" / "checks" / name]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=RUN_S)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-4000:]


@pytest.mark.timeout(BUILD_S + RUN_S)
def test_the_library_is_in_a_program_and_refuses_what_is_malformed(built: Path) -> None:
    """Its constructors, what it reads of the environment, and its exports in assembly."""
    library = built / "native" / "librunlist.so"
    program = built / "program"
    source = built / "program.c"
    source.write_text(PROGRAM)
    subprocess.run([COMPILER.replace("g++", "gcc"), "-xc", "-D_GNU_SOURCE", source, "-o", program], check=True)

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        options = [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
        command = [EMULATOR, "-L", SYSTEM, "-E", f"LD_PRELOAD={library}", *options, program]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=RUN_S)

    done = run(RUNLIST_MEMORY="8Q", RUNLIST_STRICT="1")
    assert done.returncode == 126
    assert 'RUNLIST_MEMORY="8Q" is no size' in done.stderr
    done = run(RUNLIST_MEMORY="8G")
    assert (done.returncode, done.stderr) == (0, "")
