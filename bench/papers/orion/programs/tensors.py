"""What these programs share: a stream of their own, and a digest of tensors."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from bench.papers.common.modules import load, own_stream
from bench.papers.common.programs import serving

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_INPUTS = 16
"""Different ones; request n has that of n modulo this."""


class TensorProgram(serving.Program):
    """Copies numbers in, and works on them. What it computes has the same bits in each process."""

    def __init__(self, options: argparse.Namespace, size: int, kind: str) -> None:
        os.environ.setdefault(_WORKSPACE, ":4096:8")  # without it cuBLAS adds up in another order now and then
        self.torch = torch = load("torch")
        self.on_gpu = options.device == "cuda"
        self.own_stream = own_stream(torch, options.gpu, options.priority) if self.on_gpu else None
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        self.device = options.device
        self.generator = torch.Generator().manual_seed(options.seed)
        self._inputs = [self._input(size, kind) for _ in range(_INPUTS)]
        self._from = torch.empty_like(self._inputs[0], pin_memory=self.on_gpu)
        self.given = torch.empty_like(self._from, device=self.device)
        self.request = 0

    def _input(self, size: int, kind: str) -> Any:
        torch = self.torch
        if kind == "words":
            return torch.randint(0, WORDS, (size,), generator=self.generator)
        return torch.rand(size, generator=self.generator).to(getattr(torch, kind))

    def random(self, *shape: int, kind: str = "float32", scale: float = 1.0) -> Any:
        """Numbers by the seed, on the device."""
        values = self.torch.randn(*shape, generator=self.generator) * scale
        return values.to(self.device, getattr(self.torch, kind))

    @property
    def stream(self) -> int:
        return int(self.own_stream.cuda_stream) if self.own_stream is not None else 0

    def facts(self) -> Mapping[str, Any]:
        name = self.torch.cuda.get_device_name() if self.on_gpu else "cpu"
        return {"repeats": True, "device": name, "torch": self.torch.__version__}

    def prepare(self, request: int) -> None:
        self.request = request
        self._from.copy_(self._inputs[request % _INPUTS])

    def copy_input(self) -> None:
        self.given.copy_(self._from, non_blocking=True)

    def synchronize(self) -> None:
        if self.own_stream is not None:
            self.own_stream.synchronize()

    def warm(self, times: int) -> None:
        """Serve a few requests, as they are then served."""
        for number in range(times):
            self.prepare(number)
            self.copy_input()
            self.infer()
            self.copy_output()
            self.synchronize()

    def digest(self, *tensors: Any) -> str:
        """Of all their bits, on the host."""
        found = hashlib.sha256()
        for tensor in tensors:
            found.update(tensor.detach().reshape(-1).cpu().view(self.torch.uint8).numpy())
        return found.hexdigest()[:16]


WORDS = 32_000


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option that all have."""
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying it (cuda)")
