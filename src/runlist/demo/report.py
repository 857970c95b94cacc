"""The demo's table and its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from runlist.demo.measure import Plan
from runlist.demo.result import Result


@contextmanager
def progress(console: Console, plan: Plan) -> Iterator[Callable[[str], None]]:
    """Shows the progress of `plan`; call the result with the name of each window as it begins."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("measuring", total=plan.windows)
            begun = 0

            def show(name: str) -> None:
                nonlocal begun
                bar.update(task, description=f"measuring: {name}", completed=begun)
                begun += 1

            yield show
    else:
        window = 0

        def say(name: str) -> None:
            nonlocal window
            window += 1
            console.print(f"measuring {window}/{plan.windows}: {name}", highlight=False)

        yield say


def table(result: Result) -> Table:
    """The one table: a row a configuration."""
    made = Table(title=f"{result.workload}, on {result.gpu}", caption=_caption(result), caption_justify="left")
    made.add_column("", no_wrap=True)
    for heading in ("LC p50 µs", "p90 µs", "p99 µs", "max µs", "BE kernels/s", "of BE alone"):
        made.add_column(heading, justify="right")
    for row in result.rows:
        latency = row.latency_us
        figures = (f"{value:,.0f}" for value in (latency.p50, latency.p90, latency.p99, latency.max))
        made.add_row(row.configuration, *figures, f"{row.batch_per_second:,.1f}", f"{100 * row.batch_relative:.0f} %")
    return made


def _caption(result: Result) -> str:
    return (
        f"LC p99, Runlist / default sharing: {result.p99_to_default:.2f} (Runlist / alone: {result.p99_to_alone:.2f})\n"
        f"BE throughput, Runlist / default sharing: {result.batch_to_default:.2f}\n"
        f"attach to a running process: {result.attach_ms:.0f} ms; "
        f"results of both programs: {'right' if result.correct else 'WRONG'}"
    )
