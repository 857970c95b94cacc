"""The tables: what DISB reports of each task, ours beside the published, and the verdicts. Rows of words."""

from __future__ import annotations

from bench.papers.common.driving import MODES, NEWEST, OPEN
from bench.papers.common.tables import NONE, Table, number
from bench.papers.gpreempt import published
from bench.papers.gpreempt.analysis import ALONE, Results
from bench.papers.gpreempt.claims import verdicts
from bench.papers.gpreempt.config import PUBLISHED
from bench.papers.gpreempt.systems import SYSTEMS

PHASES = ("prepareInput", "copyInput", "infer", "copyOutput")


def verdict_table(results: Results) -> Table:
    """A row a claim."""
    heading = (
        "claim", "figure", f"published ({published.GPU}, {published.STATISTIC})", "target", "measured", "verdict"
    )  # fmt: skip
    rows = [(one.claim, one.figure, one.told, one.target, one.measured, one.word) for one in verdicts(results)]
    return Table("Verdicts", heading, rows)


def comparison(results: Results) -> Table:
    """The published figures beside ours."""
    heading = (
        "workload", "system", "published mean, ms", "mean, ms", "mean in an open queue, ms", "p99, ms", "p99.9, ms",
        "published added, µs", "added, µs", "p99 added, µs", "BE a second", "BE / NP's", "BE / time slicing's",
    )  # fmt: skip
    rows = []
    for workload in results.workloads:
        for system in results.systems:
            if not results.whole(workload, system):
                continue
            column = SYSTEMS[system].published if system in SYSTEMS else ""
            told = published.LC_MS.get(workload, {}).get(column)
            told_added = published.ADDED_US.get(workload, {}).get(column)
            latencies = [
                results.latency_us(workload, system, mode, percent)
                for mode, percent in ((NEWEST, None), (OPEN, None), (OPEN, 99.0), (OPEN, 99.9))
            ]
            alone = system == ALONE
            rows.append((
                workload, results.title(system), number(told),
                *(number(None if one is None else one / 1e3) for one in latencies),
                number(told_added),
                *(number(None if alone else results.added_us(workload, system, mode, percent))
                  for mode, percent in ((NEWEST, None), (OPEN, 99.0))),
                number(results.best_effort_rate(workload, system)),
                *(number(results.rate_ratio(workload, system, over)) for over in ("one-process", "slicing")),
            ))  # fmt: skip
    return Table("Ours and the published ones", heading, rows)


def disb(results: Results) -> Table:
    """What DISB reports of each task: throughput, averages of the phases, latency, alone, and what is added to that;
    then percentiles.
    """
    heading = (
        "workload", "system", "queue", "task", "a second", *(f"{name}, µs" for name in PHASES), "mean, µs",
        "alone, µs", "increase", "p50, µs", "p99, µs", "p99.9, µs", "dropped", "not served", "wrong", "notes",
    )  # fmt: skip
    rows = []
    for cell in results.cells:
        if not cell.modes:
            rows.append((cell.workload, cell.title, *[NONE] * (len(heading) - 3), cell.note))
        for mode in MODES:
            for name, task in cell.modes.get(mode, {}).items():
                alone = results.alone.get(task.program)
                mean = task.mean()
                increase = f"{mean / alone.mean_us - 1:+.1%}" if alone and mean == mean else NONE
                notes = [task.died] if task.died else []
                notes += ["not right at the end"] if cell.correct is False else []
                rows.append((
                    cell.workload, cell.title, mode, name, number(task.rate),
                    *(number(task.phases_us.get(phase)) for phase in PHASES), number(mean),
                    number(alone.mean_us if alone else None), increase,
                    *(number(task.at(percent)) for percent in (50, 99, 99.9)),
                    str(task.dropped), str(len(task.late_us)), str(task.wrong), "; ".join(notes),
                ))  # fmt: skip
    return Table("Each task, as DISB reports it, and percentiles", heading, rows)


def left_out(results: Results) -> Table:
    """What was not measured, and why: a row for all that were left out of the same workloads for the same reason."""
    refused = results.machine.get("refused", {})
    found = [(workload, system, why) for workload, systems in refused.items() for system, why in systems.items()]
    found += [(cell.workload, cell.system, note) for cell in results.cells for note in cell.notes]
    missing = [name for name in PUBLISHED if name not in results.workloads and name not in refused]
    found += [(name, "all", "not asked for in this run") for name in missing]
    workloads: dict[tuple[str, str], list[str]] = {}
    for workload, system, why in found:
        workloads.setdefault((system, why), []).append(workload)
    systems: dict[tuple[str, str], list[str]] = {}
    for (system, why), names in workloads.items():
        systems.setdefault((", ".join(names), why), []).append(system)
    rows = [(names, ", ".join(members), why) for (names, why), members in systems.items()]
    return Table("Left out, and why", ("workload", "system", "why"), rows)
