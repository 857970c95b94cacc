"""`runlist run -- CMD…`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from runlist.cli.common import Device, PolicyOption, PolicyOptions, say
from runlist.cli.policy_command import asked_policy
from runlist.cli.settings import with_settings

Command = Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command and its arguments.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(context_settings={"allow_interspersed_args": False})
    @with_settings
    def run(
        command: Command,
        settings: dict[str, str],
        policy: PolicyOption = None,
        option: PolicyOptions = None,
        strict: bool = typer.Option(
            True, help="Do not start what cannot be limited from inside; --no-strict says so and goes on."
        ),
        preload: bool = typer.Option(
            True, help="Load librunlist.so into the command and all that it starts: memory limits need it."
        ),
        device: Device = None,
    ) -> None:
        """Run a command and manage its GPU work, and that of all that it starts.

        The command runs as it would alone, with the same input, output and signals; its exit code is ours. Starts a
        private daemon when none runs.
        """
        from runlist.cli.environment import defaults, made_one
        from runlist.cli.launch import run_command
        from runlist.cli.tree import check_limit, prepared
        from runlist.client import Client
        from runlist.errors import UsageError
        from runlist.planes.registry import choose_plane
        from runlist.settings.table import override, parse_request

        if not command[0]:
            raise UsageError("the command has no name: write it behind --")
        chosen = asked_policy(policy, option)
        taken = {key: value for key, value in defaults(os.environ).items() if key not in settings}
        asked = override(taken, settings)
        parse_request(asked)
        check_limit(asked, with_library=preload, strict=strict)
        plane = choose_plane(device)
        with Client.open(start=True, device=device) as client:
            if chosen is not None:
                client.use_policy(*chosen)
            for line in made_one(os.environ, taken):
                say(line)
            with prepared(plane, command, asked, with_library=preload, strict=strict) as tree:
                if tree.region is None:
                    asked.pop("memory", None)  # only with --no-strict, and that was said
                raise typer.Exit(run_command(client, command, asked, plane, tree))
