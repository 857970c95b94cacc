"""`runlist top`."""

from __future__ import annotations

import sys

import typer

from runlist.cli.common import Device, number

_PATIENCE_S = 2.0  # how long the screen may stand still when it is left


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def top(
        seconds: float = typer.Argument(
            1.0, parser=number(0.1, 86_400), metavar="[SECONDS]", help="How often to look."
        ),
        device: Device = None,
    ) -> None:
        """Show the managed tasks live, and change them: arrow keys select one.

        c next class, + and - weight, s suspend or resume, p sort by something else, q quit.
        Waits for a daemon when none runs.
        """
        from runlist.client import Client
        from runlist.errors import NotSupportedError
        from runlist.planes.registry import choose_plane
        from runlist.top.app import TopApp
        from runlist.top.feed import Feed

        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise NotSupportedError("top needs a terminal: take `runlist ps --watch`, or `runlist ps --json`")
        choose_plane(device)  # a wrong name is told here, not again and again
        TopApp(Feed(lambda: Client.open(device=device, patience_s=_PATIENCE_S)), seconds).run()
