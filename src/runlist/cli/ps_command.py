"""`runlist ps`."""

from __future__ import annotations

import typer

from runlist.cli.common import Device, Json, show_tasks


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def ps(device: Device = None, json: Json = False) -> None:
        """List the managed tasks: one line per process and GPU.

        FIXED counts how often a task had changed its own slice and was put back.
        """
        from runlist.client import Client
        from runlist.errors import NoTargetError

        try:
            with Client.open(device=device) as client:
                tasks = client.ps()
        except NoTargetError:  # without a daemon, nothing is managed
            tasks = []
        show_tasks(tasks, [], json)
