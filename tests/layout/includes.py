"""Who includes whom in a C++ folder, as the compiler finds it: beside the file first, then from the folders given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SOURCES = {".cpp", ".hpp", ".h", ".inc"}
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

Graph = Mapping[Path, set[Path]]


def includes(folder: Path, *roots: Path) -> dict[Path, set[Path]]:
    """Every source below `folder` with those of them that it includes. `roots` are the build's include folders."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)
    known = set(files)
    graph: dict[Path, set[Path]] = {}
    for file in files:
        named = _INCLUDE.findall(file.read_text())
        found = (_find(name, (file.parent, *roots)) for name in named)
        graph[file] = {path for path in found if path in known}
    return graph


def _find(name: str, folders: Iterable[Path]) -> Path | None:
    return next((path for folder in folders if (path := (folder / name).resolve()).is_file()), None)


def rooms(graph: Graph, folder: Path) -> dict[str, set[str]]:
    """The same between the folders directly below `folder`; a file in `folder` itself is a room of its own."""
    arrows: dict[str, set[str]] = {}
    for file, targets in graph.items():
        arrows.setdefault(_room(file, folder), set()).update(_room(target, folder) for target in targets)
    return {room: targets - {room} for room, targets in arrows.items()}


def _room(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).parts
    return parts[0] if len(parts) > 1 else file.stem


def units(graph: Graph) -> dict[Path, set[Path]]:
    """The same between units: a source and the header of its name count as one, so that a source which includes the
    header of another, whose source includes its own, shows as the circle that it is.
    """
    arrows: dict[Path, set[Path]] = {}
    for file, targets in graph.items():
        arrows.setdefault(file.with_suffix(""), set()).update(target.with_suffix("") for target in targets)
    return {unit: targets - {unit} for unit, targets in arrows.items()}


def circles(graph: Mapping[Path, set[Path]]) -> list[set[Path]]:
    """Sets of nodes that reach one another."""
    reach = {node: set(_reached(graph, node)) for node in graph}
    found: list[set[Path]] = []
    for node in graph:
        circle = {other for other in reach[node] if node in reach.get(other, ())}
        if circle and circle not in found:
            found.append(circle)
    return found


def _reached(graph: Mapping[Path, set[Path]], start: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting.extend(graph.get(node, ()))
