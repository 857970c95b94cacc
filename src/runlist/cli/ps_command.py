"""`runlist ps`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from runlist.cli.common import LONG_COLUMNS, USUAL_COLUMNS, Device, Json, show_tasks

if TYPE_CHECKING:
    from runlist.wire import TaskView

_CLEAR = "\x1b[H\x1b[J"
_WATCH_EVERY_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def ps(
        seconds: float | None = typer.Argument(None, min=0.1, help="With --watch: how often to look; default 2."),
        watch: bool = typer.Option(False, "--watch", "-w", help="Look again and again, until Ctrl-C."),
        long: bool = typer.Option(False, "--long", "-l", help="Also user, memory, policy, rule and why."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """List the managed tasks: one line per process and GPU.

        Columns in which all tasks have the usual value are left out. SHARE is the part of the GPU in the last second,
        measured with SOURCE. FIXED counts how often a task had changed its own slice and was put back.
        """
        from runlist.errors import UsageError

        if seconds is not None and not watch:
            raise UsageError(f"{seconds:g} seconds of what? Write --watch {seconds:g}")
        titles = LONG_COLUMNS if long else USUAL_COLUMNS
        terminal = sys.stdout.isatty()
        while True:
            tasks = _tasks(device)
            print(_CLEAR if watch and terminal else "", end="")
            show_tasks(tasks, [], json, titles)
            if not watch:
                return
            print("" if terminal or json else "\n", end="", flush=True)
            time.sleep(seconds or _WATCH_EVERY_S)


def _tasks(device: str | None) -> list[TaskView]:
    from runlist.client import Client
    from runlist.errors import NoTargetError

    try:
        with Client.open(device=device) as client:
            return client.ps()
    except NoTargetError:  # without a daemon, nothing is managed
        return []
