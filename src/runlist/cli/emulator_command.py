"""`runlist emulator`."""

from __future__ import annotations

from pathlib import Path

import typer

from runlist.cli.common import whole


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(context_settings={"allow_interspersed_args": False})
    def emulator(
        command: list[str] = typer.Argument(
            None, metavar="[-- CMD…]", help="Run this on the emulated GPU, and end with it."
        ),
        gpus: int = typer.Option(1, "--gpus", parser=whole(1, 16), metavar="N", help="How many GPUs to emulate."),
        directory: Path | None = typer.Option(None, "--dir", help="Where its sockets go; default a new folder."),
    ) -> None:
        """Run an emulated GPU, for machines without one.

        With a command, the command (a shell, say) sees the emulated GPU in place of a real one. Without, it runs until
        a signal and prints the environment that programs need to see it.
        """
        from runlist.cli.emulate import run_emulator
        from runlist.errors import UsageError

        if command and not command[0]:
            raise UsageError("the command has no name: write it behind --")
        raise typer.Exit(run_emulator(command or [], gpus, directory))
