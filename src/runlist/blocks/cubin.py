"""CUDA C++ to a GPU's code: by NVRTC where it is installed, else by nvcc."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runlist.errors import NotSupportedError, RunlistError

INCLUDE = Path(__file__).parent / "include"

_NVCC_S = 300.0


def compiled(text: str, label: str, architecture: str, options: Sequence[str] = ()) -> bytes:
    """The code of a text for an architecture such as `sm_90`. Raises RunlistError with the compiler's first words, or
    NotSupportedError where there is no compiler.
    """
    if nvrtc_there():
        return _by_nvrtc(text, label, architecture, options)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise NotSupportedError(
            "no NVRTC and no nvcc here: pip install nvidia-cuda-nvrtc, for the driver's CUDA release"
        )
    return by_nvcc(nvcc, text, label, architecture, options)


def nvrtc_there() -> bool:
    """Whether NVRTC can be loaded."""
    from cuda.bindings import nvrtc

    try:
        return bool(nvrtc.nvrtcVersion()[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS)
    except (RuntimeError, OSError):  # cuda.bindings' own error for a library that is not there
        return False


def by_nvcc(nvcc: str, text: str, label: str, architecture: str, options: Sequence[str] = ()) -> bytes:
    """The same, by the nvcc that is named."""
    with tempfile.TemporaryDirectory(prefix="runlist-nvcc-") as folder:
        source, code = Path(folder) / Path(label).with_suffix(".cu").name, Path(folder) / "kernels.cubin"
        source.write_text(text)
        words = [nvcc, "-cubin", f"-arch={architecture}", "-std=c++17", "-I", str(INCLUDE), *options]
        try:
            done = subprocess.run(
                [*words, "-o", str(code), str(source)], capture_output=True, text=True, timeout=_NVCC_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise RunlistError(f"{label}: nvcc did not end in {_NVCC_S:g} s") from None
        if done.returncode:
            raise RunlistError(f"{label} does not compile: {_first(done.stderr + done.stdout)}")
        return code.read_bytes()


def _by_nvrtc(text: str, label: str, architecture: str, options: Sequence[str]) -> bytes:
    from cuda.bindings import nvrtc

    def call(result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RunlistError(f"NVRTC: {nvrtc.nvrtcResult(status).name}")
        return values[0] if values else None

    program = call(nvrtc.nvrtcCreateProgram(text.encode(), label.encode(), 0, [], []))
    try:
        words = [f"--gpu-architecture={architecture}", "--std=c++17", f"-I{INCLUDE}", *options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * call(nvrtc.nvrtcGetProgramLogSize(program))
            call(nvrtc.nvrtcGetProgramLog(program, log))
            raise RunlistError(f"{label} does not compile: {_first(log.decode(errors='replace'))}")
        code = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
        call(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _first(said: str) -> str:
    lines = said.replace("\0", "").strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")
