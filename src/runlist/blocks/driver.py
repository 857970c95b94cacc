"""A GPU through the CUDA driver API, with kernels compiled by NVRTC or nvcc: needs neither CuPy nor PyTorch."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runlist.blocks import source
from runlist.blocks.cubin import compiled
from runlist.blocks.device import Function, Memory, Shape, check_room, pack
from runlist.errors import NotSupportedError, RunlistError, UsageError

_POLL_S = 0.00005


def check(result: tuple[Any, ...]) -> Any:
    """What a call of cuda.bindings returned: None, or one value. Raises RunlistError if it failed."""
    from cuda.bindings import driver

    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RunlistError(f"CUDA: {driver.CUresult(status).name}")
    return values[0] if values else None


class CudaMemory:
    """Memory on the GPU, freed with this object."""

    def __init__(self, size: int) -> None:
        from cuda.bindings import driver

        self.size = size
        self._free = driver.cuMemFree
        self.address = int(check(driver.cuMemAlloc(max(1, size))))

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._free(self.address)


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A kernel that is loaded."""

    name: str
    parameters: tuple[source.Parameter, ...]
    handle: Any


class CudaModule:
    """A text, compiled and loaded."""

    def __init__(self, handle: Any, kernels: Sequence[source.Kernel]) -> None:
        self._handle = handle
        self._kernels = {each.name: each for each in kernels}

    def function(self, name: str) -> CudaFunction:
        from cuda.bindings import driver

        if name not in self._kernels:
            raise UsageError(f"no kernel {name}: there are {', '.join(sorted(self._kernels))}")
        status, handle = driver.cuModuleGetFunction(self._handle, name.encode())
        if status != driver.CUresult.CUDA_SUCCESS:
            raise UsageError(f'kernel {name} is not found by its name: declare it extern "C"')
        return CudaFunction(name, source.parameters(self._kernels[name]), handle)


class Cuda:
    """The primary context of GPU `index`, current in the thread that made it, and a stream: one's own (a handle as a
    number), else a new one of `priority`.
    """

    name = "cuda"

    def __init__(self, index: int = 0, *, stream: int | None = None, priority: int = 0) -> None:
        from cuda.bindings import driver

        try:
            check(driver.cuInit(0))
        except RuntimeError as error:  # cuda.bindings' own error where libcuda.so.1 is missing
            raise NotSupportedError(f"no usable CUDA driver here ({str(error).splitlines()[0]})") from error
        self._driver = driver
        self._device = check(driver.cuDeviceGet(index))
        self._context = check(driver.cuDevicePrimaryCtxRetain(self._device))
        check(driver.cuCtxSetCurrent(self._context))
        attribute = driver.CUdevice_attribute
        major, minor, self.sms = (
            int(check(driver.cuDeviceGetAttribute(each, self._device)))
            for each in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        self.architecture = f"sm_{major}{minor}"
        self.label = check(driver.cuDeviceGetName(128, self._device)).split(b"\0")[0].decode()
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = int(check(driver.cuStreamCreateWithPriority(flags, priority))) if stream is None else stream
        self._shared: dict[int, list[int]] = {}  # by address: how many share it, and what the GPU calls it

    def _use(self) -> None:
        """Any thread may stop, wait and resume."""
        check(self._driver.cuCtxSetCurrent(self._context))

    def compile(self, text: str, label: str = "kernel.cu", options: Sequence[str] = ()) -> CudaModule:
        self._use()
        code = compiled(text, label, self.architecture, options)
        return CudaModule(check(self._driver.cuModuleLoadData(code)), source.kernels(text))

    def allocate(self, size: int) -> CudaMemory:
        self._use()
        memory = CudaMemory(size)
        check(self._driver.cuMemsetD8Async(memory.address, 0, size, self.stream))
        return memory

    def write(self, memory: Memory, data: bytes, offset: int = 0) -> None:
        check_room(memory, len(data), offset)
        self._use()
        check(self._driver.cuMemcpyHtoDAsync(memory.address + offset, data, len(data), self.stream))
        check(self._driver.cuStreamSynchronize(self.stream))

    def read(self, memory: Memory) -> bytes:
        self._use()
        data = bytearray(memory.size)
        there = ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0
        check(self._driver.cuMemcpyDtoHAsync(there, memory.address, memory.size, self.stream))
        check(self._driver.cuStreamSynchronize(self.stream))
        return bytes(data)

    def share(self, address: int, size: int) -> int:
        if address in self._shared:
            self._shared[address][0] += 1
            return self._shared[address][1]
        self._use()
        driver = self._driver
        mapped = driver.CU_MEMHOSTREGISTER_DEVICEMAP
        try:
            (status,) = driver.cuMemHostRegister(address, size, mapped)
        except RuntimeError as error:  # cuda.bindings' own, for what a driver lacks
            raise NotSupportedError("this driver cannot map memory of a process: no kernel can be stopped") from error
        if status != driver.CUresult.CUDA_SUCCESS:
            # Kernels refuse to pin files that are not in memory for a device to write to them; this one only reads.
            (status,) = driver.cuMemHostRegister(address, size, mapped | driver.CU_MEMHOSTREGISTER_READ_ONLY)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise NotSupportedError(
                f"the driver cannot map the page for stops ({driver.CUresult(status).name}): "
                "put its file into a folder that is in memory, such as one below /dev/shm"
            )
        self._shared[address] = [1, int(check(driver.cuMemHostGetDevicePointer(address, 0)))]
        return self._shared[address][1]

    def unshare(self, address: int) -> None:
        held = self._shared[address]
        held[0] -= 1
        if held[0] == 0:
            del self._shared[address]
            self._use()
            check(self._driver.cuMemHostUnregister(address))

    def launch(self, function: Function, grid: Shape, block: Shape, arguments: Sequence[Any], shared: int = 0) -> None:
        assert isinstance(function, CudaFunction)
        self._use()
        self._allow(function, shared)
        packed = pack(function.name, function.parameters, arguments)
        pointers = (ctypes.c_void_p * max(1, len(packed)))(*(ctypes.addressof(each) for each in packed))
        check(
            self._driver.cuLaunchKernel(
                function.handle, *grid, *block, shared, self.stream, ctypes.addressof(pointers), 0
            )
        )

    def synchronize(self, timeout_s: float | None = None) -> bool:
        self._use()
        if timeout_s is None:
            check(self._driver.cuStreamSynchronize(self.stream))
            return True
        ends = time.monotonic() + timeout_s
        while True:
            (status,) = self._driver.cuStreamQuery(self.stream)
            if status != self._driver.CUresult.CUDA_ERROR_NOT_READY:
                check((status,))
                return True
            if time.monotonic() >= ends:
                return False
            time.sleep(_POLL_S)

    def fitting(self, function: Function, block: Shape, shared: int) -> int:
        assert isinstance(function, CudaFunction)
        self._use()
        self._allow(function, shared)
        threads = block[0] * block[1] * block[2]
        each = check(self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.handle, threads, shared))
        if each == 0:
            raise UsageError(
                f"kernel {function.name}: no block of {threads} threads and {shared} bytes fits onto an SM"
            )
        return int(each) * self.sms

    def _allow(self, function: CudaFunction, shared: int) -> None:
        """More than 48 KiB of dynamic shared memory have to be asked for."""
        if shared > 48 << 10:
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(self._driver.cuFuncSetAttribute(function.handle, attribute, shared))
