"""The lines of the clients that are scheduled operation by operation, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

from runlist.views.clients import CLIENT_COLUMNS, client_rows
from runlist.views.cutting import cut
from runlist.views.layout import fit, lines
from runlist.views.structs import TaskView

_MARGINS = 2  # of the lines


def client_lines(tasks: Sequence[TaskView], width: int, height: int) -> list[str]:
    """The lines for a screen of that size, in a quarter of it at most; none where nobody has such clients, or there is
    no room.
    """
    rows = client_rows(tasks)
    room = height // 4 - 2  # beside the titles, and what says how many there are more
    if not rows or room < 1:
        return []
    text = lines(fit(CLIENT_COLUMNS, rows, width - _MARGINS), rows)
    if len(rows) > room + 1:
        text = [*text[: room + 1], f"and {len(rows) - room} clients more"]
    return [cut(line, max(0, width - _MARGINS)) for line in text]
