"""`runlist run -- CMD…`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from runlist.cli.common import Device, PolicyOption, PolicyOptions, connected, say
from runlist.cli.complete import beginning
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
        share: str = typer.Option(
            "time",
            metavar="time|sms",
            help="What it shares with others: the GPU's time, or its SMs at the same time, as a client of NVIDIA's MPS "
            "of --class latency (one at a time) or batch.",
            autocompletion=lambda incomplete: beginning(incomplete, ("time", "sms")),
        ),
        sms: str | None = typer.Option(
            None,
            "--sms",
            metavar="PERCENT|NUMBER",
            help="With --share sms: at most so many of the SMs, such as 40% or 54.",
            show_default=False,
        ),
        device: Device = None,
    ) -> None:
        """Run a command and manage its GPU work, and that of all that it starts.

        The command runs as it would alone, with the same input, output and signals; its exit code is ours. Starts a
        private daemon when none runs.
        """
        from runlist.cli.environment import defaults, made_one
        from runlist.cli.launch import run_command
        from runlist.cli.side_by_side import asked_sharing, beside
        from runlist.cli.tree import Tree, check_limit, needs_region, prepared
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
        sharing = asked_sharing(share, asked, sms)
        plane = choose_plane(device)
        with connected(device, start=True) as client:
            if chosen is not None:
                client.use_policy(*chosen)
            for line in made_one(os.environ, taken):
                say(line)
            with (
                beside(plane, sharing) as shared,
                prepared(plane, command, asked, with_library=preload, strict=strict) as tree,
            ):
                if tree.region is None:
                    asked.pop("memory", None)  # only with --no-strict, and that was said
                without = None if needs_region(asked, strict=strict) else shared.onto(Tree())
                raise typer.Exit(run_command(client, command, asked, plane, shared.onto(tree), without))
