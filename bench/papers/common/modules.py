"""Python modules that only some programs need, and the streams that PyTorch works on."""

from __future__ import annotations

import importlib
from typing import Any

from runlist.errors import NotSupportedError


def load(name: str) -> Any:
    """A Python module; raises NotSupportedError where it cannot be had."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another PyTorch
        raise NotSupportedError(f"needs the Python module {name}: {str(error).splitlines()[0]}") from error


def own_stream(torch: Any, gpu: int, priority: int) -> Any:
    """A stream of this priority, which PyTorch's own have not, made by this thread and current in it."""
    from cuda.bindings import driver

    cuda = torch.cuda
    if not cuda.is_available():
        raise NotSupportedError("PyTorch sees no GPU here: --device cpu tries the program")
    cuda.set_device(gpu)
    cuda.synchronize()  # there is a context now
    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    status, handle = driver.cuStreamCreateWithPriority(flags, priority)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise NotSupportedError(f"no stream: {status.name}")
    stream = cuda.ExternalStream(int(handle))
    cuda.set_stream(stream)
    return stream
