"""`runlist ps`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from runlist.cli.common import Device, Json, connected, number

if TYPE_CHECKING:
    from runlist.views.structs import GpuView, TaskView

_CLEAR = "\x1b[H\x1b[J"
_WATCH_EVERY_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def ps(
        seconds: float | None = typer.Argument(
            None, parser=number(0.1, 86_400), metavar="[SECONDS]", help="With --watch: how often to look; default 2."
        ),
        watch: bool = typer.Option(False, "--watch", "-w", help="Look again and again, until Ctrl-C."),
        long: bool = typer.Option(False, "--long", "-l", help="Also user, memory, policy, rule and why."),
        gpus: bool = typer.Option(False, "--gpus", "-g", help="The GPUs that have or had tasks, instead of these."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """List the managed tasks: one line per process and GPU.

        Columns in which all tasks have the usual value are left out. SHARE is the part of the GPU in the last second,
        measured with SOURCE. FIXED counts how often a task had changed its own slice and was put back.

        A terminal that is too narrow has fewer columns, and the last line says which are left out. With --watch --json
        each look is one line.
        """
        from runlist.cli.tables import LONG_COLUMNS, USUAL_COLUMNS, show
        from runlist.errors import UsageError
        from runlist.views.columns import GPU_COLUMNS

        if seconds is not None and not watch:
            raise UsageError(f"{seconds:g} seconds of what? Write --watch {seconds:g}")
        if gpus and long:
            raise UsageError("--long is about tasks, and --gpus lists GPUs: leave one out")
        columns = GPU_COLUMNS if gpus else LONG_COLUMNS if long else USUAL_COLUMNS
        terminal = sys.stdout.isatty()
        while True:
            found, notes = _ask(device, gpus)
            print(_CLEAR if watch and terminal and not json else "", end="")
            show(found, notes, json, columns, "no GPUs" if gpus else "no tasks", on_a_line=watch)
            if not watch:
                return
            print("" if terminal or json else "\n", end="", flush=True)
            time.sleep(seconds or _WATCH_EVERY_S)


def _ask(device: str | None, gpus: bool) -> tuple[Sequence[TaskView | GpuView], list[str]]:
    """The tasks or GPUs, and the daemon's notes."""
    from runlist.errors import NoTargetError

    try:
        with connected(device) as client:
            return client.status().gpus if gpus else client.ps(), client.notes
    except NoTargetError:  # without a daemon, nothing is managed
        return [], []
