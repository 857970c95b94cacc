"""`runlist attach PID`."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import typer

from runlist.cli.common import Device, Json, Pid, PolicyOption, PolicyOptions, connected
from runlist.cli.policy_command import asked_policy
from runlist.cli.settings import with_settings

if TYPE_CHECKING:
    from runlist.client import Client
    from runlist.views.structs import TaskView

_LOOK_EVERY_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    @with_settings
    def attach(
        pid: Pid,
        settings: dict[str, str],
        wait: bool = typer.Option(
            False, "--wait", help="Where it has no GPU work yet, wait until it has; Ctrl-C leaves it as it was."
        ),
        policy: PolicyOption = None,
        option: PolicyOptions = None,
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Manage a running process and its descendants. It needs no preparation and does not notice.

        Starts a private daemon when none runs. Attaching again changes what is named.
        """
        from runlist.cli.tables import show

        chosen = asked_policy(policy, option)
        with connected(device, start=True) as client:
            if chosen is not None:
                client.use_policy(*chosen)
            tasks = _wait(client, pid, settings, device) if wait else client.attach(pid, None, settings=settings)
            show(tasks, client.notes, json)


def _wait(client: Client, pid: int, settings: dict[str, str], device: str | None) -> list[TaskView]:
    """Attach a process, and wait until it has GPU work. Raises NoTargetError when it ends before."""
    from runlist.errors import NoTargetError

    try:
        client.set(pid, {})
        ours = False
    except NoTargetError:  # nobody manages it
        ours = True
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it is attached, or not, but never unanswered
    try:
        try:
            tasks = client.attach(pid, None, wait=True, settings=settings)
            notes = client.notes
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        while not tasks:
            time.sleep(_LOOK_EVERY_S)
            tasks = client.set(pid, {})
    except KeyboardInterrupt:
        if ours:
            with connected(device) as other:  # ours may have been interrupted in the middle of a request
                other.detach(pid)
        raise
    client.notes = notes
    return tasks
