"""`runlist policy list|rules|show|map|use`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runlist.cli import policy_map_command
from runlist.cli.common import App, Device, Json, PolicyOptions, connected, key_values, print_json
from runlist.cli.complete import policies
from runlist.text import printable


def register(app: typer.Typer) -> None:
    """Add the command group."""
    policy = App(no_args_is_help=True, help="List policies, say why a process got what it got, or switch.")
    app.add_typer(policy, name="policy")

    @policy.command("list")
    def list_(device: Device = None, json: Json = False) -> None:
        """List the policies that come with Runlist; the one in use is marked."""
        from runlist.errors import NoTargetError, NotSupportedError, UsageError
        from runlist.policies import builtin_policies

        known = builtin_policies()
        try:
            with connected(device) as client:
                current = client.status().policy
        except (NoTargetError, NotSupportedError, UsageError):
            current = None
        if json:
            print_json([{"name": name, "summary": text, "in_use": name == current} for name, text in known.items()])
            return
        for name, text in known.items():
            print(f"{'*' if name == current else ' '} {name:<10} {text}")
        if current and current not in known:
            print(f"* {current}")

    @policy.command("rules")
    def rules(json: Json = False) -> None:
        """List the rules by which operations of several clients go side by side (docs/operations.md)."""
        from runlist.operations.rules import DEFAULT_RULE, builtin_rules

        known = builtin_rules()
        if json:
            print_json([{"name": one, "summary": text, "default": one == DEFAULT_RULE} for one, text in known.items()])
            return
        for name, text in known.items():
            print(f"{'*' if name == DEFAULT_RULE else ' '} {name:<10} {text}")

    @policy.command("show")
    def show(device: Device = None, json: Json = False) -> None:
        """Say which policy runs, and for each process why it got what it got.

        RULE is the line of the rules file that a process' settings come from, WHY what the policy says of its share.
        """
        from runlist.cli.tables import REASON_COLUMNS, show

        with connected(device) as client:
            status, tasks = client.status(), client.ps()
        if json:
            names = ("policy", "policy_options", "rules", "waiting", "others_waiting", "troubles")
            print_json({**{name: getattr(status, name) for name in names}, "tasks": tasks})
            return
        options = "".join(f" {name}={value}" for name, value in sorted(status.policy_options.items()))
        print(f"policy: {status.policy}{options}")
        for trouble in status.troubles:
            print(f"trouble: {printable(trouble)}")
        print(f"rules: {status.rules or 'none'}")
        show(tasks, [], json, REASON_COLUMNS)
        for name in status.waiting:
            print(f"waits for room: {printable(name)}")
        if status.others_waiting:
            print(f"waits for room: of other users, {status.others_waiting}")

    policy_map_command.register(policy)

    @policy.command("use")
    def use(
        name: Annotated[str, typer.Argument(metavar="NAME|FILE.py", help="The policy.", autocompletion=policies)],
        option: PolicyOptions = None,
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Switch the daemon to a policy, by name or by the path of a .py file. Running work is not touched."""
        chosen = checked_policy(name, option)
        with connected(device) as client:
            status = client.use_policy(*chosen)
        if json:
            print_json(status)


def checked_policy(policy: str, options: list[str] | None) -> tuple[str, dict[str, str]]:
    """A policy's name or absolute path, and its options. Raises UsageError for what no daemon would take: a file itself
    is read by the daemon alone.
    """
    from runlist.errors import UsageError
    from runlist.policies import PolicySpec, load_policy

    values = key_values(options or [])
    if not policy.endswith(".py"):
        load_policy(PolicySpec(policy, values))
        return policy, values
    try:
        path = Path(policy).resolve()
        there, readable = path.exists(), path.is_file()
    except OSError:
        there = readable = False
    if not readable:
        raise UsageError(f"policy file {policy} {'is no plain file: name one' if there else 'does not exist'}")
    return str(path), values


def asked_policy(policy: str | None, options: list[str] | None) -> tuple[str, dict[str, str]] | None:
    """The policy that is to be switched to, checked, or None."""
    from runlist.errors import UsageError

    if policy is not None:
        return checked_policy(policy, options)
    if options:
        raise UsageError("--option belongs to --policy: name the policy")
    return None
