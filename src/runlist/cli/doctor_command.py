"""`runlist doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from runlist.cli.common import Device, Json, connected, painted, print_json, whole
from runlist.text import printable

if TYPE_CHECKING:
    from runlist.views.finding import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}

Process = Annotated[
    int | None,
    typer.Argument(parser=whole(1), metavar="PID", help="A process to look at for 2 s, with all that it started."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def doctor(pid: Process = None, device: Device = None, json: Json = False) -> None:
        """Say what works on this machine, what does not and why, and what to do about it; or, of one process, what it
        does on the GPU, how the background gives way to it, and what would fit better.

        Exit code 0 when GPU processes can be managed, 3 when a right is missing, 5 when something else is. Of a
        process 0, and 4 when it is not managed.
        """
        if pid is not None:
            _advise(pid, device, json)
            return
        from runlist.doctor import examine

        findings, code = examine(device)
        if json:
            print_json({"findings": findings, "exit_code": int(code)})
        else:
            _show(findings)
        raise typer.Exit(int(code))


def _advise(pid: int, device: str | None, json: bool) -> None:
    from runlist.advice.look import look
    from runlist.advice.table import advise

    with connected(device) as client:
        seen = look(client, pid)
    if json:
        tasks = [{"observed": one, "pattern": one.pattern, "findings": advise(one)} for one in seen]
        print_json({"pid": pid, "tasks": tasks, "exit_code": 0})
        return
    for one in seen:
        print(f"process {one.pid} ({printable(one.command)}), {one.task_class}, GPU {one.gpu.removeprefix('GPU-')[:8]}")
        _show(advise(one))


def _show(findings: Iterable[Finding]) -> None:
    for finding in findings:
        state = painted(f"{finding.state:<5}", _COLOURS.get(finding.state, ""), sys.stdout)
        print(f"{state} {finding.what}: {finding.detail}")
