"""The experiments, as data: which programs, how they are asked, and what is to come of it."""

from __future__ import annotations

from dataclasses import dataclass

from bench.papers.common.program import Program, spinning
from bench.papers.common.task import Task
from runlist.arrivals import Closed, Poisson
from runlist.errors import UsageError

PACKAGE = "bench.papers.orion.programs"

EACH, TOGETHER, SERVED = "each", "together", "served"
"""How programs are asked. `each`: one after the other, for what an operation costs. `together`: a request of each at
the same moment; measured until the last has ended. `served`: as their loads have it, for some seconds.
"""

RATE = 15.0
"""Requests a second of the high-priority program that is served, kernel by kernel …"""

GRAPH_RATE = 20.0
"""… and by graphs: 16 tokens take some 17 ms of an H200, so it works for a third of the time."""


@dataclass(frozen=True)
class Experiment:
    """The first task is the one of high priority. `requests` of each are asked for in a cell that is not `served`."""

    key: str
    title: str
    kind: str
    tasks: tuple[Task, ...]
    requests: int = 20

    @property
    def programs(self) -> tuple[str, ...]:
        """By name, each once."""
        return tuple(dict.fromkeys(task.program for task in self.tasks))


def _work(kind: str, size: int, operations: int, kernel_us: float, *options: str) -> Program:
    words = (kind, "--size", str(size), "--operations", str(operations), *options)
    smoke = (*spinning(kernel_us, min(operations, 20)), *options)
    return Program("work", words, smoke, ("torch",), 1.5, package=PACKAGE)


def _gpt(mode: str, kernel_us: float, kernels: int, gpu_gb: float, *options: str) -> Program:
    return Program("gpt", (mode, *options), spinning(kernel_us, kernels), ("torch",), gpu_gb, package=PACKAGE)


_LARGE = 1 << 26

PROGRAMS: dict[str, Program] = {
    "gemm-10": _work("gemm", 2048, 10, 100),
    "gemm-10-waited": _work("gemm", 2048, 10, 100, "--wait"),
    "gemm-100": _work("gemm", 2048, 100, 100),
    "gemm-1024-40": _work("gemm", 1024, 40, 50),
    "gemm-4096-4": _work("gemm", 4096, 4, 200),
    "gemm-8192-1": _work("gemm", 8192, 1, 400),
    "memory-10": _work("memory", _LARGE, 10, 100),
    "memory-100": _work("memory", _LARGE, 100, 100),
    "small-10000": _work("small", 1024, 10_000, 10),
    "gpt-forward": _gpt("forward", 100, 10, 3.0),
    "gpt-decode": _gpt("decode", 100, 4, 4.0),
    "gpt-decode-graph": _gpt("decode", 100, 16, 4.0, "--graph", "--tokens", "16"),
    "gpt-train": _gpt("train", 200, 10, 12.0),
}
"""What they run. On an emulated GPU kernels that spin stand for all of them."""


def _pair(first: str, second: str) -> tuple[Task, ...]:
    return Task("hp", first, True, Closed()), Task("be", second, False, Closed())


EXPERIMENTS: dict[str, Experiment] = {
    one.key: one
    for one in (
        Experiment("two-gemm", "10 products of 2048² in each of two clients", TOGETHER, _pair("gemm-10", "gemm-10")),
        Experiment(
            "two-gemm-waited", "10 products of 2048² in each of two clients, each of them waited for", TOGETHER,
            _pair("gemm-10-waited", "gemm-10-waited"),
        ),
        Experiment(
            "compute-memory", "10 products of 2048² beside 10 sums of 256 MiB", TOGETHER, _pair("gemm-10", "memory-10")
        ),
        Experiment(
            "overhead-large", "100 products of 2048², one client at a time", EACH, _pair("gemm-100", "gemm-100"), 10
        ),
        Experiment(
            "overhead-small", "10,000 small sums, one client at a time", EACH, _pair("small-10000", "small-10000"), 10
        ),
        Experiment(
            "large-1024", "40 products of 1024² beside 10 sums of 256 MiB", TOGETHER, _pair("gemm-1024-40", "memory-10")
        ),
        Experiment(
            "large-4096", "4 products of 4096² beside 10 sums of 256 MiB", TOGETHER, _pair("gemm-4096-4", "memory-10")
        ),
        Experiment(
            "large-8192", "a product of 8192² beside 100 sums of 256 MiB", TOGETHER, _pair("gemm-8192-1", "memory-100")
        ),
        Experiment(
            "gpt-memory", "a forward pass of a GPT beside 100 sums of 256 MiB", TOGETHER,
            _pair("gpt-forward", "memory-100"),
        ),
        Experiment(
            "inference-training", "inference that the memory bounds beside training that the SMs bound", SERVED,
            (Task("hp", "gpt-decode", True, Poisson(RATE)), Task("be", "gpt-train", False, Closed())),
        ),
        Experiment(
            "graph-inference-training", "the same with a CUDA graph a token, which the GPU bounds", SERVED,
            (Task("hp", "gpt-decode-graph", True, Poisson(GRAPH_RATE)), Task("be", "gpt-train", False, Closed())),
        ),
    )
}  # fmt: skip

QUICK = ("compute-memory", "inference-training")


def chosen(keys: str | None, *, quick: bool) -> list[Experiment]:
    """Those of a command line, by commas; None: all, or the quick ones. Raises UsageError."""
    if keys is None:
        return [EXPERIMENTS[key] for key in (QUICK if quick else EXPERIMENTS)]
    names = list(dict.fromkeys(filter(None, map(str.strip, keys.split(",")))))
    for name in names:
        if name not in EXPERIMENTS:
            raise UsageError(f"no experiment {name!r}: take {', '.join(EXPERIMENTS)}")
    if not names:
        raise UsageError("--only names no experiment")
    return [EXPERIMENTS[name] for name in names]
