"""`runlist daemon`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import typer

from runlist.cli.common import Device, Json, PolicyOptions, print_json
from runlist.text import printable


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def daemon(
        policy: str = typer.Option("priority", "--policy", help="The policy to start with: a name, or a .py file."),
        option: PolicyOptions = None,
        rules: Path | None = typer.Option(None, "--rules", help="A TOML file of settings by user, command, cgroup…"),
        group: str | None = typer.Option(None, "--group", help="Let the members of this group use the daemon."),
        status: bool = typer.Option(False, "--status", help="Say what runs, instead of running."),
        stop: bool = typer.Option(False, "--stop", help="Stop the one that runs; it puts everything back first."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Run the daemon in the foreground, until a signal or `--stop`. It puts everything back when it ends.

        Run by root it serves everybody: each user manages only its own processes.
        """
        from runlist.client import Client
        from runlist.planes.registry import choose_plane
        from runlist.protocol import environment_autogen as names

        if status or stop:
            with Client.open(device=device) as client:
                found = client.status()
                if stop:
                    client.stop()
            if json:
                print_json(found)
            elif status:
                print(
                    f"process {found.pid}, version {found.version}, {found.driver}, "
                    f"policy {found.policy}, {found.tasks} tasks"
                )
                for trouble in found.troubles:
                    print(f"trouble: {printable(trouble)}")
            return
        name = str(Path(policy).resolve()) if policy.endswith(".py") else policy
        words = [sys.executable, "-m", "runlist.daemon", "--policy", name]
        words += [word for text in option or [] for word in ("--option", text)]
        words += ["--rules", str(rules.resolve())] if rules else []
        words += ["--group", group] if group else []
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the daemon takes it, once it can
        os.execve(sys.executable, words, {**os.environ, names.DEVICE: choose_plane(device).name})
