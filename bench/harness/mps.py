"""NVIDIA's MPS, to compare with: a server of our own, with a pipe directory of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runlist.planes.nvidia.rm.transport import choose_driver

CONTROL = "nvidia-cuda-mps-control"
_PIPE, _LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Mps:
    """The environment of a client; or `missing`, why there is none."""

    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""

    def client(self, percent: int | None = None) -> dict[str, str]:
        """The whole environment of a client, which is to use at most so many percent of the SMs."""
        limit = {} if percent is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
        return {**os.environ, **self.environment, **limit}


@contextlib.contextmanager
def server() -> Iterator[Mps]:
    """An MPS server while this lasts, for processes that are started with its environment."""
    if choose_driver().name == "emulated":
        yield Mps({_PIPE: "/nonexistent"})  # the emulated GPU has no server, only its effect
        return
    if shutil.which(CONTROL) is None:
        yield Mps(missing=f"{CONTROL} is not installed here")
        return
    with tempfile.TemporaryDirectory(prefix="runlist-mps-") as folder:
        environment = {_PIPE: folder, _LOG: folder}
        code, said = _control(environment, "-d")
        if code:
            yield Mps(missing=f"{CONTROL} did not start: {said}")
            return
        try:
            yield Mps(environment)
        finally:
            _control(environment, text="quit\n")


def _control(environment: Mapping[str, str], *words: str, text: str = "") -> tuple[int, str]:
    """Exit code, and what it said. Into a file: what it leaves in the background would hold a pipe open."""
    with tempfile.TemporaryFile("w+") as said:
        try:
            code = subprocess.run(
                [CONTROL, *words], env={**os.environ, **environment}, input=text, text=True, stdout=said, stderr=said,
                timeout=_PATIENCE_S, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1, f"no answer in {_PATIENCE_S:g} s"
        said.seek(0)
        return code, said.read().strip()[:200]
