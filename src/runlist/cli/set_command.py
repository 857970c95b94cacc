"""`runlist set PID key=value…`."""

from __future__ import annotations

import typer

from runlist.cli import complete
from runlist.cli.common import Device, Json, Pid, connected, key_values
from runlist.settings.help import command_help
from runlist.settings.table import ANY_TASK, parse_request


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("set", help=command_help())
    def set_(
        pid: Pid,
        settings: list[str] = typer.Argument(
            metavar="key=value…",
            help="Settings to change: all of them, or none.",
            autocompletion=complete.settings,
        ),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Change settings of a managed process. What it says of itself comes from their table."""
        from runlist.cli.tables import show

        changes = key_values(settings)
        parse_request(changes, ANY_TASK)
        with connected(device) as client:
            tasks = client.set(pid, changes)
            show(tasks, client.notes, json)
