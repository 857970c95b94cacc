"""`runlist suspend PID`."""

from __future__ import annotations

import typer

from runlist.cli.common import Device, Json, Pid, connected


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def suspend(pid: Pid, device: Device = None, json: Json = False) -> None:
        """Take a process off its GPUs until it is resumed. It notices nothing but the time that passes."""
        from runlist.cli.tables import show

        with connected(device) as client:
            show(client.suspend(pid), client.notes, json)
