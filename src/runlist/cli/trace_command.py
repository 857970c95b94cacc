"""`runlist trace`."""

from __future__ import annotations

from pathlib import Path

import typer

from runlist.cli.common import Device, Json, number, output_file, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def trace(
        out: Path = typer.Option(..., "--out", help="The file to write: NAME.pftrace."),
        seconds: float | None = typer.Option(
            None, "--seconds", parser=number(0.001, 86_400), metavar="S", help="How long; default until Ctrl-C."
        ),
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
        from runlist.text import counted
        from runlist.trace.recorder import record

        output_file("--out", out)
        enough = {signal.SIGINT, signal.SIGTERM}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, enough)  # taken below: the file is always whole
        try:
            plane = choose_plane(device)
            recorded = record(plane, out, gpu, seconds, lambda left: bool(signal.sigtimedwait(enough, left)))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if json:
            print_json(dataclasses.asdict(recorded))
        else:
            turns, processes = (
                counted(recorded.residencies, "turn"),
                counted(recorded.processes, "process", "processes"),
            )
            lost = f", {counted(recorded.lost, 'record')} lost" if recorded.lost else ""
            print(f"{out}: {turns} of {processes} on {counted(recorded.gpus, 'GPU')}{lost}")
