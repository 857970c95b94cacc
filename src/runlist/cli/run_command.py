"""`runlist run -- CMD…`."""

from __future__ import annotations

from typing import Annotated

import typer

from runlist.cli.common import Device, PolicyOption, PolicyOptions
from runlist.cli.policy_command import use_if_asked
from runlist.cli.settings import with_settings

Command = Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command and its arguments.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(context_settings={"ignore_unknown_options": True})
    @with_settings
    def run(
        command: Command,
        settings: dict[str, str],
        policy: PolicyOption = None,
        option: PolicyOptions = None,
        device: Device = None,
    ) -> None:
        """Run a command and manage its GPU work, and that of all that it starts.

        The command runs as it would alone, with the same input, output and signals; its exit code is ours. Starts a
        private daemon when none runs.
        """
        from runlist.cli.launch import run_command
        from runlist.client import Client

        with Client.open(start=True, device=device) as client:
            use_if_asked(client, policy, option)
            raise typer.Exit(run_command(client, command, settings, device))
