"""`runlist policy map show|set|unset`."""

from __future__ import annotations

from typing import Annotated

import typer

from runlist.cli import complete
from runlist.cli.common import App, Device, Json, connected, key_values, print_json, say
from runlist.text import printable

Name = Annotated[str, typer.Argument(metavar="NAME", help="The entry's name, of your choice.")]


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
        from runlist.views.columns import POLICY_MAP_COLUMNS, chosen
        from runlist.views.layout import fit, lines

        with connected(device) as client:
            found = client.policy_map()
        if json:
            print_json(found)
            return
        print(f"refused by: {printable(found.enforced)}")
        if found.trouble:
            say(f"trouble: {found.trouble}")
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
        from runlist.cli.policy_map import Entry, checked_name, wanted

        checked_name(name)
        named = {key: text for key, text in {"cgroup": cgroup, "user": user, "comm": comm}.items() if text}
        entry = wanted(named, key_values(settings or []), refuse or [])
        with connected(device) as client:
            found = Entry(client, name).set(entry)
        if json:
            print_json(found)
        else:
            print("\n".join(f"{printable(one.rule)}: {printable(one.state)}" for one in found.entries))
        if found.trouble:
            say(f"trouble: {found.trouble}")
        if refuse and found.enforced.startswith("nobody"):
            say(f"nothing is refused now: {found.enforced}")

    @maps.command("unset")
    def unset(name: Name, device: Device = None, json: Json = False) -> None:
        """Remove the entry of a name. Its processes get what other rules say, or are put back."""
        from runlist.cli.policy_map import Entry, checked_name

        checked_name(name)
        with connected(device) as client:
            Entry(client, name).unset()
        if json:
            print_json({"removed": name})
