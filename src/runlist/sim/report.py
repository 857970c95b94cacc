"""The tables of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runlist.sim.result import GpuResult, SimulationResult, TenantResult
from runlist.sim.simulation import Outcome

MAX_ROWS = 50
_WIDTH = 140
"""Of the tables where the output has none of its own."""


def show(outcome: Outcome) -> None:
    """Print all of it."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(report(outcome), highlight=False)


def report(outcome: Outcome) -> RenderableType:
    """A table of tenants, one of GPUs, and lines about the whole."""
    result = outcome.result
    lines = [*_summary(result), speed(outcome), *_remarks(result)]
    return Group(_tenants(result), _gpus(result.gpus), *map(Text, lines))


def speed(outcome: Outcome) -> str:
    """How fast the simulation went."""
    return (
        f"{outcome.result.events:,} events in {outcome.cpu_s:.2f} s of CPU time: "
        f"{outcome.events_per_cpu_s:,.0f} events per CPU second"
    )


def _latency(name: str) -> Callable[[TenantResult], str]:
    return lambda tenant: "" if tenant.latency_us is None else f"{getattr(tenant.latency_us, name):,.0f}"


def _missed(tenant: TenantResult) -> str:
    """Windows over the p99 target, or requests over the deadline."""
    if tenant.target_p99_us is not None:
        return f"{tenant.slo_missed} of {tenant.slo_windows} windows"
    if tenant.deadline_misses is not None:
        return f"{tenant.deadline_misses} of {tenant.requests} requests"
    return ""


_COLUMNS: tuple[tuple[str, Callable[[TenantResult], str], str | None], ...] = (
    ("GPU", lambda tenant: str(tenant.gpu), "0"),
    ("class", lambda tenant: tenant.task_class, None),
    ("weight", lambda tenant: str(tenant.weight), "100"),
    ("cap %", lambda tenant: "" if tenant.cap_percent is None else f"{tenant.cap_percent:g}", ""),
    ("share %", lambda tenant: f"{100 * tenant.share:.1f}", None),
    ("work %", lambda tenant: f"{100 * tenant.work_share:.1f}", None),
    ("per s", lambda tenant: f"{tenant.requests_per_s:,.1f}", None),
    ("relative", lambda tenant: f"{tenant.relative:.3f}", None),
    ("p50 µs", _latency("p50"), None),
    ("p99 µs", _latency("p99"), None),
    ("p99.9 µs", _latency("p999"), None),
    ("missed", _missed, ""),
)
"""Heading, cell, and the usual text: a column with nothing else is left out."""


def _tenants(result: SimulationResult) -> Table:
    options = "".join(f" {name}={value}" for name, value in sorted(result.options.items()))
    more = len(result.tenants) - MAX_ROWS
    table = Table(
        title=f"{result.trace} under {result.policy}{options}: {result.seconds:g} s, seed {result.seed}",
        caption=f"{more} more: --json has all" if more > 0 else None,
        box=SIMPLE_HEAD,
    )
    table.add_column("tenant", overflow="fold")
    shown = result.tenants[:MAX_ROWS]
    columns = [(title, [cell(tenant) for tenant in shown], usual) for title, cell, usual in _COLUMNS]
    kept = [(title, cells) for title, cells, usual in columns if usual is None or set(cells) - {usual}]
    for title, _ in kept:
        table.add_column(title, justify="left" if title == "class" else "right", no_wrap=True)
    for row, tenant in enumerate(shown):
        table.add_row(Text(tenant.name), *(cells[row] for _, cells in kept))
    return table


def _gpus(gpus: list[GpuResult]) -> Table:
    more = len(gpus) - MAX_ROWS
    table = Table(caption=f"{more} more: --json has all" if more > 0 else None, box=SIMPLE_HEAD)
    for heading in ("GPU", "tenants", "work %", "lost %", "idle %", "gaps %", "empty %", "switches", "decisions"):
        table.add_column(heading, justify="right", no_wrap=True)
    for gpu in gpus[:MAX_ROWS]:
        parts = (gpu.work, gpu.lost, gpu.idle, gpu.gaps, gpu.empty)
        shares = (f"{100 * part:.1f}" for part in parts)
        table.add_row(str(gpu.gpu), str(gpu.tenants), *shares, f"{gpu.switches:,}", f"{gpu.decisions:,}")
    return table


def _summary(result: SimulationResult) -> Iterable[str]:
    fairness = "nobody to compare" if result.fairness is None else f"{result.fairness:.4f}"
    controls = ", ".join(f"{count:,} {name}" for name, count in result.controls.items() if count) or "none"
    yield f"utilisation {100 * result.utilisation:.1f} %; fairness (Jain, by weight, of the backlogged): {fairness}"
    if result.slo_windows:
        yield f"service targets missed in {result.slo_missed} of {result.slo_windows} windows of {result.window_s:g} s"
    yield f"driver controls: {controls}"


def _remarks(result: SimulationResult) -> Iterable[str]:
    yield from (f"note: {note}" for note in result.notes)
    for refused in result.refused[:MAX_ROWS]:
        yield f"did not run: {refused.name}: {refused.reason}"
    if len(result.refused) > MAX_ROWS:
        yield f"did not run: {len(result.refused) - MAX_ROWS} more: --json has all"
