"""Graph analytics as a program: breadth-first search, shortest paths, connected components or PageRank.

The graph is a Matrix Market file's, or drawn at random (R-MAT). With `--device host` all of it happens on processor
threads, for tests.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.papers.common.programs import serving
from bench.papers.gpreempt import graphs
from bench.papers.gpreempt.analytics import ALGORITHMS, Blocks, Plain
from runlist.blocks.device import Device
from runlist.workloads import options as workload_options


class GraphProgram(serving.Program):
    """A request asks for all vertices of the graph."""

    def __init__(self, options: argparse.Namespace) -> None:
        make = ALGORITHMS[options.algorithm]
        self.ways = frozenset({"blocks", "reset"} if make.idempotent else {"blocks"})
        graph = (
            graphs.read(options.graph) if options.graph else graphs.rmat(options.scale, options.degree, options.seed)
        )
        if options.algorithm == "cc":
            graph = graph.both_ways()
        self._options, self._graph = options, graph
        self._device = _device(options)
        page = options.blocks or (options.reset if make.idempotent else None)
        stoppable = page is not None and not options.urgent
        way = Blocks(self._device, page, anew=options.blocks is None) if stoppable else Plain(self._device)
        self._work = make(graph, way, options.seed)
        self._request = 0
        self._answer = self._work.answer()
        self.infer()  # a first time

    @property
    def stream(self) -> int:
        return int(getattr(self._device, "stream", 0))

    def facts(self) -> Mapping[str, Any]:
        options = self._options
        drawn = {"scale": options.scale, "degree": options.degree, "seed": options.seed}
        return {
            "repeats": True,
            "algorithm": options.algorithm,
            "graph": options.graph.name if options.graph else drawn,
            "vertices": self._graph.vertices,
            "edges": self._graph.edges,
            "device": getattr(self._device, "label", self._device.name),
        }

    def prepare(self, request: int) -> None:
        self._request = request

    def copy_input(self) -> None:
        self._work.begin(self._request)

    def infer(self) -> None:
        self._work.run()

    def copy_output(self) -> None:
        self._answer = self._work.answer()

    def synchronize(self) -> None:
        self._device.synchronize()

    def check(self) -> str | None:
        return hashlib.sha256(self._answer.tobytes()).hexdigest()[:16]

    def correct(self) -> bool:
        """Whether the last answer is one; that the others were is seen by their digests."""
        self._work.begin(self._request)
        self._work.run()
        answer = self._work.answer()
        return self._work.right(self._request, answer)


def _device(options: argparse.Namespace) -> Device:
    if options.device == "host":
        from runlist.blocks.host import Host

        return Host(folder=options.built)
    from runlist.blocks.driver import Cuda

    return Cuda(options.gpu, priority=options.priority)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--algorithm", choices=sorted(ALGORITHMS), default="bfs", help="which one (bfs)")
    add("--graph", type=Path, metavar="FILE", help="a Matrix Market file, instead of a drawn graph")
    add("--scale", type=workload_options.positive_int, default=18, metavar="N", help="2^N vertices (18)")
    add("--degree", type=workload_options.positive_int, default=16, metavar="N", help="drawn edges a vertex (16)")
    add("--device", choices=("cuda", "host"), default="cuda", help="a GPU, or processor threads")
    add(
        "--built", type=Path, metavar="FOLDER", help="with --device host: keep compiled kernels there for the next time"
    )


if __name__ == "__main__":
    serving.main(GraphProgram, __doc__, _add_options)
