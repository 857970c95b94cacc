"""`runlist detach PID`."""

from __future__ import annotations

import typer

from runlist.cli.common import Device, Json, Pid, connected, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def detach(pid: Pid, device: Device = None, json: Json = False) -> None:
        """Put a process back as it was found, and stop managing it."""
        from runlist.cli.tables import show

        with connected(device) as client:
            notes = client.detach(pid)
        if json:
            print_json({"detached": pid, "notes": notes})
        elif notes:
            show([], notes, json)
