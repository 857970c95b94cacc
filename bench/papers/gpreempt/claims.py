"""The claims, each with its figure, what it must reach and what was measured: holds, in part, not, or not measured.

Nothing is judged that was not measured on a real GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.results import FOLDER, load
from bench.papers.gpreempt import published
from bench.papers.gpreempt.analysis import NP, SLICING, Results, mean
from bench.papers.gpreempt.config import PUBLISHED

HOLDS, IN_PART, FAILS, UNMEASURED = "holds", "holds in part", "does not hold here", "not measured"

HINTED, PLAIN_RULE, OURS = "gpreempt-hint", "gpreempt", "runlist"
QUICK_ONES, OTHERS = ("A", "B", "C", "Z"), ("D", "E", "REAL")


@dataclass(frozen=True)
class Verdict:
    """A row: `parts` has, by workload or another name, what was measured there, and whether it is enough."""

    claim: str
    figure: str
    told: str
    target: str
    parts: tuple[tuple[str, float | None, bool | None], ...]
    unit: str

    @property
    def word(self) -> str:
        """The verdict. Of some parts only, it is at best in part."""
        judged = [met for _, _, met in self.parts if met is not None]
        if not judged:
            return UNMEASURED
        if not any(judged):
            return FAILS
        return HOLDS if all(judged) and len(judged) == len(self.parts) else IN_PART

    @property
    def measured(self) -> str:
        """In words."""
        known = [f"{name} {_number(value)}" for name, value, _ in self.parts if value is not None]
        return f"{', '.join(known)} {self.unit}".strip() if known else "–"


Value = Callable[[Results, str], float | None]
"""Of a workload, or of another part."""

Enough = Callable[[str, float], bool]


@dataclass(frozen=True)
class Claim:
    """What a verdict is made of. `told` is what the paper has, as it has it."""

    text: str
    figure: str
    told: str
    target: str
    parts: Sequence[str]
    value: Value
    enough: Enough
    unit: str = "µs"

    def judged(self, results: Results) -> Verdict:
        """By what was measured on a real GPU, if it was."""
        real = results if results.real else Results()
        found = [(name, self.value(real, name)) for name in self.parts]
        parts = tuple((name, one, None if one is None else self.enough(name, one)) for name, one in found)
        return Verdict(self.text, self.figure, self.told, self.target, parts, self.unit)


def verdicts(results: Results) -> list[Verdict]:
    """All rows."""
    return [claim.judged(results) for claim in _CLAIMS]


def _added(system: str, percent: float | None = None) -> Value:
    return lambda results, name: results.added_us(name, system, percent=percent)


def _ratio(system: str, over: str) -> Value:
    """The mean over all eight; None where one of them is missing."""

    def value(results: Results, _: str) -> float | None:
        found = [results.rate_ratio(name, system, over) for name in PUBLISHED]
        return None if any(one is None for one in found) else mean(one for one in found if one is not None)

    return value


def _wrong(results: Results, _: str) -> float | None:
    found = results.wrong()
    return None if found is None else float(found[0])


def kept_worst(beginning: str, folder: Path = FOLDER) -> float | None:
    """Of the newest run of the benchmark `blocks` on a GPU that is kept: the worst of its figures that begin so and
    have a target. None without one.
    """
    for kept in reversed(load(folder)):
        if kept.device == "nvidia" and (figures := kept.of("blocks")):
            return max((one.value for one in figures if one.name.startswith(beginning) and one.target is not None),
                       default=None)  # fmt: skip
    return None


def _kept(beginning: str, times: float = 1.0) -> Value:
    """It is measured by another command, so a run has nothing of it."""

    def value(_results: Results, _: str) -> float | None:
        found = kept_worst(beginning)
        return None if found is None else found * times

    return value


def _at_most(limit: float) -> Enough:
    return lambda _, value: value <= limit


def _at_least(limit: float) -> Enough:
    return lambda _, value: value >= limit


def _no_more_than_told(name: str, value: float) -> bool:
    return value <= published.ADDED_US[name]["GP"]


def _told(names: Sequence[str], system: str) -> str:
    return ", ".join(f"{name} {published.ADDED_US[name][system]:g}" for name in names) + " µs"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.3g}"


_BE_TOLD = f"{published.BE_RATIO['GP']:g}"
_COMPLEX_US = {"Y": published.ADDED_US["Y"]["GP"], "Z": 40.0}
_BENCH = "`python -m bench blocks`"
_EACH = "LC mean added over alone"


def _of_a_system(words: str, system: str, told: bool) -> list[Claim]:
    """The rows that are there for GPreempt's rule and for Runlist."""
    quick, other = (_told(names, "GP") if told else "–" for names in (QUICK_ONES, OTHERS))
    eight = ("mean",)
    return [
        Claim(f"{words}: {_EACH}", "6", quick, "≤ 40 µs in each", QUICK_ONES, _added(system), _at_most(40)),
        Claim(f"{words}: LC p99 added over alone", "6, tail", "–", "≤ 150 µs in each", QUICK_ONES,
              _added(system, 99), _at_most(150)),
        Claim(f"{words}: {_EACH}", "6", other, "no more than published", OTHERS, _added(system), _no_more_than_told),
        Claim(f"{words}: BE throughput over NP's, mean of the eight", "5", _BE_TOLD if told else "–", "≥ 0.92", eight,
              _ratio(system, NP), _at_least(0.92), ""),
        Claim(f"{words}: BE throughput over default time slicing's, mean of the eight", "5", "–", "≥ 0.95", eight,
              _ratio(system, SLICING), _at_least(0.95), ""),
    ]  # fmt: skip


_CLAIMS = (
    *_of_a_system("GPreempt's rule with hint", HINTED, told=True),
    Claim(f"GPreempt's rule without hint: {_EACH}", "6, 7b", _told(QUICK_ONES, "GP without hint"), "≤ 350 µs in each",
          QUICK_ONES, _added(PLAIN_RULE), _at_most(350)),
    *_of_a_system("Runlist", OURS, told=False),
    Claim(f"work that is not idempotent is preempted, too: {_EACH}, with hint", "4b, 6", _told(("Y", "Z"), "GP"),
          "Y ≤ 232 µs, Z ≤ 40 µs", ("Y", "Z"), _added(HINTED), lambda name, value: value <= _COMPLEX_US[name]),
    Claim("stop by block-level preemption, 50 µs blocks", _BENCH, "–", "≤ 120 µs", ("p99",), _kept("stop "),
          _at_most(120)),
    Claim("block-level preemption: overhead where nothing stops", _BENCH, "–", "≤ 3 %", ("overhead",),
          _kept("overhead unstopped", 100), _at_most(3), "%"),
    Claim("wrong results in all cells", "–", "–", "0", ("wrong",), _wrong, _at_most(0), ""),
)  # fmt: skip
