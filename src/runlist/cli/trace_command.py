"""`runlist trace`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from runlist.cli.common import Device, Json, number, output_file, print_json, say, whole

if TYPE_CHECKING:
    from runlist.trace.recorder import Recorded
    from runlist.why.recorder import Recorder


def seconds_of(text: Any) -> float:
    """A duration as people write it, in seconds."""
    from runlist.units import parse_duration_us

    microseconds = parse_duration_us(str(text))
    if microseconds is None or microseconds <= 0:
        raise typer.BadParameter(f"take a time with its unit, such as 20ms, not {str(text)!r}")
    return microseconds / 1e6


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def trace(
        out: Path | None = typer.Option(
            None, "--out", help="The file to write: NAME.pftrace; with --why it may be left out."
        ),
        seconds: float | None = typer.Option(
            None, "--seconds", parser=number(0.001, 86_400), metavar="S", help="How long; default until Ctrl-C."
        ),
        gpu: str | None = typer.Option(None, "--gpu", metavar="INDEX|UUID", help="Only this GPU; default all."),
        operations: list[Path] = typer.Option(
            [], "--operations", metavar="FILE", help="Add a program's log of its operations; can be given again."
        ),
        why: int | None = typer.Option(
            None, "--why", parser=whole(1), metavar="PID", help="Say why requests of this process are late. Needs root."
        ),
        slower_than: float | None = typer.Option(
            None,
            "--slower-than",
            parser=seconds_of,
            metavar="TIME",
            help="With --why: which are, such as 20ms; default the slowest 5 %.",
        ),
        pause: float | None = typer.Option(
            None,
            "--pause",
            parser=seconds_of,
            metavar="TIME",
            help="With --why: what parts requests, such as 5ms; default learnt.",
        ),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Record who holds the GPU, turn by turn, from the GPU's own log of context switches.

        The file opens in https://ui.perfetto.dev: a group of tracks for each GPU, in it a track for each process, on it
        a slice for each of its turns. Needs no daemon. Without root, all processes of other users share a track.

        A process that has the GPU to itself all along is in no log; NVML's samples tell which one it is.

        A program under the scheduler of operations can write a log of them (runlist.operations_log). With --operations
        FILE the trace has its clients beside each other, each operation a slice. It is read at the end.

        With --why PID, a table tells where the time of that process' slow requests went, and what is to blame; the file
        then has its threads and its calls of the driver, too.
        """
        import signal

        from runlist.errors import UsageError
        from runlist.planes.registry import choose_plane
        from runlist.trace.recorder import record

        if why is None and (slower_than is not None or pause is not None):
            raise UsageError("--slower-than and --pause go with --why PID")
        if out is not None:
            output_file("--out", out)
        elif why is None:
            raise UsageError("say where to write: --out NAME.pftrace")
        if out is not None and any(_is_one_file(out, each) for each in operations):
            raise UsageError(f"--out {out} and --operations name one file: a log is read, and stays as it is")
        enough = {signal.SIGINT, signal.SIGTERM}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, enough)  # taken below: the file is always whole
        try:
            plane = choose_plane(device)

            def wait(left: float) -> bool:
                return bool(signal.sigtimedwait(enough, left))

            if why is None:
                assert out is not None
                _show(out, record(plane, out, gpu, seconds, wait, None, operations), json)
            else:
                from runlist.why.recorder import Recorder

                bounds = (None if each is None else round(each * 1e9) for each in (slower_than, pause))
                with Recorder(why, device, *bounds) as recorder:
                    say(recorder.beginning())
                    recorded = record(plane, out, gpu, seconds, wait, recorder, operations)
                    _explain(recorder, out, recorded, json)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _is_one_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one is not there
        return False


def _show(out: Path, recorded: Recorded, json: bool) -> None:
    import dataclasses

    from runlist.text import counted

    if json:
        print_json(dataclasses.asdict(recorded))
        return
    turns, processes = (
        counted(recorded.residencies, "turn"),
        counted(recorded.processes, "process", "processes"),
    )
    lost = f", {counted(recorded.lost, 'record')} lost" if recorded.lost else ""
    single = f", {counted(recorded.operations, 'operation')}" if recorded.operations else ""
    print(f"{out}: {turns} of {processes} on {counted(recorded.gpus, 'GPU')}{single}{lost}")


def _explain(recorder: Recorder, out: Path | None, recorded: Recorded, json: bool) -> None:
    import dataclasses

    from runlist.text import printable
    from runlist.why.report import lines

    assert recorder.analysis is not None
    report = recorder.analysis.report
    if recorder.ended_by:
        say(recorder.ended_by)
    if recorder.elsewhere:
        say(recorder.elsewhere)
    say(recorder.cost())
    if json:
        print_json({**dataclasses.asdict(report), "trace": None if out is None else dataclasses.asdict(recorded)})
        return
    for line in lines(report, recorder.name):
        print(printable(line))
    if out is not None:
        _show(out, recorded, json)
