"""What a driver lets users set, as data: every command line reads it, so it stands apart from the interface."""

from __future__ import annotations

import msgspec


class Control(msgspec.Struct, frozen=True):
    """A control of a driver for a context, beyond slices and suspension. Users set it by its `name`.

    It takes the `words`; `default` is the driver's own, to which undo returns. For a `privileged` one the driver asks
    for root or a capability: a daemon that has it sets it for root and for its own user alone.
    """

    name: str
    words: tuple[str, ...]
    default: str
    help: str
    privileged: bool = False
