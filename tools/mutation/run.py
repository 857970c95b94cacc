"""Trying a mutant, and counting."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from mutation.places import Mutant
from mutation.tests import Tests
from mutation.workplace import Workplace, side_by_side

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
_START_S = 30.0
_NOTHING_RAN = 5


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the test that found it, or that nothing ended in time."""

    mutant: str
    folder: str
    found: bool
    by: str

    def __str__(self) -> str:
        return f"{'found' if self.found else 'SURVIVED'}  {self.mutant}  ({self.by})"


def try_one(place: Workplace, mutant: Mutant, tests: Tests, limit_s: float) -> Outcome:
    """Run the tests that reach a mutant's lines, of `limit_s` seconds together, until one fails."""
    chosen: list[str] = []
    seconds = 0.0
    for test in tests.of(mutant):
        seconds += tests.seconds[test]
        if seconds > limit_s and chosen:
            break
        chosen.append(test)
    folder = str(PurePath(mutant.path).parent)
    if not chosen:
        return Outcome(str(mutant), folder, found=False, by="no test reaches it")
    source = (place.root / mutant.path).read_bytes()
    place.write(mutant.path, mutant.apply(source))
    try:
        (place.folder / "chosen").write_text("\n".join(chosen))
        files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
        environment = {"MUTATION_TESTS": str(place.folder / "chosen")}
        code, output = place.pytest(["-x", *files], _START_S + 3 * seconds, environment)
    finally:
        place.write(mutant.path, source)
    return judged(str(mutant), folder, code, output, len(chosen))


def judged(mutant: str, folder: str, code: int | None, output: str, tests: int | None = None) -> Outcome:
    """What the exit code and the output of pytest say."""
    if code is None:
        return Outcome(mutant, folder, found=True, by="the tests do not end")
    if code == 0:
        return Outcome(mutant, folder, found=False, by="its tests" if tests is None else f"{tests} tests")
    if code == _NOTHING_RAN and "no tests ran" in output:  # else a test became another program, which ended so
        return Outcome(mutant, folder, found=False, by="none of its tests is there")
    failed = _FAILED.search(output)
    return Outcome(mutant, folder, found=True, by=failed[1] if failed else f"exit code {code}")


def confirmed(places: Sequence[Workplace], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes, less those that rest on a test which fails without the mutant, too."""
    outcomes = list(outcomes)
    files: dict[str, set[str]] = defaultdict(set)
    for outcome in outcomes:
        if "::" in outcome.by:
            files[outcome.by.partition("::")[0]].add(outcome.by)

    def failing_of(place: Workplace, file: str) -> set[str]:
        (place.folder / "chosen").write_text("\n".join(sorted(files[file])))
        _, output = place.pytest([file], environment={"MUTATION_TESTS": str(place.folder / "chosen")})
        return set(_FAILED.findall(output))

    failing = set[str]().union(*side_by_side(places, files, failing_of))
    return [
        replace(outcome, found=False, by=f"{outcome.by}, which fails without it, too")
        if outcome.by in failing
        else outcome
        for outcome in outcomes
    ]


def score(outcomes: Iterable[Outcome]) -> str:
    """A table: found of all by folder, and the survivors."""
    found: dict[str, Counter[bool]] = defaultdict(Counter)
    survivors = []
    for outcome in outcomes:
        found[outcome.folder][outcome.found] += 1
        found["all"][outcome.found] += 1
        if not outcome.found:
            survivors.append(str(outcome))
    lines = [
        f"{folder:44} {count[True]:4} of {count.total():4}  {count[True] / count.total():.2f}"
        for folder, count in sorted(found.items(), key=lambda one: (one[0] == "all", one[0]))
    ]
    return "\n".join([*survivors, "", *lines])
