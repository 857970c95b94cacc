"""One GPU through the CUDA driver API: status checks, memory, the project's kernels and typed launches."""

from __future__ import annotations

from runlist.workloads import quick_cuda  # noqa: F401  isort: skip  (before the bindings)

import ctypes
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from cuda.bindings import driver

BLOCK = 256
"""Threads in a block of every one-dimensional launch here."""

SIGNATURES: dict[str, tuple[type[Any], ...]] = {
    "fill_u32": (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64),
    "vector_add_f32": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
    "accumulate_lcg": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32),
    "matmul_f32": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32),
    "wait_flag_u32": (ctypes.c_uint64, ctypes.c_uint32),
}
"""Parameter types of the kernels in kernels.cu; pointers are 64-bit device addresses."""


class GpuError(RuntimeError):
    """A CUDA call failed, or there is no CUDA driver here. The message is one line."""


def check(result: tuple[Any, ...]) -> Any:
    """What a cuda.bindings call returned: None, one value, or a tuple of several; raises GpuError if it failed."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise GpuError(f"CUDA: {driver.CUresult(status).name}")
    return values[0] if len(values) == 1 else tuple(values) or None


class Flag:
    """A u32 in page-locked host memory that a kernel polls."""

    def __init__(self) -> None:
        mapped = driver.CU_MEMHOSTALLOC_DEVICEMAP
        self._host = check(driver.cuMemHostAlloc(ctypes.sizeof(ctypes.c_uint32), mapped))
        self.address = int(check(driver.cuMemHostGetDevicePointer(self._host, 0)))
        """Where a kernel finds it."""
        self._cell = ctypes.c_uint32.from_address(int(self._host))
        self._cell.value = 0

    @property
    def value(self) -> int:
        """What the host last wrote."""
        return self._cell.value

    @value.setter
    def value(self, value: int) -> None:
        self._cell.value = value


class PageLocked:
    """Page-locked host memory of `size` bytes for input, as much for output, and a buffer on the GPU for both."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._addresses = [int(check(driver.cuMemHostAlloc(size, 0))) for _ in range(2)]
        self._input, self._output = ((ctypes.c_char * size).from_address(address) for address in self._addresses)
        self._device = check(driver.cuMemAlloc(size))

    def fill(self, pattern: bytes) -> None:
        """The input is this, over and over; `size` is a multiple of its length."""
        self._input.raw = pattern * (self._size // len(pattern))

    def copy_in(self, stream: Any) -> None:
        """Queues the copy of the input to the GPU."""
        check(driver.cuMemcpyHtoDAsync(self._device, self._addresses[0], self._size, stream))

    def copy_out(self, stream: Any) -> None:
        """Queues the copy of what is on the GPU to the output."""
        check(driver.cuMemcpyDtoHAsync(self._addresses[1], self._device, self._size, stream))

    def result(self) -> bytes:
        """The output."""
        return self._output.raw


class Kernel:
    """A kernel of kernels.cu."""

    def __init__(self, module: Any, name: str) -> None:
        self._function = check(driver.cuModuleGetFunction(module, name.encode()))
        self._types = SIGNATURES[name]

    def launch(self, stream: Any, blocks: int, *arguments: int, threads: int = BLOCK) -> None:
        """Queues `blocks` × `threads` on `stream`; does not wait."""
        parameters = (arguments, self._types)
        check(driver.cuLaunchKernel(self._function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0))


class Graph:
    """What is queued on `stream` inside a `with` statement: it does not run there, but at each `launch`.

    Raises GpuError where the driver has no CUDA graphs.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._executable: Any = None

    def __enter__(self) -> Self:
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        try:
            check(driver.cuStreamBeginCapture(self._stream, mode))
        except RuntimeError as error:  # cuda.bindings' own error for a function that the driver lacks, or ours
            raise GpuError(f"no CUDA graphs here ({str(error).splitlines()[0]})") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        graph = check(driver.cuStreamEndCapture(self._stream))
        if kind is None:
            self._executable = check(driver.cuGraphInstantiate(graph, 0))
        check(driver.cuGraphDestroy(graph))

    def launch(self) -> None:
        """Queues it on the stream; does not wait."""
        check(driver.cuGraphLaunch(self._executable, self._stream))


class Stopwatch:
    """Times what is queued on a stream between `start` and `stop`, on the GPU's own clock."""

    def __init__(self) -> None:
        flags = driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC
        self._start, self._stop = (check(driver.cuEventCreate(flags)) for _ in range(2))

    def start(self, stream: Any) -> None:
        """Queues the beginning; does not wait."""
        check(driver.cuEventRecord(self._start, stream))

    def stop(self, stream: Any) -> None:
        """Queues the end; does not wait."""
        check(driver.cuEventRecord(self._stop, stream))

    def seconds(self) -> float:
        """Waits for the end, and tells how long it was."""
        check(driver.cuEventSynchronize(self._stop))
        return float(check(driver.cuEventElapsedTime(self._start, self._stop))) / 1e3


class Gpu:
    """The primary context of GPU `index`, current in the thread that made it, with the project's kernels loaded.

    `blocking` makes a wait sleep instead of spin: for long waits.
    """

    def __init__(self, index: int = 0, *, blocking: bool = False) -> None:
        try:
            check(driver.cuInit(0))
        except RuntimeError as error:  # cuda.bindings' own error where libcuda.so.1 is missing, or ours
            why = f"no usable CUDA driver here ({str(error).splitlines()[0]})"
            raise GpuError(f"{why}: `runlist emulator -- COMMAND` gives a command an emulated GPU") from error
        count = check(driver.cuDeviceGetCount())
        if not 0 <= index < count:
            raise GpuError(f"there is no GPU {index}: this machine has {count}")
        self.device = check(driver.cuDeviceGet(index))
        self.name: str = check(driver.cuDeviceGetName(128, self.device)).split(b"\0")[0].decode()
        sms = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self.sm_count: int = check(driver.cuDeviceGetAttribute(sms, self.device))
        schedule = driver.CUctx_flags
        flags = schedule.CU_CTX_SCHED_BLOCKING_SYNC if blocking else schedule.CU_CTX_SCHED_AUTO
        check(driver.cuDevicePrimaryCtxSetFlags(self.device, flags))
        self.context_at = time.perf_counter()
        """When the context was asked for."""
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(self.device))))
        self._module = _load()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the context back; its memory and streams go with it."""
        check(driver.cuDevicePrimaryCtxRelease(self.device))

    def kernel(self, name: str) -> Kernel:
        """The kernel `name` of kernels.cu."""
        return Kernel(self._module, name)

    def stream(self, priority: int = 0) -> Any:
        """A new stream that does not wait for the default stream. The lower the priority, the more urgent."""
        return check(driver.cuStreamCreateWithPriority(driver.CUstream_flags.CU_STREAM_NON_BLOCKING, priority))

    def upload(self, values: array[Any]) -> int:
        """Device address of a copy of `values`."""
        size = len(values) * values.itemsize
        address = check(driver.cuMemAlloc(size))
        check(driver.cuMemcpyHtoD(address, values.buffer_info()[0], size))
        # The call returns once the source may change. The copy may still be under way, and our streams wait for none.
        synchronize(driver.CUstream(0))
        return int(address)

    def download(self, address: int, like: array[Any]) -> array[Any]:
        """As many values of the same type as `like` has, from device memory at `address`."""
        values = array(like.typecode, bytes(len(like) * like.itemsize))
        check(driver.cuMemcpyDtoH(values.buffer_info()[0], address, len(values) * values.itemsize))
        return values


def current_kernel(name: str) -> Kernel:
    """The kernel `name` of kernels.cu in the context that is current in this thread, whoever made it."""
    return Kernel(_load(), name)


def in_this_context(body: Callable[[], None]) -> Callable[[], None]:
    """The function for another thread, where it begins with the context that is current here."""
    context = check(driver.cuCtxGetCurrent())

    def run() -> None:
        check(driver.cuCtxSetCurrent(context))
        body()

    return run


def _load() -> Any:
    ptx = Path(__file__).with_name("kernels.autogen.ptx").read_bytes()
    return check(driver.cuModuleLoadData(ptx + b"\0"))


def synchronize(stream: Any) -> None:
    """Waits until everything queued on `stream` is done."""
    check(driver.cuStreamSynchronize(stream))
