"""What a driver lets users set, as data: every command line reads it, so it stands apart from the interface."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Control:
    """A setting that a driver itself has for a context, beyond slices and suspension, offered to users by its `name`.

    `words` are what it can be set to, `default` is the one that the driver has by itself: undoing means that. Where it
    is `privileged`, the driver asks for root or a capability, so a daemon that has it does this for root alone.
    """

    name: str
    words: tuple[str, ...]
    default: str
    help: str
    privileged: bool = False
