"""`runlist trace`."""

from __future__ import annotations

from pathlib import Path

import typer

from runlist.cli.common import Device, Json, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def trace(
        out: Path = typer.Option(..., "--out", help="The file to write: NAME.pftrace."),
        seconds: float | None = typer.Option(None, "--seconds", min=0.001, help="How long; default until Ctrl-C."),
        gpu: str | None = typer.Option(None, "--gpu", metavar="INDEX|UUID", help="Only this GPU; default all."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Record who holds the GPU, turn by turn, from the GPU's own log of context switches.

        The file opens in https://ui.perfetto.dev: a group of tracks for each GPU, in it a track for each process, on it
        a slice for each of its turns. Needs no daemon. Without root, all processes of other users share a track.

        A process that has the GPU to itself all along is in no log; NVML's samples tell which one it is.
        """
        import dataclasses
        import signal

        from runlist.planes.registry import choose_plane
        from runlist.trace.recorder import record

        enough = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, enough)  # taken below: the file is always whole
        recorded = record(choose_plane(device), out, gpu, seconds, lambda left: bool(signal.sigtimedwait(enough, left)))
        if json:
            print_json(dataclasses.asdict(recorded))
        else:
            print(
                f"{out}: {recorded.residencies} turns of {recorded.processes} processes on {recorded.gpus} GPUs"
                + (f", {recorded.lost} records lost" if recorded.lost else "")
            )
