"""Graphs as compressed sparse rows: from Matrix Market files, or drawn at random (R-MAT)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runlist.errors import RunlistError, UsageError

_FIELDS = {"real": 1, "integer": 1, "complex": 2, "pattern": 0}
_SYMMETRIES = {"general", "symmetric", "skew-symmetric", "hermitian"}
_MOST = (1 << 31) - 1
MAX_WEIGHT = 255
QUADRANTS = (0.57, 0.19, 0.19, 0.05)
"""Of R-MAT, as in Graph500."""


@dataclass(frozen=True)
class Graph:
    """The edges from vertex v are `targets[offsets[v]:offsets[v + 1]]`; int32 all. No edge is there twice, none
    leads to where it comes from.
    """

    offsets: NDArray[np.int32]
    targets: NDArray[np.int32]

    @property
    def vertices(self) -> int:
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        return len(self.targets)

    @property
    def sources(self) -> NDArray[np.int32]:
        """Where each edge comes from."""
        return np.repeat(np.arange(self.vertices, dtype=np.int32), np.diff(self.offsets))

    def both_ways(self) -> Graph:
        """With every edge in both directions."""
        return _made(
            self.vertices,
            np.concatenate([self.sources, self.targets]).astype(np.int64),
            np.concatenate([self.targets, self.sources]).astype(np.int64),
        )


def weights(graph: Graph, seed: int) -> NDArray[np.uint32]:
    """A weight from 1 to MAX_WEIGHT for each edge."""
    return np.random.default_rng(seed).integers(1, MAX_WEIGHT + 1, graph.edges, dtype=np.uint32)


def rmat(scale: int, edge_factor: int, seed: int) -> Graph:
    """2^scale vertices, and `edge_factor` drawn edges for each, less those that were drawn twice. The vertices are
    shuffled, so that a number says nothing of how many edges one has.
    """
    if not 1 <= scale <= 26 or not 1 <= edge_factor <= 256 or (edge_factor << scale) > _MOST:
        raise UsageError("an R-MAT graph has a scale from 1 to 26 and 1 to 256 edges a vertex, below 2^31 in all")
    chance = np.random.default_rng(seed)
    count = edge_factor << scale
    source, target = np.zeros(count, np.int64), np.zeros(count, np.int64)
    a, b, c, _ = QUADRANTS
    for _bit in range(scale):
        drawn = chance.random(count)
        source = 2 * source + (drawn >= a + b)
        target = 2 * target + (((drawn >= a) & (drawn < a + b)) | (drawn >= a + b + c))
    names = chance.permutation(1 << scale)
    return _made(1 << scale, names[source], names[target])


def read(path: Path) -> Graph:
    """The graph of a Matrix Market file in coordinates: an entry in row i, column j is an edge from i to j, and where
    the file says that it is symmetric, from j to i. Values are not looked at, but have to be numbers.

    Raises RunlistError with the line of what is wrong.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file.read().split(b"\n"))
    except OSError as error:
        raise RunlistError(f"{path}: {error.strerror}") from error


def _read(path: Path, lines: list[bytes]) -> Graph:
    def wrong(number: int, what: str) -> RunlistError:
        return RunlistError(f"{path}, line {number}: {what}")

    words = lines[0].decode(errors="replace").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise wrong(1, "no Matrix Market file, which begins with %%MatrixMarket matrix coordinate …")
    kind, field, symmetry = words[2:]
    if kind != "coordinate":
        raise wrong(1, f"{kind} is not read: a graph has coordinates")
    if field not in _FIELDS:
        raise wrong(1, f"{field} is none of {', '.join(_FIELDS)}")
    if symmetry not in _SYMMETRIES:
        raise wrong(1, f"{symmetry} is none of {', '.join(sorted(_SYMMETRIES))}")
    rest = ((number, line) for number, line in enumerate(lines[1:], 2) if line.strip() and line[:1] != b"%")
    head = next(rest, None)
    if head is None:
        raise wrong(len(lines), "the file ends before its sizes")
    try:
        rows, columns, count = map(int, head[1].split())
    except ValueError:
        raise wrong(head[0], "no three sizes: rows, columns, entries") from None
    if rows != columns:
        raise wrong(head[0], f"{rows} rows and {columns} columns are no graph: they must be equal")
    if not 0 < rows < _MOST or not 0 <= count < _MOST // 2:
        raise wrong(head[0], "sizes below 1, or above what 31 bits hold")
    if count > len(lines):
        raise wrong(len(lines), f"the file ends after fewer than {count} entries")
    source, target = np.empty(count, np.int64), np.empty(count, np.int64)
    found, more, number = 0, 2 + _FIELDS[field], head[0]
    for number, line in rest:
        parts = line.split()
        if found == count:
            raise wrong(number, f"more than the {count} entries that it has by line {head[0]}")
        if len(parts) != more:
            raise wrong(number, f"{len(parts)} numbers, not {more}")
        try:
            i, j = int(parts[0]), int(parts[1])
            for each in parts[2:]:
                float(each)
        except ValueError:
            raise wrong(number, "no numbers") from None
        if not (1 <= i <= rows and 1 <= j <= rows):
            raise wrong(number, f"row {i}, column {j} is not within 1 to {rows}")
        source[found], target[found] = i - 1, j - 1
        found += 1
    if found < count:
        raise wrong(number, f"the file ends after {found} of {count} entries")
    if symmetry != "general":
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    return _made(rows, source, target)


def _made(vertices: int, source: NDArray[np.int64], target: NDArray[np.int64]) -> Graph:
    keys = np.unique(source * vertices + target)
    source, target = keys // vertices, keys % vertices
    kept = source != target
    offsets = np.zeros(vertices + 1, np.int64)
    np.cumsum(np.bincount(source[kept], minlength=vertices), out=offsets[1:])
    return Graph(offsets.astype(np.int32), target[kept].astype(np.int32))
