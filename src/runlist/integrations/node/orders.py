"""In which order the containers of a pod were first started, which is that of its specification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runlist.integrations.node.pods import Container

MOST_GONE = 1024
"""So many pods without a container are remembered: all of a pod's may have ended, and start again."""


class Orders:
    """What was seen of each pod, by its sandbox. A container that starts again keeps its place, and so does one that is
    away. One that had ended before the next was started runs before the others, and is none of them. One that was
    first seen when it had started again could have any place: then nobody knows the order.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[str] | None] = {}

    def learn(self, containers: Iterable[Container]) -> None:
        """Take all containers that live, oldest first."""
        alive: dict[str, list[Container]] = {}
        for one in containers:
            alive.setdefault(one.sandbox, []).append(one)
        for sandbox, those in alive.items():
            self._known[sandbox] = _with(self._known.pop(sandbox, []), those)
        for gone in list(self._known)[: max(0, len(self._known) - len(alive) - MOST_GONE)]:
            del self._known[gone]

    def of(self, sandbox: str) -> tuple[str, ...]:
        """Names in their order; none where that is not known."""
        return tuple(self._known.get(sandbox) or ())


def _with(names: list[str] | None, alive: Sequence[Container]) -> list[str] | None:
    """The order that is known, and containers that live."""
    there = {one.name for one in alive}
    for one in alive:
        if names is None or (one.restarted and one.name not in names):
            return None
        if one.name not in names:
            names = [*(name for name in names if name in there), one.name]
    return names
