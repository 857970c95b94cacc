"""`runlist policy map show|set|unset`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlist.cli import complete
from runlist.cli.common import App, Device, Json, key_values, print_json, say
from runlist.text import printable

if TYPE_CHECKING:
    from runlist.client import Client
    from runlist.integrations.drop_ins import Folder, Value
    from runlist.views.structs import RuleView

PATIENCE_S = 5.0
"""How long the daemon may take to follow its folder of drop-ins; usually some milliseconds."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of your own for the entry.")]


def register(policy: typer.Typer) -> None:
    """Add the command group."""
    maps = App(no_args_is_help=True, help="Show or change the policy map: the rules that the kernel looks up itself.")
    policy.add_typer(maps, name="map")

    @maps.command("show")
    def show(device: Device = None, json: Json = False) -> None:
        """Show the entries of the policy map in the order in which they count, and who sees to what they refuse.

        Rules make them that name a cgroup, a user or a thread's name (docs/rules.md). They are for root and the
        daemon's own user to see.
        """
        from runlist.cli.tables import terminal_width
        from runlist.client import Client
        from runlist.views.columns import POLICY_MAP_COLUMNS, chosen
        from runlist.views.layout import fit, lines

        with Client.open(device=device) as client:
            found = client.policy_map()
        if json:
            print_json(found)
            return
        print(f"refused by: {printable(found.enforced)}")
        if found.trouble:
            say(f"trouble: {printable(found.trouble)}")
        if not found.entries:
            print("no entries")
            return
        layout = fit(chosen(POLICY_MAP_COLUMNS, found.entries), found.entries, terminal_width())
        print("\n".join(lines(layout, found.entries)))

    @maps.command("set")
    def set_(
        name: Name,
        settings: Annotated[
            list[str] | None,
            typer.Argument(metavar="key=value…", help="What they get.", autocompletion=complete.settings),
        ] = None,
        cgroup: Annotated[str, typer.Option(metavar="PATH", help="Processes of this cgroup.")] = "",
        user: Annotated[str, typer.Option(metavar="USER", help="Processes of this user, by name or id.")] = "",
        comm: Annotated[str, typer.Option(metavar="NAME", help="Groups made by a thread of this name.")] = "",
        refuse: Annotated[
            list[str] | None,
            typer.Option(metavar="slices|groups=N|gpus=N,N", help="What they may not do; may be repeated."),
        ] = None,
        device: Device = None,
        json: Json = False,
    ) -> None:
        """Add an entry to the policy map, or replace the one of this name, while everything runs.

        It is written as a rule into the daemon's folder of drop-ins, and in force when the command ends. Rules of
        drop-ins come before those of the main file.
        """
        from runlist.client import Client
        from runlist.daemon.placement.reading import read_drop_in
        from runlist.errors import UsageError
        from runlist.integrations.drop_ins import Folder, rule_text

        who: dict[str, Value] = {key: text for key, text in (("cgroup", cgroup), ("comm", comm)) if text}
        if user:
            who["user"] = int(user) if user.isascii() and user.isdecimal() else user
        if not who:
            raise UsageError("name whom it is for: --cgroup, --user, --comm")
        file, head = _file_of(name), "Written by `runlist policy map set`; `runlist policy map unset` removes it."
        text = rule_text(head, who, {}, key_values(settings or []), _refused(refuse or []))
        with Client.open(device=device) as client:
            path = client.drop_ins / file
            (wanted,) = read_drop_in(path, text.encode()).rules
            if not wanted.of_the_kernel:
                raise UsageError("the policy map takes names in full, without *, ? or [")
            words = (wanted.asks, wanted.settings, wanted.refuse.words)
            with Folder(client.drop_ins) as folder:
                before = folder.get(file)
                folder.put(file, text)
                found = _wait(
                    client, path, lambda rules: any((one.asks, one.sets, one.refuses) == words for one in rules)
                )
                if found is None:
                    _put_back(folder, file, before)
                    raise _not_read(client, path)
        if json:
            print_json(found)
        else:
            print("\n".join(f"{printable(one.rule)}: in force" for one in found))

    @maps.command("unset")
    def unset(name: Name, device: Device = None, json: Json = False) -> None:
        """Remove the entry of a name. Its processes get what other rules say, or are put back."""
        from runlist.client import Client
        from runlist.errors import NoTargetError
        from runlist.integrations.drop_ins import Folder

        file = _file_of(name)
        with Client.open(device=device) as client:
            path = client.drop_ins / file
            with Folder(client.drop_ins) as folder:
                if folder.get(file) is None:
                    raise NoTargetError(f"no entry {name} was set: see `runlist policy map show`")
                folder.remove(file)
            if _wait(client, path, lambda rules: not rules) is None:
                raise _not_read(client, path)
        if json:
            print_json({"removed": name})


def _file_of(name: str) -> str:
    import re

    from runlist.errors import UsageError

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise UsageError(f"{printable(name)!r}: a name is up to 64 letters, digits, - and _")
    return f"map-{name}.toml"


def _refused(words: list[str]) -> dict[str, Value]:
    """`refuse` as rules have it: what is wrong in it, the reader of rules says."""
    from runlist.errors import UsageError

    found: dict[str, Value] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in found:
            raise UsageError(f"--refuse {key} is given twice: give it once")
        numbers = [int(part) if part.isascii() and part.isdecimal() else part for part in value.split(",")]
        match key, value:
            case "slices", "":
                found[key] = True
            case "groups", text if text:
                found[key] = numbers[0] if len(numbers) == 1 else text
            case "gpus", text if text:
                found[key] = numbers
            case _:
                raise UsageError(f"--refuse {printable(word)}: take slices, groups=N or gpus=N,N")
    return found


def _wait(client: Client, path: Path, holds: Callable[[list[RuleView]], bool]) -> list[RuleView] | None:
    """The rules of a file once they are as wanted; None where the daemon does not take them."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        found = [rule for rule in client.rules().rules if rule.file == str(path)]
        if holds(found):
            return found
        time.sleep(0.01)
    return None


def _put_back(folder: Folder, file: str, before: str | None) -> None:
    if before is None:
        folder.remove(file)
    else:
        folder.put(file, before)


def _not_read(client: Client, path: Path) -> Exception:
    from runlist.errors import RunlistError

    troubles = [file.trouble for file in client.rules().files if file.file == str(path) and file.trouble]
    return RunlistError(next(iter(troubles), f"the daemon did not follow {path.parent} in {PATIENCE_S:g} s: see its log"))
