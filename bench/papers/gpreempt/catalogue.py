"""The programs that a workload may name: GPreempt's."""

from __future__ import annotations

from bench.papers.common.program import Program, spinning

PACKAGE = "bench.papers.gpreempt.programs"


def _model(name: str, smoke_us: float, *modules: str, gpu_gb: float = 1.5) -> Program:
    ways = frozenset({"hint", "blocks"})  # between layers, as a library's kernels cannot be stopped inside
    needs = ("torch", *modules)
    return Program("dnn", (name,), spinning(smoke_us), needs, gpu_gb, ways, PACKAGE)


def _graph(algorithm: str, smoke_us: float, *ways: str) -> Program:
    words, smoke = ("--algorithm", algorithm), spinning(smoke_us, 4)
    return Program("graph", words, smoke, ("numpy",), 1.0, frozenset({"blocks", *ways}), PACKAGE)


def _spin(kernel_us: float) -> Program:
    words = spinning(kernel_us, grid=8 * 132)
    return Program("spin", words, smoke=spinning(min(kernel_us, 5_000)), ways=frozenset({"hint"}))


PROGRAMS: dict[str, Program] = {
    "vgg19": _model("vgg19", 800, "timm"),
    "resnet152": _model("resnet152", 1_500, "timm"),
    "densenet201": _model("densenet201", 1_500, "timm"),
    "inception_v3": _model("inception_v3", 1_000, "timm"),
    "distilbert": _model("distilbert", 600, "transformers"),
    "weather": Program(
        "weather", smoke=spinning(400, 6), modules=("numpy",), gpu_gb=1.0, ways=frozenset({"blocks"}), package=PACKAGE
    ),
    "bfs": _graph("bfs", 700, "reset"),
    "sssp": _graph("sssp", 900, "reset"),
    "pagerank": _graph("pagerank", 1_200),
    "cc": _graph("cc", 800, "reset"),
    "spin-50us": _spin(50),
    "spin-200us": _spin(200),
    "spin-1ms": _spin(1_000),
    "spin-5ms": _spin(5_000),
    "spin-20ms": _spin(20_000),
}  # fmt: skip


AS_GRAPH = frozenset({"dnn"})
"""Modules that work as one CUDA graph with --graph."""
