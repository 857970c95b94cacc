"""Mutants of C++, which are written by hand in tests/native/mutants.toml: `file`, the text to `find`, which is there
once, what to `replace` it with, and the `tests` (pytest's arguments) that belong to the place.

Each is built in the copy, where only what it touches is compiled again.
"""

from __future__ import annotations

import os
import random
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from mutation.run import Outcome, judged
from mutation.workplace import Workplace, say, side_by_side

LIST = "tests/native/mutants.toml"
_LIMIT_S = 600.0


def native_mutants(places: Sequence[Workplace], count: int, seed: int) -> list[Outcome]:
    """Try a sample of the list. Raises SystemExit where it cannot be read or built."""
    place = places[0]
    path = place.root / LIST
    if not path.is_file():
        raise SystemExit(f"there is no {LIST}")
    mutants = tomllib.loads(path.read_text())["mutant"]
    sample = random.Random(seed).sample(mutants, min(count, len(mutants)))  # noqa: S311
    for mutant in sample:
        if (found := (place.root / mutant["file"]).read_text().count(mutant["find"])) != 1:
            raise SystemExit(f"{LIST}: {mutant['file']} has {mutant['find']!r} {found} times, not once")
    for built in side_by_side(places, range(len(places)), lambda place, _: _configure(place)):
        if built:
            raise SystemExit(f"the sources do not build:\n{built}")
    tests = sorted({str(mutant["tests"]) for mutant in sample})
    broken = set()
    for words, code, output in side_by_side(places, tests, _tested):
        if code != 0:
            broken.add(words)
            say(f"these tests fail without any mutant:\n{output[-3000:]}")

    def attempt(place: Workplace, mutant: Mapping[str, object]) -> Outcome:
        outcome = _try(place, mutant)
        return replace(outcome, found=False, by="fails without it, too") if mutant["tests"] in broken else outcome

    outcomes = []
    for outcome in side_by_side(places, sample, attempt):
        outcomes.append(outcome)
        say(outcome)
    return outcomes


def _tested(place: Workplace, words: str) -> tuple[str, int | None, str]:
    return words, *place.pytest(shlex.split(words))


def _configure(place: Workplace) -> str:
    """Build for the first time; what the compiler said where that failed."""
    words = ["-S", ".", "-B", "build/native", "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={place.python}"]
    code, output = place.run(["cmake", *words], environment=_path(place))
    return _build(place) if code == 0 else output


def _try(place: Workplace, mutant: Mapping[str, object]) -> Outcome:
    file, find, other, tests = (str(mutant[name]) for name in ("file", "find", "replace", "tests"))
    name = f"{file}: {' '.join(find.split())}  ->  {' '.join(other.split())}"
    source = (place.root / file).read_bytes()
    (place.root / file).write_bytes(source.replace(find.encode(), other.encode()))
    try:
        if _build(place):
            return Outcome(name, str(PurePath(file).parent), found=False, by="it does not build: mend the list")
        code, output = place.pytest(["-x", *shlex.split(tests)], _LIMIT_S)
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
