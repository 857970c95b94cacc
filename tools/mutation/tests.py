"""Which tests reach a line, and how long each of them takes: recorded once, and again for test files that changed or
that reach a source which did.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mutation.places import Mutant
from mutation.workplace import Workplace, say, side_by_side

_AT_ONCE = 8
"""So many test files are recorded in one run: what was recorded is kept when a later run fails."""

_CONFIG = """[run]
parallel = true
sigterm = true
core = ctrace
data_file = {data}
include =
    {source}
context = ${{MUTATION_TEST-}}
"""


class Tests:
    """Seconds by test, and tests by line."""

    def __init__(self, root: Path, seconds: dict[str, float], lines: dict[str, dict[int, set[str]]]) -> None:
        self.seconds = seconds
        self._lines = lines
        self._modules = {path: ast.parse((root / path).read_bytes()) for path in lines}

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that reach any of these lines, the quickest first; else those of the file. What runs at import is
        reached by few tests and used by many: those of the file, and of files that import it.
        """
        if mutant.at_import:
            return list(dict.fromkeys([*self._of_file(mutant.path), *self._of_importers(mutant.path)]))
        lines = self._lines.get(mutant.path, {})
        found = set[str]().union(*(lines.get(line, set()) for line in range(mutant.line, mutant.last_line + 1)))
        return self._quickest(found or set().union(*lines.values()))

    def _of_file(self, path: str) -> list[str]:
        """Those that reach the inside of a function."""
        lines = self._lines.get(path, {})
        if path not in self._modules:
            return []
        inside = {
            line
            for node in ast.walk(self._modules[path])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        }
        return self._quickest(set().union(*(tests for line, tests in lines.items() if line in inside)))

    def _of_importers(self, path: str) -> list[str]:
        name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found = [other for other, module in self._modules.items() if other != path and name in _imported(module)]
        return self._quickest({test for other in found for test in self._of_file(other)})

    def _quickest(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))


def _imported(module: ast.Module) -> set[str]:
    """The names of modules that a module imports, and more."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{one.name}" for one in node.names)])
    return names


def tests_of(places: Sequence[Workplace], tests: Iterable[str], sources: Sequence[str], kept: Path) -> Tests:
    """Record what is not in `kept`, and keep it there."""
    place = places[0]
    files = [file for one in tests for file in _python(place.root, [one], "test_*.py")]
    now = {source: _digest(place.root, [source]) for source in _python(place.root, sources, "*.py")}
    stamps = {file: _digest(place.root, [file]) for file in files}
    record = json.loads(kept.read_text()) if kept.is_file() else {}
    record = {"sources": now, "files": still_true(record, now, stamps)}
    missing = [file for file in files if file not in record["files"]]
    kept.parent.mkdir(parents=True, exist_ok=True)
    at_once = max(1, min(_AT_ONCE, len(missing) // (2 * len(places))))
    batches = [missing[start : start + at_once] for start in range(0, len(missing), at_once)]
    for recorded in side_by_side(places, batches, lambda place, batch: _record(place, batch, sources)):
        for file, one in recorded.items():
            record["files"][file] = {"stamp": stamps[file], **one}
        say(f"recorded which lines the tests reach: {len(record['files'])} of {len(files)} files")
        kept.write_text(json.dumps(record))
    return _joined(place.root, record["files"].values())


def still_true(record: dict[str, Any], now: dict[str, str], stamps: dict[str, str]) -> dict[str, Any]:
    """The test files of a record that need not be recorded again, where sources and tests have these digests. What
    reaches a source that was not looked at then, nobody knows.
    """
    before = record.get("sources", {})
    if now.keys() - before.keys():
        return {}
    changed = {source for source in before if now.get(source) != before[source]}
    return {
        file: one
        for file, one in record.get("files", {}).items()
        if stamps.get(file) == one["stamp"] and not changed.intersection(one["lines"])
    }


def _python(root: Path, places: Iterable[str], pattern: str) -> list[str]:
    """The files below some folders, or single files."""
    found = {path for place in places for path in (root / place).rglob(pattern)}
    single = {root / place for place in places if place.endswith(".py")}
    return sorted(str(path.relative_to(root)) for path in found | single)


def _joined(root: Path, files: Iterable[dict[str, dict[str, object]]]) -> Tests:
    seconds: dict[str, float] = {}
    lines: dict[str, dict[int, set[str]]] = {}
    for one in files:
        seconds.update(one["seconds"])  # type: ignore[arg-type]
        for source, by_test in one["lines"].items():
            for test, numbers in by_test.items():  # type: ignore[attr-defined]
                for number in numbers:
                    lines.setdefault(source, {}).setdefault(number, set()).add(test)
    return Tests(root, seconds, lines)


def _record(place: Workplace, files: list[str], sources: Sequence[str]) -> dict[str, dict[str, object]]:
    folder = place.empty("record")
    folder.chmod(0o777)  # for processes of other users
    measured = "\n    ".join(
        str(place.root / (source if source.endswith(".py") else f"{source}/*")) for source in sources
    )
    (folder / "config").write_text(_CONFIG.format(data=folder / "data", source=measured))
    environment = {"MUTATION_RECORD": str(folder)}
    code, output = place.pytest(["--timeout", "300", *files], environment=environment)
    if code not in (0, 1) or not (folder / "tests").is_file():
        say(f"these test files are left out, for they do not run: {' '.join(files)}\n{output[-2000:]}")
        return {}
    lines = [json.loads(line) for line in (folder / "tests").read_text().splitlines()]
    if broken := [line["test"] for line in lines if not line["passed"]]:
        say("these tests failed or were skipped, and are left out:", "\n  ".join(["", *broken]))
    found: dict[str, dict[str, dict[str, object]]] = {file: {"seconds": {}, "lines": {}} for file in files}
    for line in lines:
        if line["passed"]:
            found[line["test"].partition("::")[0]]["seconds"][line["test"]] = line["s"]
    for data in folder.glob("data.*"):
        _read(place, data, found)
    return found  # type: ignore[return-value]


def _read(place: Workplace, path: Path, found: dict[str, dict[str, dict[str, object]]]) -> None:
    from coverage import CoverageData
    from coverage.exceptions import DataError

    data = CoverageData(str(path))
    try:
        data.read()
    except DataError:  # its process was killed while it wrote
        return
    for measured in data.measured_files():
        source = str(Path(measured).relative_to(place.root))
        for line, contexts in data.contexts_by_lineno(measured).items():
            for context in contexts:
                test = context.rpartition("|")[2]
                one = found.get(test.partition("::")[0])
                if one is not None and test in one["seconds"]:
                    by_test: dict[str, list[int]] = one["lines"].setdefault(source, {})  # type: ignore[assignment]
                    by_test.setdefault(test, []).append(line)


def _digest(root: Path, files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.encode() + b"\0" + (root / file).read_bytes())
    return digest.hexdigest()
