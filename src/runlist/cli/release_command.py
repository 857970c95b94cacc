"""`runlist release PID…|--all`."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from runlist.cli.common import Device, Json, connected, print_json, whole

if TYPE_CHECKING:
    from runlist.client import Client
    from runlist.planes.interface import Plane

Pids = Annotated[
    list[int] | None,
    typer.Argument(parser=whole(1), metavar="[PID…]", help="Processes, also such that no daemon manages."),
]
_NOBODY = "no daemon runs: name the processes that are to be put back (`runlist release PID`)"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def release(
        pids: Pids = None,
        everything: bool = typer.Option(False, "--all", help="All that the daemon manages for you; for root, for all."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Put processes back as they were found: those named, with what they started, or all.

        A process that is named is put back even when no daemon knows it: its channels are enabled, and slices that no
        driver gives by itself are set to the driver's default. This is the way out when daemon and keeper were both
        killed.
        """
        from runlist.cli.tables import show
        from runlist.errors import NoTargetError, UsageError
        from runlist.planes.registry import choose_plane

        if everything == bool(pids):
            raise UsageError("say what to release: processes by their ids, or --all for everything of yours")
        plane = choose_plane(device)
        for pid in pids or []:
            _check(pid)
        with contextlib.ExitStack() as stack:
            try:
                client = stack.enter_context(connected(device))
            except NoTargetError:
                client = None
            if everything:
                notes = [_NOBODY] if client is None else client.release()
            else:
                notes = _put_back(client, plane, pids or [])
        if json:
            print_json({"notes": notes})
        elif notes:
            show([], notes, json)


def _check(pid: int) -> None:
    """Raise NoTargetError or NoPermissionError before anything is done to others that were named, too."""
    from runlist.errors import NoPermissionError, NoTargetError
    from runlist.proc.process import owner_of

    owner = owner_of(pid)
    if owner is None:
        raise NoTargetError(f"process {pid} does not exist")
    if os.geteuid() not in (0, owner):
        raise NoPermissionError(f"process {pid} belongs to user {owner}: only that user and root may release it")


def _put_back(client: Client | None, plane: Plane, pids: list[int]) -> list[str]:
    """Have the daemon put back what it manages, and put back the others here; first these, which may turn out to be
    none of the GPU's.
    """
    managed = [pid for pid in dict.fromkeys(pids) if client is not None and _is_managed(client, pid)]
    notes = [note for pid in dict.fromkeys(pids) if pid not in managed for note in plane.rescue(pid)]
    return notes + [note for pid in managed if client is not None for note in client.detach(pid)]


def _is_managed(client: Client, pid: int) -> bool:
    from runlist.errors import NoTargetError

    try:
        client.set(pid, {})
    except NoTargetError:
        return False
    return True
