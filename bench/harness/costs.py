"""What the library costs: programs with it and without, in turn, and the difference between their medians."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from bench.harness.compiled import readings, run
from bench.harness.figures import rounded
from bench.harness.library import WITHOUT

Result = TypeVar("Result")


def taking_turns(
    setups: Mapping[str, Mapping[str, str]], rounds: int, once: Callable[[Mapping[str, str]], Result]
) -> dict[str, list[Result]]:
    """The results of `once` in each environment, round by round; every other round is in the opposite order, so that
    what drifts is the same for all.
    """
    results: dict[str, list[Result]] = {name: [] for name in setups}
    for turn in range(rounds):
        for name in list(setups)[:: -1 if turn % 2 else 1]:
            results[name].append(once(setups[name]))
    return results


def turns(
    words: Sequence[object], rounds: int, setups: Mapping[str, Mapping[str, str]]
) -> dict[str, list[dict[str, list[float]]]]:
    """What a program reads in each environment, process by process."""
    said = [str(word) for word in words]
    return taking_turns(setups, rounds, lambda environment: readings(run(said, environment)))


class Costs:
    """Medians of each process, by environment and by what was measured; nanoseconds."""

    def __init__(self, runs: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> None:
        self.keys = list(dict.fromkeys(key for each in runs.values() for one in each for key in one))
        self.medians = {
            setup: {key: [median(one[key]) for one in each if key in one] for key in self.keys}
            for setup, each in runs.items()
        }

    def added(self, setup: str, key: str) -> float:
        """The median of the processes' medians, less the same without the library."""
        return median(self.medians[setup][key]) - median(self.medians[WITHOUT][key])

    def within(self, setup: str, key: str, base: str) -> float:
        """The median of what each process' median of `key` is above the same process' median of `base`."""
        of = self.medians[setup]
        return median(one - other for one, other in zip(of[key], of[base], strict=True))

    def details(self) -> dict[str, Any]:
        """Every process' median."""
        return {key: {setup: rounded(each[key], 1) for setup, each in self.medians.items()} for key in self.keys}
