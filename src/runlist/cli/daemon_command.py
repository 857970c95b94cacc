"""`runlist daemon`."""

from __future__ import annotations

import grp
import os
import signal
from pathlib import Path

import typer

from runlist import interpreter
from runlist.cli.common import Device, Json, PolicyOptions, print_json
from runlist.cli.complete import policies
from runlist.cli.policy_command import checked_policy
from runlist.text import counted, printable


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def daemon(
        policy: str | None = typer.Option(
            None,
            "--policy",
            metavar="NAME|FILE.py",
            help="The policy to start with: a name, or a .py file; default priority.",
            autocompletion=policies,
        ),
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
        from runlist.client import Client, daemon_environment
        from runlist.daemon.placement.rules import Rules
        from runlist.errors import UsageError
        from runlist.planes.registry import choose_plane
        from runlist.policies import DEFAULT_POLICY

        choices = {"--policy": policy, "--option": option, "--rules": rules, "--group": group}
        given = [name for name, value in choices.items() if value is not None]
        if (status or stop) and given:
            raise UsageError(f"{', '.join(given)}: for a daemon that starts, and not with --status or --stop")
        if json and not (status or stop):
            raise UsageError("--json goes with --status or --stop: a daemon that runs prints its log")
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
                    f"policy {found.policy}, {counted(found.tasks, 'task')}"
                )
                for trouble in found.troubles:
                    print(f"trouble: {printable(trouble)}")
            return
        # What is wrong with the words is said here, before a driver is looked for.
        name, _ = checked_policy(policy if policy is not None else DEFAULT_POLICY, option)
        if rules is not None:
            Rules.load(rules)
        if group is not None and not _is_group(group):
            raise UsageError(f"no group {group!r} on this machine")
        words = interpreter.command("runlist.daemon", "--policy", name)
        words += [word for text in option or [] for word in ("--option", text)]
        words += ["--rules", str(rules.resolve())] if rules else []
        words += ["--group", group] if group else []
        environment = daemon_environment(choose_plane(device))
        os.chdir("/")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the daemon takes it, once it can
        try:
            os.execve(words[0], words, environment)
        finally:  # it could not be started
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except (KeyError, ValueError):
        return False
    return True
