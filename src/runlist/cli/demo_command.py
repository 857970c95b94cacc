"""`runlist demo`."""

from __future__ import annotations

from pathlib import Path

import typer

from runlist.cli.common import PICTURES, Device, Json, can_draw, draws, number, output_file


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(
        seconds: float = typer.Option(
            24.0, parser=number(2, 3600), metavar="S", help="How long to measure, over all configurations."
        ),
        torch: bool = typer.Option(False, "--torch", help="A transformer against matrix products, with PyTorch."),
        out: Path | None = typer.Option(
            None, "--out", help="Where the picture goes; default runlist-demo.png. Needs the extra plot."
        ),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Measure what Runlist does for a latency-critical program that shares a GPU with a batch program.

        Both run alone, then under the driver's default sharing, then under Runlist. Prints one table and draws the
        distributions.
        """
        from runlist.cli import ending
        from runlist.demo import DemoOptions, run

        if out is not None:
            output_file("--out", out, PICTURES)
            draws("--out")
        elif can_draw():
            out = Path("runlist-demo.png")
            output_file("--out", out, PICTURES)
        ending.in_order()
        raise typer.Exit(run(DemoOptions(seconds=seconds, torch=torch, out=out, device=device, json=json)))
