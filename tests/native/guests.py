"""The programs of tests/native/preload, built and run with librunlist.so before them."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import runlist
from runlist.emulated import artefacts
from tests.conftest import ON_NVIDIA
from tests.fixtures.compiler import C, compiler
from tests.native.regions import Region

SOURCES = Path(__file__).with_name("preload")
KERNELS = Path(runlist.__file__).parent / "workloads" / "kernels.autogen.ptx"
ROOT = Path(__file__).parents[2]
INCLUDE = ROOT / "native" / "include"
OPTIONS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread")
SHARED = ("-shared", "-fPIC")
CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
MiB, GiB = 1 << 20, 1 << 30
OUT_OF_MEMORY = 2
REFUSED_TO_START = 126
PATIENCE_S = 60.0
"""How long a program may take before it counts as hanging."""

OURS = ("RUNLIST_", "CUDA_", "LD_", "LIBCUDA_", "GPU_CORE_", "XDG_")

PROGRAMS: dict[str, tuple[str, ...]] = {
    "through.so": ("through.c", *SHARED, CUDA),
    "interposer.so": ("interposer.c", *SHARED),
    "routes": ("routes.c", CUDA),
    "opens": ("routes.c", "-DUNLINKED"),
    "apis": ("apis.c", CUDA),
    "asks": ("asks.c", "-rdynamic", CUDA, "-ldl"),
    "racer": ("racer.c", CUDA),
    "activity": ("activity.c", CUDA),
    "arrivals": ("arrivals.c", CUDA),
    "operations": ("operations.c", f"-I{INCLUDE}", CUDA, "-ldl"),
    "operations-faults": ("operations_faults.c", f"-I{INCLUDE}", CUDA, "-ldl"),
    "operations-calls": ("operations_calls.c", f"-I{INCLUDE}", CUDA, "-ldl"),
    "operations-changes": ("operations_changes.c", f"-I{INCLUDE}", CUDA, "-ldl"),
    "operations-states": ("operations_states.c", f"-I{INCLUDE}", CUDA, "-ldl"),
    "operations-green": ("operations_green.c", f"-I{INCLUDE}", CUDA, "-ldl"),
    "pausing.so": ("pausing.c", *SHARED),
    "counter.so": ("counter.c", *SHARED),
    "substitutes.so": ("substitutes.c", *SHARED),
    "nasty": ("nasty.c", "state.c", CUDA),
    "manners": ("manners.c", "state.c"),
    "observer": ("observer.c", NVML),
    "hostile": ("hostile.c", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/below"),
    "below/libleaf.so": ("leaf.c", *SHARED),
    "driver.so": ("driver.c", *SHARED),
    "plugin.so": ("plugin.c", *SHARED, CUDA),
    "deep": ("deep.c", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/below"),
    "below/libplugin.so": ("plugin.c", *SHARED, CUDA),
    "caller": ("caller.c",),
    "variables.so": ("variables.c", *SHARED, "-ldl"),
    "leaves": ("leaves.c", CUDA),
    "filtered": ("filtered.c", CUDA),
    "absent": ("absent.c", "-ldl"),
    "narrow": ("narrow.c", "-ldl"),
    "few/libcuda.so.1": ("stub.c", *SHARED, "-Wl,-soname,libcuda.so.1"),
    "few/few": ("few.c",),
    "left/libcuda.so.1": ("idle.c", *SHARED, "-Wl,-soname,libcuda.so.1"),
    "left/left": ("left.c",),
    "insistent/libcuda.so.1": ("insistent.c", *SHARED, "-Wl,-soname,libcuda.so.1"),
    "touched/libcuda.so.1": ("touched.c", *SHARED, "-Wl,-soname,libcuda.so.1"),
}
"""What is built of which sources, linked with what."""


UUID = """
import ctypes, sys
cuda, uuid = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(16)
assert cuda.cuInit(0) == cuda.cuDeviceGetUuid(uuid, int(sys.argv[1])) == 0
print(uuid.raw.hex())
"""


class Done(NamedTuple):
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@cache
def headers() -> list[str]:
    """Compiler options for cuda.h and nvml.h."""
    tool = ROOT / "tools" / "cuda_headers.py"
    found = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=True).stdout.strip()
    return [word for folder in found.split(";") for word in ("-isystem", folder)]


def compile_c(words: list[str]) -> Done:
    done = subprocess.run([*compiler(*C), *words], capture_output=True, text=True, timeout=100)
    return Done(done.returncode, done.stdout, done.stderr)


def plain_environment() -> dict[str, str]:
    """Ours, without what speaks to Runlist, CUDA or the linker."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


