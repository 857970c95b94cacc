"""`runlist daemon`."""

from __future__ import annotations

import grp
import os
import signal
from pathlib import Path

import typer

from runlist import interpreter
from runlist.cli.common import Device, Json, PolicyOptions, connected, print_json, say
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
        install: bool = typer.Option(False, "--install", help="Make it a service of systemd, with these options."),
        uninstall: bool = typer.Option(False, "--uninstall", help="Remove that service's files."),
        user: bool = typer.Option(False, "--user", help="With --install or --uninstall: a service of your own."),
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Run the daemon in the foreground, until a signal or `--stop`. It puts everything back when it ends.

        Run by root it serves everybody: each user manages only its own processes.
        """
        from runlist.daemon.placement.rules import Rules
        from runlist.errors import UsageError
        from runlist.planes.registry import choose_plane
        from runlist.policies import DEFAULT_POLICY
        from runlist.starting import daemon_environment

        choices = {"--policy": policy, "--option": option, "--rules": rules, "--group": group}
        given = [name for name, value in choices.items() if value is not None]
        asked = {"--status": status, "--stop": stop, "--install": install, "--uninstall": uninstall}
        exclusive = [word for word, is_asked in asked.items() if is_asked]
        if len({word.replace("--stop", "--status") for word in exclusive}) > 1:
            raise UsageError(f"{' and '.join(exclusive)}: one at a time")
        if (status or stop or uninstall) and given:
            raise UsageError(f"{', '.join(given)}: for a daemon that starts, and not with {' or '.join(exclusive)}")
        if user and not (install or uninstall):
            raise UsageError("--user goes with --install or --uninstall: a daemon that you start is yours anyway")
        if uninstall:
            _uninstall(user)
            return
        if json and not (status or stop):
            raise UsageError("--json goes with --status or --stop: a daemon that runs prints its log")
        if status or stop:
            with connected(device) as client:
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
                if found.kernel_plane:  # older daemons do not say
                    print(f"kernel plane: {printable(found.kernel_plane)}")
                for trouble in found.troubles:
                    print(f"trouble: {printable(trouble)}")
            return
        # What is wrong with the words is said here, before a driver is looked for.
        name, _ = checked_policy(policy if policy is not None else DEFAULT_POLICY, option)
        if rules is not None:
            Rules.load(rules)
        if group is not None and not _is_group(group):
            raise UsageError(f"no group {group!r} on this machine")
        options = [word for text in option or [] for word in ("--option", text)]
        options += ["--rules", str(rules.resolve())] if rules else []
        options += ["--group", group] if group else []
        if install:
            options += ["--device", device] if device else []
            _install(user, ["--policy", name, *options] if policy is not None else options, group)
            return
        words = interpreter.command("runlist.daemon", "--policy", name, *options)
        environment = daemon_environment(choose_plane(device))
        os.chdir("/")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the daemon takes it, once it can
        try:
            os.execve(words[0], words, environment)
        finally:  # it could not be started
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _install(user: bool, words: list[str], group: str | None) -> None:
    from runlist.errors import UsageError
    from runlist.integrations.systemd import units

    if user and group is not None:
        raise UsageError("--group: your own daemon serves you alone; leave --user out for one that serves a group")
    done = units.install(units.folder(user), units.contents(user, units.program(), words, group))
    for one in done:
        if one.what == "changed":
            say(f"{one.path}: left as it is, since somebody changed it: move it away first, or put changes beside it "
                f"(systemctl edit {one.path.name})")  # fmt: skip
        else:
            print(f"{one.path}: {'there already' if one.what == 'same' else one.what}")
    manager = _manager(user)
    restart = f"; {manager} restart runlist.service" if any(one.what == "renewed" for one in done) else ""
    print(f"next: {manager} daemon-reload && {manager} enable --now runlist.socket runlist.service{restart}")


def _uninstall(user: bool) -> None:
    from runlist.integrations.systemd import units

    done = units.uninstall(units.folder(user))
    for one in done:
        if one.what == "changed":
            say(f"{one.path}: left there, since somebody changed it: remove it yourself")
        else:
            print(f"{one.path}: {'not there' if one.what == 'missing' else one.what}")
    if any(one.what == "removed" for one in done):
        manager = _manager(user)
        print(f"next: {manager} disable --now runlist.socket runlist.service; {manager} daemon-reload")


def _manager(user: bool) -> str:
    return "systemctl --user" if user else "systemctl"


def _is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except (KeyError, ValueError):
        return False
    return True
