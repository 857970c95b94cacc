"""`runlist run --share sms`: the command becomes a client of MPS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import msgspec

from runlist.cli.common import say
from runlist.cli.tree import Tree
from runlist.errors import UsageError
from runlist.planes.interface import Plane

_WAYS = ("time", "sms")


class Sharing(msgspec.Struct, frozen=True):
    """What was asked for: the class, and the part of the SMs."""

    task_class: str
    sms: str | None


class Beside(msgspec.Struct, frozen=True):
    """What makes a command share SMs; nothing where it shares time."""

    variables: Mapping[str, str] = {}
    inherited: tuple[int, ...] = ()

    def onto(self, tree: Tree) -> Tree:
        """A tree with this, too."""
        return msgspec.structs.replace(tree, variables={**tree.variables, **self.variables}, inherited=self.inherited)


def asked_sharing(share: str, settings: Mapping[str, str], sms: str | None) -> Sharing | None:
    """What was asked for; None for time. Raises UsageError."""
    if share not in _WAYS:
        raise UsageError(f"--share {share}: take {' or '.join(_WAYS)}")
    if share == "time":
        if sms is not None:
            raise UsageError("--sms goes with --share sms: a program that shares time has all SMs in its turn")
        return None
    from runlist.sharing import joining

    asked = Sharing(settings.get("class", "").lower(), sms)
    joining.check(asked.task_class, sms)
    return asked


@contextlib.contextmanager
def beside(plane: Plane, sharing: Sharing | None) -> Iterator[Beside]:
    """What the command needs for it, as long as it runs. Raises RunlistError."""
    if sharing is None:
        yield Beside()
        return
    from runlist.sharing import joining

    with joining.joined(plane, sharing.task_class, sharing.sms, say) as joined:
        for note in joined.notes:
            say(note)
        yield Beside(joined.variables, (joined.descriptor,))
