"""Latency programs in PyTorch: decode steps as a CUDA graph, ResNet-50, embeddings looked up, and a compiled model."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from bench.frameworks import served
from bench.frameworks.decode import Decoder
from bench.frameworks.resnet50 import resnet50
from bench.frameworks.torch_tools import captured, finite, gpu_time, torch_of, waiter, warm
from runlist.workloads.prepared import prepared_request

TOKENS = 32
PREPARES_S = 2e-3
ROWS, DIMENSIONS, SAMPLES, LOOKED_UP = 2_000_000, 64, 512, 100  # of the embeddings, and of a request
BLOCKS, WIDTH = 8, 4096  # of the compiled model: 2.1 GB of weights, read once a request


def _graph(arguments: argparse.Namespace) -> None:
    """One step a request."""
    _decode(arguments, 1)


def _token_loop(arguments: argparse.Namespace) -> None:
    """Steps one after the other, each waited for, as who streams tokens does."""
    _decode(arguments, TOKENS)


def _prepared_graph(arguments: argparse.Namespace) -> None:
    """One step, for which the host works for a while once a byte came in."""
    _decode(arguments, 1, PREPARES_S)


def _hinted_graph(arguments: argparse.Namespace) -> None:
    """The same, where the program says so by a hint."""
    _decode(arguments, 1, PREPARES_S, hints=True)


def _decode(arguments: argparse.Namespace, tokens: int, ahead_s: float = 0.0, *, hints: bool = False) -> None:
    torch = torch_of(arguments.device)
    wait = waiter(torch, arguments.device)
    replay, scores = captured(torch, arguments.device, Decoder(torch, arguments.device).step)

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        for _ in range(tokens):
            replay()
            wait()
        return began

    ready = prepared_request(request, ahead_s, hints=hints) if ahead_s else request
    served.requests(ready, gpu_time(torch, arguments, replay, tokens), lambda: finite(torch, scores), ahead_s)


def _resnet(arguments: argparse.Namespace) -> None:
    """Eager, in fp16: an image in from the host's memory, its scores out to it."""
    torch = torch_of(arguments.device)
    wait = waiter(torch, arguments.device)
    on_gpu = arguments.device == "cuda"
    model = resnet50(torch).eval().to(arguments.device, torch.float16)
    image = torch.randn(1, 3, 224, 224, dtype=torch.float16, pin_memory=on_gpu)
    scores = torch.empty(1, 1000, dtype=torch.float16, pin_memory=on_gpu)

    def classify() -> None:
        with torch.inference_mode():
            scores.copy_(model(image.to(arguments.device, non_blocking=True)), non_blocking=True)

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        classify()
        wait()
        return began

    warm(torch, arguments.device, classify)
    request(0.0)
    served.requests(request, gpu_time(torch, arguments, classify), lambda: finite(torch, scores))


def _lookup(arguments: argparse.Namespace) -> None:
    """Scores of samples by sums of embeddings, eager, in and out of memory that is not pinned: a request is short, and
    waits in its last copy.
    """
    torch = torch_of(arguments.device)
    nn: Any = torch.nn
    rows = ROWS if arguments.device == "cuda" else 1_000
    with torch.device(arguments.device):
        sums = nn.EmbeddingBag(rows, DIMENSIONS, mode="sum")
        scores = nn.Sequential(nn.Linear(DIMENSIONS, 512), nn.ReLU(), nn.Linear(512, 1))
    wanted = torch.randint(0, rows, (SAMPLES, LOOKED_UP))
    results: list[Any] = []

    def score() -> None:
        with torch.inference_mode():
            results[:] = [scores(sums(wanted.to(arguments.device))).cpu()]

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        score()
        return began

    warm(torch, arguments.device, score)
    request(0.0)
    served.requests(request, gpu_time(torch, arguments, score), lambda: finite(torch, *results))


def _compiled(arguments: argparse.Namespace) -> None:
    """By torch.compile with mode="reduce-overhead", which makes CUDA graphs of it."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of processes takes longer than these kernels
    torch = torch_of(arguments.device)
    wait = waiter(torch, arguments.device)
    nn: Any = torch.nn
    width = WIDTH if arguments.device == "cuda" else 64

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.normal = nn.LayerNorm(width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, given: Any) -> Any:
            return given + self.narrow(nn.functional.gelu(self.widen(self.normal(given))))

    with torch.device(arguments.device):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS))).to(torch.bfloat16).eval()
        given = torch.randn(1, width).to(torch.bfloat16)
    model.requires_grad_(False)
    if arguments.device == "cuda":
        torch.cuda.empty_cache()  # it was made in single precision
    step = torch.compile(model, mode="reduce-overhead")
    results: list[Any] = []

    def run() -> None:
        with torch.no_grad():
            results[:] = [step(given)]

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        run()
        wait()
        return began

    for _ in range(4):  # it compiles in the first, records in the second
        request(0.0)
    served.requests(request, gpu_time(torch, arguments, run), lambda: finite(torch, *results))


if __name__ == "__main__":
    programs = {
        "graph": _graph,
        "prepared-graph": _prepared_graph,
        "hinted-graph": _hinted_graph,
        "token-loop": _token_loop,
        "resnet": _resnet,
        "lookup": _lookup,
        "compiled": _compiled,
    }
    served.serve(programs, __doc__)
