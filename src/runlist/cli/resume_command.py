"""`runlist resume PID`."""

from __future__ import annotations

import typer

from runlist.cli.common import Device, Json, Pid, connected


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def resume(pid: Pid, device: Device = None, json: Json = False) -> None:
        """Let a suspended process run on, where it was."""
        from runlist.cli.tables import show

        with connected(device) as client:
            show(client.resume(pid), client.notes, json)
