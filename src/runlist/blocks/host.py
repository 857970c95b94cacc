"""A device of processor threads, for tests and for trying kernels without a GPU: compiles their source as C++.

It has a C++20 compiler do that, and is no faster than that: what it shares with a GPU is what kernels mean, and that
blocks race with each other and with those who stop them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlist.blocks import source
from runlist.blocks.cubin import INCLUDE
from runlist.blocks.device import Function, Memory, Shape, check_room, pack
from runlist.errors import NotSupportedError, RunlistError, UsageError

SHARED_BYTES = 227 << 10
"""Of dynamic shared memory, the most that a block has on Hopper."""

_COMPILERS = ("c++", "g++", "clang++", "zig-c++")
_OPTIONS = (
    "-std=c++20",
    "-O2",
    "-pthread",
    "-fPIC",
    "-shared",
    "-Wl,-Bsymbolic",
    "-Wno-attributes",
    "-Wno-unknown-pragmas",
)
_NO_CHECKS = "-U_FORTIFY_SOURCE"
"""Some compilers check by themselves that a jump stays on one stack. Ours do not: threads of a block have their own."""
_COMPILE_S = 120.0


class HostMemory:
    """Bytes of this process, at an address that any vector fits."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.buffer = (ctypes.c_char * (size + 256))()
        self.address = -(-ctypes.addressof(self.buffer) // 256) * 256


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A kernel of a library that was compiled here."""

    name: str
    parameters: tuple[source.Parameter, ...]
    entry: Any


class HostModule:
    """A text, compiled and loaded."""

    def __init__(self, library: ctypes.CDLL, functions: dict[str, HostFunction]) -> None:
        self.library = library
        self._functions = functions

    def function(self, name: str) -> HostFunction:
        if name not in self._functions:
            raise UsageError(f"no kernel {name}: there are {', '.join(sorted(self._functions))}")
        return self._functions[name]


class _Shape(ctypes.Structure):
    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3))


class Host:
    """Processor threads, `workers` of them, as a device. `folder` keeps what was compiled for the next time."""

    name = "host"

    def __init__(self, workers: int | None = None, folder: Path | None = None) -> None:
        self._workers = workers or max(2, min(8, len(os.sched_getaffinity(0))))
        self._folder = folder
        self._stream: int | None = None
        self._library: ctypes.CDLL | None = None
        self._closing: Any = None

    def compile(self, text: str, label: str = "kernel.cu", options: Sequence[str] = ()) -> HostModule:
        whole = unit(text, label)
        headers = [each.read_text() for each in sorted(INCLUDE.iterdir())]
        key = hashlib.sha256("\0".join((whole, *headers, *options)).encode()).hexdigest()[:20]
        if self._folder is not None:
            built = self._folder / f"{Path(label).stem}-{key}.so"
            if not built.exists():
                _compile(whole, label, built, options)
            library = ctypes.CDLL(str(built))
        else:
            with tempfile.TemporaryDirectory(prefix="runlist-blocks-") as scratch:
                _compile(whole, label, Path(scratch) / "kernels.so", options)
                library = ctypes.CDLL(str(Path(scratch) / "kernels.so"))
        self._start(library)
        return HostModule(
            library,
            {
                each.name: HostFunction(each.name, source.parameters(each), library[f"runlist_host_launch_{each.name}"])
                for each in source.kernels(text)
            },
        )

    def _start(self, library: ctypes.CDLL) -> None:
        """The first library has the threads; all that are loaded later launch onto them."""
        if self._library is not None:
            return
        library.runlist_host_stream.restype = ctypes.c_void_p
        library.runlist_host_synchronize.argtypes = [ctypes.c_void_p, ctypes.c_double]
        library.runlist_host_stream_free.argtypes = [ctypes.c_void_p]
        stream = library.runlist_host_stream(self._workers)
        self._library, self._stream = library, stream
        self._closing = weakref.finalize(self, library.runlist_host_stream_free, stream)

    def allocate(self, size: int) -> HostMemory:
        if size < 0:
            raise UsageError(f"no memory has {size} bytes")
        return HostMemory(size)

    def write(self, memory: Memory, data: bytes, offset: int = 0) -> None:
        check_room(memory, len(data), offset)
        self.synchronize()
        ctypes.memmove(memory.address + offset, bytes(data), len(data))

    def read(self, memory: Memory) -> bytes:
        self.synchronize()
        return ctypes.string_at(memory.address, memory.size)

    def share(self, address: int, size: int) -> int:  # noqa: ARG002  (as all devices have it)
        return address

    def unshare(self, address: int) -> None:
        pass

    def launch(self, function: Function, grid: Shape, block: Shape, arguments: Sequence[Any], shared: int = 0) -> None:
        assert isinstance(function, HostFunction)
        if shared > SHARED_BYTES:
            raise UsageError(f"kernel {function.name}: a block has {SHARED_BYTES} bytes of shared memory at most")
        packed = pack(function.name, function.parameters, arguments)
        pointers = (ctypes.c_void_p * max(1, len(packed)))(*(ctypes.addressof(each) for each in packed))
        function.entry(
            ctypes.c_void_p(self._stream),
            ctypes.byref(_Shape((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block))),
            pointers,
        )

    def synchronize(self, timeout_s: float | None = None) -> bool:
        if self._library is None:
            return True
        return bool(self._library.runlist_host_synchronize(self._stream, -1.0 if timeout_s is None else timeout_s))

    def fitting(self, function: Function, block: Shape, shared: int) -> int:  # noqa: ARG002
        return 2 * self._workers  # some begin when others have left, as where a GPU is shared


def unit(text: str, label: str = "kernel.cu") -> str:
    """The C++ of a text of kernels: with the arrays of dynamic shared memory, and an entry for each kernel."""
    arrays = "".join(
        f"alignas(16) thread_local {kind} {name}[{SHARED_BYTES} / sizeof({_bare(kind)})];\n"
        for kind, name in source.shared_arrays(text)
    )
    entries = "".join(
        f'extern "C" void runlist_host_launch_{each.name}(host::Stream* s, const host::Shape* shape, void** a) '
        f"{{ host::launch(*s, *shape, &{each.name}, a); }}\n"
        for each in source.kernels(text)
    )
    shown = label.replace("\\", "/").replace('"', "'")
    return f'#include "host.hpp"\n#line 1 "{shown}"\n{text}\n#line 1 "entries"\n{arrays}{entries}'


def _bare(kind: str) -> str:
    return kind.rpartition(")")[2].strip()


def compiler() -> str:
    """The C++ compiler. Raises NotSupportedError where there is none."""
    beside = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    for name in (os.environ.get("CXX", ""), *_COMPILERS):
        if name and (found := shutil.which(name, path=beside)):
            return found
    raise NotSupportedError("no C++ compiler here, which kernels on processor threads need: install g++ or clang++")


def _compile(whole: str, label: str, built: Path, options: Sequence[str]) -> None:
    """Writes a library, all at once: others may be compiling the same."""
    scratch = built.with_name(f"{built.name}.{os.getpid()}")
    words = [compiler(), *_OPTIONS, "-I", str(INCLUDE), *options, _NO_CHECKS, "-x", "c++", "-", "-o", str(scratch)]
    try:
        done = subprocess.run(words, input=whole, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    except subprocess.TimeoutExpired:
        raise RunlistError(f"{label}: the compiler did not end in {_COMPILE_S:g} s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line] or ["no reason given"]
        raise RunlistError(f"{label} does not compile as C++: {said[0]}")
    scratch.replace(built)
