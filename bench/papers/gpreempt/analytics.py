"""BFS, SSSP, connected components and PageRank on a device: what each request does, and whether its answer is right.

They run plainly, or between blocks: `Plain` and `Blocks` have the same kernels of the same text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.papers.gpreempt.graphs import MAX_WEIGHT, Graph, weights
from runlist.blocks import BLPExecutor, Page
from runlist.blocks.device import Device, Function, Memory
from runlist.blocks.source import resumable
from runlist.errors import UsageError

SOURCE = Path(__file__).parent / "kernels" / "graph.cu"
BLOCK = 128
ROUNDS = 4
"""Queued at once of what goes on until nothing changes."""

ONE = 1 << 48
"""A rank of 1."""

DAMPED = 85
"""Parts of 100 of a rank that go along the edges."""

Launch = tuple[Function, Sequence[Any]]
"""A kernel over all vertices, and its arguments."""


class Plain:
    """Kernels as they are, queued on the device's stream."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._module = device.compile(SOURCE.read_text(), SOURCE.name)

    def function(self, name: str) -> Function:
        return self._module.function(name)

    def run(self, launches: Sequence[Launch], vertices: int) -> None:
        """Returns when all have ended."""
        for function, arguments in launches:
            self.device.launch(function, (-(-vertices // BLOCK), 1, 1), (BLOCK, 1, 1), arguments)
        self.device.synchronize()


class Blocks:
    """The same, stopped between blocks by whoever has the page. `anew`: what was stopped begins from its start."""

    def __init__(self, device: Device, page: Path | Page | None = None, *, anew: bool = False) -> None:
        self.device = device
        self.executor = BLPExecutor(device, page, anew=anew)
        self._module = device.compile(resumable(SOURCE.read_text(), label=SOURCE.name), SOURCE.name)

    def function(self, name: str) -> Function:
        return self._module.function(name)

    def add(self, launches: Sequence[Launch], vertices: int) -> None:
        """The steps of the executor, instead of those that it had."""
        self.executor.clear()
        for function, arguments in launches:
            self.executor.add(function, -(-vertices // BLOCK), BLOCK, arguments)

    def run(self, launches: Sequence[Launch], vertices: int) -> None:
        """Returns when all have ended, through all stops."""
        self.add(launches, vertices)
        self.executor.run()


class Algorithm(ABC):
    """One of them, over one graph. `run` is a request, between `begin` and `answer`."""

    idempotent: ClassVar[bool] = True

    def __init__(self, graph: Graph, way: Plain | Blocks, seed: int = 1) -> None:
        self.graph = graph
        self.way = way
        self.device = way.device
        self.seed = seed
        self.offsets, self.targets = self.upload(graph.offsets), self.upload(graph.targets)
        self.changed = self.device.allocate(4 * ROUNDS)
        self.prepare()

    def upload(self, data: NDArray[Any]) -> Memory:
        memory = self.device.allocate(data.nbytes)
        self.device.write(memory, data.tobytes())
        return memory

    @abstractmethod
    def prepare(self) -> None:
        """Makes what else there is on the device."""

    def source(self, request: int) -> int:
        """A vertex that has edges, another for each request."""
        having = np.flatnonzero(np.diff(self.graph.offsets))
        return int(having[np.random.default_rng((self.seed, request)).integers(len(having))]) if len(having) else 0

    def until_unchanged(self, launches: Sequence[Launch]) -> bool:
        """Runs some rounds, each with a word of `changed` of its own. Whether the last one changed nothing."""
        self.device.write(self.changed, bytes(4 * ROUNDS))
        self.way.run(launches, self.graph.vertices)
        return not np.frombuffer(self.device.read(self.changed), np.int32)[len(launches) - 1]

    @abstractmethod
    def begin(self, request: int) -> None:
        """Writes the input of a request to the device."""

    @abstractmethod
    def run(self) -> None:
        """Computes; returns when that has ended."""

    @abstractmethod
    def answer(self) -> NDArray[Any]:
        """What came of it, one number a vertex."""

    @abstractmethod
    def right(self, request: int, answer: NDArray[Any]) -> bool:
        """Whether an answer is one, by what it has to fulfil."""


class Bfs(Algorithm):
    """Steps from a source to each vertex; -1: there is no way."""

    def prepare(self) -> None:
        self.level = self.device.allocate(4 * self.graph.vertices)
        self._kernel = self.way.function("bfs_level")

    def begin(self, request: int) -> None:
        level = np.full(self.graph.vertices, -1, np.int32)
        level[self.source(request)] = 0
        self.device.write(self.level, level.tobytes())

    def run(self) -> None:
        depth = 0
        while not self.until_unchanged(
            [
                (self._kernel, (self.offsets, self.targets, self.level, self.graph.vertices, depth + each,
                                self.changed.address + 4 * each))
                for each in range(ROUNDS)
            ]
        ):  # fmt: skip
            depth += ROUNDS

    def answer(self) -> NDArray[np.int32]:
        return np.frombuffer(self.device.read(self.level), np.int32)

    def right(self, request: int, answer: NDArray[Any]) -> bool:
        ones = np.ones(self.graph.edges, np.int64)
        distance = np.where(answer < 0, _FAR, answer.astype(np.int64))
        return bool((answer >= -1).all()) and _shortest(self.graph, ones, distance, self.source(request))


class Sssp(Algorithm):
    """The length of the shortest way from a source to each vertex; 2^32 - 1: there is none."""

    def prepare(self) -> None:
        if self.graph.vertices * MAX_WEIGHT >= 0xFFFFFFFF:
            raise UsageError("ways through so many vertices may be longer than 32 bits hold")
        self.lengths = weights(self.graph, self.seed)
        self.weights = self.upload(self.lengths)
        self.distance = self.device.allocate(4 * self.graph.vertices)
        self._kernel = self.way.function("sssp_relax")

    def begin(self, request: int) -> None:
        distance = np.full(self.graph.vertices, 0xFFFFFFFF, np.uint32)
        distance[self.source(request)] = 0
        self.device.write(self.distance, distance.tobytes())

    def run(self) -> None:
        arguments = (self.offsets, self.targets, self.weights, self.distance, self.graph.vertices)
        rounds = [(self._kernel, (*arguments, self.changed.address + 4 * each)) for each in range(ROUNDS)]
        while not self.until_unchanged(rounds):
            pass

    def answer(self) -> NDArray[np.uint32]:
        return np.frombuffer(self.device.read(self.distance), np.uint32)

    def right(self, request: int, answer: NDArray[Any]) -> bool:
        distance = np.where(answer == 0xFFFFFFFF, _FAR, answer.astype(np.int64))
        return _shortest(self.graph, self.lengths.astype(np.int64), distance, self.source(request))


class Components(Algorithm):
    """For each vertex the smallest one that it is connected with, whichever way the edges lead."""

    def prepare(self) -> None:
        self.label = self.device.allocate(4 * self.graph.vertices)
        self._kernel = self.way.function("cc_spread")

    def begin(self, request: int) -> None:
        del request
        self.device.write(self.label, np.arange(self.graph.vertices, dtype=np.int32).tobytes())

    def run(self) -> None:
        arguments = (self.offsets, self.targets, self.label, self.graph.vertices)
        rounds = [(self._kernel, (*arguments, self.changed.address + 4 * each)) for each in range(ROUNDS)]
        while not self.until_unchanged(rounds):
            pass

    def answer(self) -> NDArray[np.int32]:
        return np.frombuffer(self.device.read(self.label), np.int32)

    def right(self, request: int, answer: NDArray[Any]) -> bool:
        """No edge leads from one label to another, and each label is its own. Labels only ever spread along edges."""
        del request
        ends = answer[self.graph.sources], answer[self.graph.targets]
        inside = bool((answer >= 0).all() and (answer <= np.arange(len(answer))).all())
        return inside and bool((ends[0] == ends[1]).all() and (answer[answer] == answer).all())


class PageRank(Algorithm):
    """Ranks after some iterations; their sum is ONE, less what rounding takes."""

    idempotent = False
    iterations = 20

    def prepare(self) -> None:
        self.rank, self.sum = (self.device.allocate(8 * self.graph.vertices) for _ in range(2))
        self.lost = self.device.allocate(8 * self.iterations)
        self._push, self._take = (self.way.function(name) for name in ("pagerank_push", "pagerank_take"))

    def begin(self, request: int) -> None:
        """All but one have the same; another one for each request has twice that, so that answers differ."""
        vertices = self.graph.vertices
        rank = np.full(vertices, ONE // (vertices + 1), np.uint64)
        rank[self.source(request)] *= np.uint64(2)
        self.device.write(self.rank, rank.tobytes())
        self.device.write(self.sum, bytes(8 * vertices))
        self.device.write(self.lost, bytes(8 * self.iterations))

    def launches(self) -> list[Launch]:
        """All kernels of a request."""
        vertices = self.graph.vertices
        base = ONE * (100 - DAMPED) // 100 // vertices
        found: list[Launch] = []
        for each in range(self.iterations):
            lost = self.lost.address + 8 * each
            push = (self.offsets, self.targets, self.rank, self.sum, lost, vertices, DAMPED)
            found += [(self._push, push), (self._take, (self.rank, self.sum, lost, vertices, base))]
        return found

    def run(self) -> None:
        self.way.run(self.launches(), self.graph.vertices)

    def answer(self) -> NDArray[np.uint64]:
        return np.frombuffer(self.device.read(self.rank), np.uint64)

    def right(self, request: int, answer: NDArray[Any]) -> bool:
        """The very numbers that the same arithmetic gives here."""
        vertices = self.graph.vertices
        rank = np.full(vertices, ONE // (vertices + 1), np.uint64)
        rank[self.source(request)] *= np.uint64(2)
        degree = np.diff(self.graph.offsets).astype(np.uint64)
        sources, base = self.graph.sources, np.uint64(ONE * (100 - DAMPED) // 100 // vertices)
        for _ in range(self.iterations):
            given = rank * np.uint64(DAMPED) // np.uint64(100)
            lost = given[degree == 0].sum(dtype=np.uint64)
            each = given // np.maximum(degree, np.uint64(1))
            total = np.zeros(vertices, np.uint64)
            np.add.at(total, self.graph.targets, each[sources])
            rank = base + lost // np.uint64(vertices) + total
        return bool((rank == answer).all())


_FAR = 1 << 40


def _shortest(graph: Graph, lengths: NDArray[np.int64], distance: NDArray[np.int64], source: int) -> bool:
    """Whether these are the shortest distances: no edge leads nearer, and to every vertex but the source one leads that
    accounts for its distance.
    """
    over = distance[graph.sources] + lengths
    nearest = np.full(graph.vertices, _FAR, np.int64)
    np.minimum.at(nearest, graph.targets, np.minimum(over, _FAR))
    nearest[source] = 0
    return bool((nearest == distance).all())


ALGORITHMS: dict[str, type[Algorithm]] = {"bfs": Bfs, "cc": Components, "pagerank": PageRank, "sssp": Sssp}
