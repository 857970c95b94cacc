"""`runlist top`."""

from __future__ import annotations

import os
import signal
import sys

import typer

from runlist.cli.common import Device, number

_INSTEAD = "take `runlist ps --watch`, or `runlist ps --json`"
_NO_SCREEN = ("", "dumb", "unknown")
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

        c next class, + and - weight, k cap, m memory, s suspend or resume, u take the last change back, / filter,
        p sort by something else, ? help, q quit. Waits for a daemon when none runs.
        """
        from runlist.client import Client
        from runlist.errors import NotSupportedError
        from runlist.planes.registry import choose_plane
        from runlist.top.app import TopApp
        from runlist.top.feed import Feed

        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise NotSupportedError(f"top needs a terminal: {_INSTEAD}")
        if os.environ.get("TERM", "") in _NO_SCREEN:
            raise NotSupportedError(f"top cannot draw on this terminal (TERM={os.environ.get('TERM', '')}): {_INSTEAD}")
        choose_plane(device)  # a wrong name is told here, not again and again
        app = TopApp(Feed(lambda: Client.open(device=device, patience_s=_PATIENCE_S)), seconds)
        app.run()
        if app.ended_by is not None:  # the terminal is as it was
            signal.signal(app.ended_by, signal.SIG_DFL)
            os.kill(os.getpid(), app.ended_by)
        if app.return_code:  # Textual has said why
            raise typer.Exit(app.return_code)
