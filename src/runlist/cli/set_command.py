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

        class=latency|normal|batch; timeslice=MICROSECONDS|auto;
        interleave=low|medium|high (root only).
        """
        from runlist.client import Client

        changes = key_values(settings)
        with Client.open(device=device) as client:
            show_tasks(client.set(pid, changes), [], json)
