"""The tables of a run, as rows of words. Without a run every figure of theirs is "not measured"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.papers.common.tables import NONE, Table, number
from bench.papers.orion.analysis import UNSCHEDULED, Results
from bench.papers.orion.experiments import EACH, EXPERIMENTS, SERVED, TOGETHER, Experiment
from bench.papers.orion.systems import MPS, SEQUENTIAL, SYSTEMS

NOT_MEASURED = "not measured"


def together(results: Results) -> Table:
    """Work of two programs at the same moment."""
    compared = [one for one in SYSTEMS.values() if one.name != SEQUENTIAL and not one.is_alone]
    heading = ("programs", "one after the other, ms", *(f"{one.title}: times as quick" for one in compared), "wrong")
    rows = [
        (
            one.title,
            _ms(results.asked_us(one, SEQUENTIAL)),
            *(_told(results.speedup(one, system.name)) for system in compared),
            _wrong(results, one),
        )
        for one in _of(TOGETHER)
    ]
    return Table("Two programs at the same moment", heading, rows)


def overhead(results: Results) -> Table:
    """What is left of a client's rate."""
    ruled = [one for one in SYSTEMS.values() if one.rule]
    bases = [SYSTEMS[name] for name in UNSCHEDULED.values()]
    heading = (
        "operations",
        "client",
        *(f"{one.title}, ms" for one in bases),
        *(f"{one.title}: part of the rate" for one in ruled),
        "wrong",
    )
    rows = [
        (
            one.title,
            "high priority" if task.urgent else "best effort",
            *(_ms(results.own_us(one, base.name, task.name)) for base in bases),
            *(_told(results.efficiency(one, system.name, task.name)) for system in ruled),
            _wrong(results, one),
        )
        for one in _of(EACH)
        for task in one.tasks
    ]
    return Table("What a rule costs who is alone", heading, rows)


def served(results: Results) -> Table:
    """Inference beside training."""
    heading = (
        "experiment", "configuration", "inference p99, ms", "p99 / alone", "p99 / alone under MPS",
        "training steps a second",
        "both together, of 2", "both together / time slicing", "training's operations deferred", "wrong",
    )  # fmt: skip
    rows = []
    for one in _of(SERVED):
        for name, system in SYSTEMS.items():
            deferred = results.deferred(one, name)
            rows.append((
                one.key, system.title,
                _ms(results.p99_us(one, name)), _told(results.p99_ratio(one, name)),
                _told(results.p99_ratio_under_mps(one, name)) if system.form == MPS else NONE,
                _told(results.rate(one, name, one.tasks[1].name)),
                *((NONE, NONE) if system.is_alone else
                  (_told(results.together(one, name)), _told(results.together_ratio(one, name)))),
                NONE if not system.rule else NOT_MEASURED if deferred is None else f"{deferred:.0%}",
                _wrong(results, one, [name]),
            ))  # fmt: skip
    return Table("Inference beside training", heading, rows)


def left_out(results: Results) -> Table:
    """What was not measured in this run, and why."""
    rows = [
        (experiment, system, why)
        for machine in results.machines
        for experiment, systems in machine.get("refused", {}).items()
        for system, why in systems.items()
    ]
    rows += [(cell.experiment, cell.system, note) for cell in results.cells for note in cell.notes]
    return Table("Left out, and what went wrong", ("experiment", "configuration", "why"), rows)


def all_of(results: Results) -> Iterator[Table]:
    """Those with figures."""
    yield together(results)
    yield overhead(results)
    yield served(results)


def _of(kind: str) -> list[Experiment]:
    return [one for one in EXPERIMENTS.values() if one.kind == kind]


def _told(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value)


def _ms(value_us: float | None) -> str:
    return _told(None if value_us is None else value_us / 1e3)


def _wrong(results: Results, experiment: Experiment, systems: Sequence[str] = tuple(SYSTEMS)) -> str:
    """Results that are not those of the program alone, in all of these configurations together."""
    if not any(results.whole(experiment, name) for name in systems):
        return NOT_MEASURED
    return str(sum(results.wrong(experiment, name) for name in systems))
