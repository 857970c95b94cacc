"""`runlist rules list|reload|check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlist.cli.common import App, Device, Json, connected, print_json, say
from runlist.text import counted, printable

if TYPE_CHECKING:
    from runlist.daemon.placement.rule import Rule
    from runlist.views.structs import RulesView


def register(app: typer.Typer) -> None:
    """Add the command group."""
    rules = App(no_args_is_help=True, help="List the rules in force, have them read again, or check a file of them.")
    app.add_typer(rules, name="rules")

    @rules.command("list")
    def list_(device: Device = None, json: Json = False) -> None:
        """List the rules in force, in the order in which they are tried, and what is wrong with which file.

        PROCESSES is how many have the rule now. Users see the rules that their processes have.
        """
        with connected(device) as client:
            found = client.rules()
        if json:
            print_json(found)
        else:
            _show(found)

    @rules.command("reload")
    def reload(device: Device = None, json: Json = False) -> None:
        """Have the daemon read its main file of rules again, as SIGHUP does.

        A file with a mistake changes nothing, and the mistake is said. Drop-ins need no command.
        """
        with connected(device) as client:
            found = client.reload_rules()
        if json:
            print_json(found)
        else:
            print(f"{counted(len(found.rules) + found.left_out, 'rule')} in force")

    @rules.command("check")
    def check(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of rules.")],
        drop_in: Annotated[
            bool, typer.Option("--drop-in", help="Check it as a drop-in, which has rules alone and is short.")
        ] = False,
        json: Json = False,
    ) -> None:
        """Say what is wrong with a file of rules, without a daemon."""
        from runlist.daemon.placement.rules import Rules

        found = Rules.load_drop_in(file) if drop_in else Rules.load(file)
        notes = [*_never_reached(found.rules), *_like_patterns(found.rules), *_short_ids(found.rules)]
        for note in notes:
            say(note)
        if json:
            print_json({"file": str(file), "rules": len(found.rules), "bounds": len(found.bounds), "notes": notes})
        else:
            bounds = f", {counted(len(found.bounds), 'bound')}" if found.bounds else ""
            print(f"{printable(str(file))}: {counted(len(found.rules), 'rule')}{bounds}, in order")


def _never_reached(rules: Sequence[Rule]) -> Iterator[str]:
    """The first rule that matches is taken: none behind one that asks for nothing."""
    for number, rule in enumerate(rules[:-1], 1):
        if not rule.conditions:
            behind = counted(len(rules) - number, "rule")
            yield f"{printable(rule.where)}: this matches every process, and {behind} behind it none: put it last"
            return


def _like_patterns(rules: Sequence[Rule]) -> Iterator[str]:
    for rule in rules:
        for name in rule.like_patterns:
            said = f"comm is no pattern: {printable(name)} is a program of that very name"
            yield f"{printable(rule.where)}: {said}; command takes patterns"


def _short_ids(rules: Sequence[Rule]) -> Iterator[str]:
    """As `docker ps` shows them."""
    from runlist.proc.cgroup import is_container

    for rule in rules:
        for text in rule.conditions["container"].exact if "container" in rule.conditions else ():
            if not is_container(text):
                said = f"no container has the id {printable(text)}: write all 64 digits, or a pattern such as"
                yield f"{printable(rule.where)}: {said} {printable(text)}*"


def _show(found: RulesView) -> None:
    from runlist.cli.tables import terminal_width
    from runlist.views.columns import RULE_COLUMNS, chosen
    from runlist.views.layout import fit, lines

    if found.rules:
        layout = fit(chosen(RULE_COLUMNS, found.rules), found.rules, terminal_width())
        print("\n".join(lines(layout, found.rules)))
    else:
        print("no rules")
    if found.left_out:
        print(f"and {found.left_out} more")
    for file in found.files:
        if file.trouble:
            say(f"trouble: {file.trouble}")
    for note in found.notes:
        say(f"note: {note}")