@cache
def _built_before() -> Path:
    """A folder for what is built of these very sources, in these ways, by whichever process of tests needs it first."""
    known = hashlib.sha256(repr((compiler(*C), OPTIONS, PROGRAMS, headers(), ON_NVIDIA)).encode())
    for path in sorted((*SOURCES.iterdir(), *INCLUDE.iterdir())):
        known.update(path.read_bytes())
    if not ON_NVIDIA:
        known.update((artefacts() / CUDA).read_bytes() + (artefacts() / NVML).read_bytes())
    return ROOT / "build" / "guests" / known.hexdigest()[:16]


def _build(name: str, built: Path) -> None:
    words = []
    for word in PROGRAMS[name]:
        if word.endswith(".c"):
            words.append(str(SOURCES / word))
        elif word in (CUDA, NVML):
            words.append(f"-l:{word}" if ON_NVIDIA else str(artefacts() / word))
        else:
            words.append(word)
    unfinished = built.with_name(f"{built.name}.{os.getpid()}")  # others may build the same just now
    done = compile_c([*OPTIONS, *headers(), *words, "-o", str(unfinished)])
    assert done.code == 0, done.err
    unfinished.rename(built)


_numbers = itertools.count(1)


class Guests:
    """Programs that are built when they are first run, a GPU for them, and regions. All lie in a folder that every user
    can reach; programs are named by their path in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.library = Path(shutil.copy(runlist.library(), folder))
        self._device = {name: value for name, value in environment.items() if name.startswith(OURS)}

    def path(self, name: str) -> Path:
        """A built program or library."""
        path = self.folder / name
        if not path.exists():
            built = _built_before() / name
            path.parent.mkdir(exist_ok=True)
            built.parent.mkdir(parents=True, exist_ok=True)
            if not built.exists():
                _build(name, built)
            shutil.copy(built, path)
        return path

    def new_path(self) -> Path:
        """A name in the folder that nothing has."""
        return self.folder / f"new-{next(_numbers)}"

    @cache  # noqa: B019
    def gpu(self, ordinal: int = 0) -> bytes:
        """The UUID of a GPU, as programs here count them."""
        (uuid,) = self.lines(sys.executable, "-c", UUID, str(ordinal), env=self.environment())
        return bytes.fromhex(uuid)

    def region(self, memory: int = 8 * GiB, *, strict: bool = True) -> Region:
        """A region of its own."""
        return Region.create(self.new_path(), memory, strict=strict, gpu=self.gpu())

    def environment(self, region: Region | None = None, preload: str | None = None, **more: str) -> dict[str, str]:
        """A program's. Without a region and `preload` the library is not there at all."""
        chosen = {"KERNELS": str(KERNELS), "LIBRARY": str(self.library), "THROUGH": str(self.path("through.so"))}
        if region is not None:
            chosen |= {"RUNLIST_REGION": str(region.path), "RUNLIST_STRICT": "1"}
            preload = preload or str(self.library)
        if preload is not None:
            chosen["LD_PRELOAD"] = preload
        return {**plain_environment(), **self._device, **chosen, **more}

    def run(self, name: str, *words: object, env: Mapping[str, str], timeout: float = PATIENCE_S, **more: Any) -> Done:
        """Runs a program to its end; one that hangs fails the test."""
        done = subprocess.run(
            [self.path(name) if name in PROGRAMS else name, *map(str, words)],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, **more,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def lines(self, name: str, *words: object, env: Mapping[str, str], **more: Any) -> list[str]:
        """Runs a program that must succeed, silently but for its output."""
        done = self.run(name, *words, env=env, **more)
        assert (done.code, done.err) == (0, ""), done
        return done.lines

    @contextmanager
    def started(
        self, name: str, *words: object, env: Mapping[str, str], **more: Any
    ) -> Iterator[subprocess.Popen[str]]:
        """A program in the background, killed in the end."""
        command = [self.path(name), *map(str, words)]
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def same(self, name: str, *words: object, code: int | None = None, **more: Any) -> Done:
        """Runs a program without and with the library, and asserts that nobody could tell the two apart."""
        bare = self.run(name, *words, env=self.environment(), **more)
        region = self.region()
        guarded = self.run(name, *words, env=self.environment(region), **more)
        assert guarded == bare
        assert code is None or bare.code == code
        return bare


def open_folder() -> Path:
    """A folder that every user can reach, with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def guests(device_env: dict[str, str]) -> Iterator[Guests]:
    """The programs, on the device of the session."""
    folder = open_folder()
    yield Guests(folder, device_env)
    shutil.rmtree(folder, ignore_errors=True)
