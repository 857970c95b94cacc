"""Mutants of C++, which are written by hand in tests/native/mutants.toml: `file`, the text to `find`, which is there
once, what to `replace` it with, and the `tests` (pytest's arguments) that belong to the place.

Each is built in the copy, where only what it touches is compiled again.
"""

from __future__ import annotations

import os
import random
import tomllib
from collections.abc import Mapping
from pathlib import PurePath

from mutation.run import Outcome, judged
from mutation.workplace import Workplace, say

LIST = "tests/native/mutants.toml"
_LIMIT_S = 600.0


def native_mutants(place: Workplace, count: int, seed: int) -> list[Outcome]:
    """Try a sample of the list. Raises SystemExit where it cannot be read or built."""
    path = place.root / LIST
    if not path.is_file():
        raise SystemExit(f"there is no {LIST}")
    mutants = tomllib.loads(path.read_text())["mutant"]
    sample = random.Random(seed).sample(mutants, min(count, len(mutants)))  # noqa: S311
    for mutant in sample:
        if (found := (place.root / mutant["file"]).read_text().count(mutant["find"])) != 1:
            raise SystemExit(f"{LIST}: {mutant['file']} has {mutant['find']!r} {found} times, not once")
    configured, output = place.run(
        ["cmake", "-S", ".", "-B", "build/native", "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={place.python}"],
        environment=_path(place),
    )
    if configured != 0 or (output := _build(place)):
        raise SystemExit(f"the sources do not build:\n{output}")
    code, output = place.pytest(sorted({str(test) for mutant in sample for test in mutant["tests"]}))
    if code != 0:
        raise SystemExit(f"the tests fail without any mutant:\n{output}")
    outcomes = []
    for mutant in sample:
        outcomes.append(_try(place, mutant))
        say(outcomes[-1])
    return outcomes


def _try(place: Workplace, mutant: Mapping[str, object]) -> Outcome:
    file, find, replace = (str(mutant[name]) for name in ("file", "find", "replace"))
    tests = mutant["tests"]
    assert isinstance(tests, list)
    name = f"{file}: {' '.join(find.split())}  ->  {' '.join(replace.split())}"
    source = (place.root / file).read_bytes()
    (place.root / file).write_bytes(source.replace(find.encode(), replace.encode()))
    try:
        if _build(place):
            return Outcome(name, str(PurePath(file).parent), found=False, by="it does not build: mend the list")
        code, output = place.pytest(["-x", *map(str, tests)], _LIMIT_S)
    finally:
        (place.root / file).write_bytes(source)
    return judged(name, str(PurePath(file).parent), code, output)


def _build(place: Workplace) -> str:
    """Build, and put the libraries where the package has them; what the compiler said where that failed."""
    for words in (["--build", "build/native"], ["--install", "build/native", "--prefix", str(place.site)]):
        code, output = place.run(["cmake", *words], environment=_path(place))
        if code != 0:
            return output
    return ""


def _path(place: Workplace) -> dict[str, str]:
    """The compiler of the copy's virtual environment, where the machine has none."""
    tools = place.python.parent
    compiler = {"CC": str(tools / "zig-cc"), "CXX": str(tools / "zig-c++")} if (tools / "zig-c++").exists() else {}
    return {"PATH": f"{tools}:{os.environ['PATH']}", **compiler}
