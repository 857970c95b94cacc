"""`runlist attach PID`."""

from __future__ import annotations

import typer

from runlist.cli.common import Device, Json, Pid, PolicyOption, PolicyOptions
from runlist.cli.policy_command import use_if_asked
from runlist.cli.settings import with_settings


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    @with_settings
    def attach(
        pid: Pid,
        settings: dict[str, str],
        wait: bool = typer.Option(False, "--wait", help="Also when it has no GPU context yet: manage it once it has."),
        policy: PolicyOption = None,
        option: PolicyOptions = None,
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Manage a running process and its descendants. It needs no preparation and does not notice.

        Starts a private daemon when none runs. Attaching again changes what is named.
        """
        from runlist.cli.tables import show
        from runlist.client import Client

        with Client.open(start=True, device=device) as client:
            use_if_asked(client, policy, option)
            tasks = client.attach(pid, None, wait=wait, settings=settings)
            show(tasks, client.notes, json)
