"""`runlist set PID key=value…`."""

from __future__ import annotations

import typer

from runlist.cli.common import Device, Json, Pid, key_values, show_tasks


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("set")
    def set_(
        pid: Pid,
        settings: list[str] = typer.Argument(metavar="key=value…", help="Settings to change: all of them, or none."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Change settings of a managed process, all of them or none.

        class=deadline|latency|normal|batch;
        weight=1..10000 (100 is usual);
        cap=PERCENT|"QUOTA PERIOD" (in µs)|max;
        burst=DURATION (what a cap lets it save up);
        deadline=BUDGET/PERIOD|none (such as 5ms/20ms; it sets the class, too);
        p99=DURATION|none (the tail latency that its requests are to keep);
        group=NAME|none (share as one with all of that name);
        memory=SIZE|max (such as 8G: what all processes of its `runlist run` may hold together on each GPU);
        timeslice=MICROSECONDS|auto;
        interleave=low|medium|high (root only).

        A DURATION is a number with its unit: 500us, 5ms, 1s.
        """
        from runlist.client import Client

        changes = key_values(settings)
        with Client.open(device=device) as client:
            tasks = client.set(pid, changes)
            show_tasks(tasks, client.notes, json)
