"""A GPU through CuPy: its kernels, its arrays, and the stream that is CuPy's current one."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runlist.blocks.cubin import INCLUDE
from runlist.blocks.device import Function, Memory, Shape, check_room
from runlist.errors import NotSupportedError, RunlistError

_POLL_S = 0.00005


class CupyMemory:
    """Bytes of CuPy's pool."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.size = int(array.nbytes)
        self.address = int(array.data.ptr)


@dataclass(frozen=True, slots=True)
class CupyFunction:
    """A kernel of a RawModule."""

    name: str
    kernel: Any


class CupyModule:
    """A RawModule."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def function(self, name: str) -> CupyFunction:
        return CupyFunction(name, self._module.get_function(name))


class Cupy:
    """CuPy's current device and stream, as they are when this is made. Arguments are as CuPy takes them: arrays, and
    scalars of NumPy with the parameter's type.
    """

    name = "cupy"

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise NotSupportedError("CuPy is not installed: pip install cupy-cuda13x, for CUDA 13") from error
        self._cupy = cupy
        self._stream = cupy.cuda.get_current_stream()
        self.sms = int(cupy.cuda.Device().attributes["MultiProcessorCount"])
        self._shared: dict[int, int] = {}

    def compile(self, text: str, label: str = "kernel.cu", options: Sequence[str] = ()) -> CupyModule:
        try:
            module = self._cupy.RawModule(code=text, options=(*options, "-std=c++17", f"-I{INCLUDE}"))
            module.compile()
        except self._cupy.cuda.compiler.CompileException as error:
            said = [line for line in str(error).splitlines() if "error" in line] or ["no reason given"]
            raise RunlistError(f"{label} does not compile: {said[0]}") from error
        return CupyModule(module)

    def allocate(self, size: int) -> CupyMemory:
        with self._stream:
            return CupyMemory(self._cupy.zeros(max(1, size), dtype=self._cupy.uint8))

    def write(self, memory: Memory, data: bytes, offset: int = 0) -> None:
        check_room(memory, len(data), offset)
        self._stream.synchronize()
        self._cupy.cuda.runtime.memcpy(memory.address + offset, _address(data), len(data), 1)

    def read(self, memory: Memory) -> bytes:
        self._stream.synchronize()
        data = bytearray(memory.size)
        self._cupy.cuda.runtime.memcpy(_address(data), memory.address, memory.size, 2)
        return bytes(data)

    def share(self, address: int, size: int) -> int:
        runtime = self._cupy.cuda.runtime
        if self._shared.setdefault(address, 0) == 0:
            runtime.hostRegister(address, size, 2)  # cudaHostRegisterMapped
        self._shared[address] += 1
        return address  # one address for both, on all 64-bit systems that CuPy runs on

    def unshare(self, address: int) -> None:
        self._shared[address] -= 1
        if self._shared[address] == 0:
            self._cupy.cuda.runtime.hostUnregister(address)

    def launch(self, function: Function, grid: Shape, block: Shape, arguments: Sequence[Any], shared: int = 0) -> None:
        assert isinstance(function, CupyFunction)
        numpy = self._cupy
        *own, counter, halted, stops, x, y, z = arguments
        ours = (*map(numpy.uint64, (counter, halted, stops)), *map(numpy.uint32, (x, y, z)))
        with self._stream:
            function.kernel(grid, block, (*own, *ours), shared_mem=shared)

    def synchronize(self, timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            self._stream.synchronize()
            return True
        ends = time.monotonic() + timeout_s
        while not self._stream.done:
            if time.monotonic() >= ends:
                return False
            time.sleep(_POLL_S)
        return True

    def fitting(self, function: Function, block: Shape, shared: int) -> int:
        assert isinstance(function, CupyFunction)
        threads = block[0] * block[1] * block[2]
        occupancy = self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        return max(1, int(occupancy(function.kernel.kernel.ptr, threads, shared))) * self.sms


def _address(data: bytes | bytearray) -> int:
    if isinstance(data, bytes):
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0
