"""`runlist demo`."""

from __future__ import annotations

from pathlib import Path

import typer

from runlist.cli.common import Device, Json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(
        seconds: float = typer.Option(24.0, min=2.0, max=3600.0, help="How long to measure, over all configurations."),
        torch: bool = typer.Option(False, "--torch", help="A transformer against matrix products, with PyTorch."),
        out: Path = typer.Option(Path("runlist-demo.png"), "--out", help="Where the picture goes."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Measure what Runlist does for a latency-critical program that shares a GPU with a batch program.

        Both run alone, then under the driver's default sharing, then under Runlist. Prints one table and draws the
        distributions.
        """
        from runlist.demo import DemoOptions, run

        raise typer.Exit(run(DemoOptions(seconds=seconds, torch=torch, out=out, device=device, json=json)))
