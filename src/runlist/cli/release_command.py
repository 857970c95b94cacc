"""`runlist release [PID…]`."""

from __future__ import annotations

import typer

from runlist.cli.common import Device, Json, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def release(
        pids: list[int] = typer.Argument(None, metavar="[PID…]", help="Also processes that no daemon manages."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Put everything back: all that the daemon manages for you, and the processes named.

        A process that is named is put back even when no daemon knows it: its channels are enabled, and slices that no
        driver gives by itself are set to the driver's default. This is the way out when daemon and keeper were both
        killed.
        """
        from runlist.cli.tables import show
        from runlist.client import Client
        from runlist.errors import NoTargetError
        from runlist.planes.registry import choose_plane

        try:
            with Client.open(device=device) as client:
                notes = client.release()
        except NoTargetError:
            notes = []
        for pid in pids or []:
            notes += choose_plane(device).rescue(pid)
        if json:
            print_json({"notes": notes})
        elif notes:
            show([], notes, json)
