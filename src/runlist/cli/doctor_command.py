"""`runlist doctor`."""

from __future__ import annotations

import sys

import typer

from runlist.cli.common import Device, Json, painted, print_json

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def doctor(device: Device = None, json: Json = False) -> None:
        """Say what works on this machine, what does not and why, and what to do about it.

        Exit code 0 when GPU processes can be managed, 3 when a right is missing, 5 when something else is.
        """
        from runlist.doctor import examine

        findings, code = examine(device)
        if json:
            print_json({"findings": findings, "exit_code": int(code)})
        else:
            for finding in findings:
                state = painted(f"{finding.state:<5}", _COLOURS.get(finding.state, ""), sys.stdout)
                print(f"{state} {finding.what}: {finding.detail}")
        raise typer.Exit(int(code))
