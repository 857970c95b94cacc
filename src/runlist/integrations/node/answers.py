"""What the daemon made of the drop-ins: which it refused, and what it lowered to a bound of its administrator."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runlist.client import Client
from runlist.integrations.node.drop_ins import FILE

PATIENCE_S = 2.0
_LINE = re.compile(rf"^\S*{FILE.pattern}(?::\d+)?: *")


def by_container(device: str | None) -> dict[str, tuple[str, ...]]:
    """The daemon's lines about drop-ins of ours, by container, without the file's name. Raises RunlistError where none
    answers.
    """
    with Client.open(device=device, patience_s=PATIENCE_S) as client:
        found = client.rules()  # all of them, of which the status has some
    return sorted_lines([*(file.trouble for file in found.files), *found.notes])


def sorted_lines(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Lines by the container that they name."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if (match := FILE.search(line)) is not None:
            found.setdefault(match[1], []).append(_LINE.sub("", line))
    return {container: tuple(some) for container, some in found.items()}
