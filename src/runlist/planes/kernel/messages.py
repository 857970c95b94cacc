"""What the daemon and the loader say to each other: one message each way, as JSON, on a SOCK_SEQPACKET socket."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import msgspec

from runlist.planes.interface import Capture, DriverFiles
from runlist.planes.kernel import maps
from runlist.planes.kernel.loading import Wanted
from runlist.planes.kernel.names import Names
from runlist.protocol import kernel_autogen as protocol

MAX_BYTES = 1 << 16
SHARED = (
    "events", "groups", "processes", "members", "controls", "objects", "files", "counters", "policy", "force", "exempt",
    "refusals", "swept", "asked",
)  # fmt: skip
"""The maps whose descriptors come with the answer, in this order."""


VERSION = zlib.crc32(repr((protocol.STRUCTS, maps.MAPS, SHARED)).encode())
"""Of what is said, and of what is in maps and events: whoever installs another one while the daemon runs has it start
the loader of that.
"""


class Answer(msgspec.Struct, frozen=True):
    """Of the loader: why it cannot, or empty; why maps have no names for people, or empty; and why the kernel refuses
    nothing, or empty.
    """

    unable: str = ""
    unpinned: str = ""
    lenient: str = ""


def ask(wanted: Wanted) -> bytes:
    """The daemon's message."""
    return json.dumps(
        {
            "version": VERSION,
            "shapes": {str(request): shape.hex() for request, shape in wanted.capture.shapes.items()},
            "rules": [rule.hex() for rule in wanted.capture.rules],
            "watched": {str(command): flags for command, flags in wanted.capture.watched.items()},
            "files": msgspec.structs.astuple(wanted.capture.files),
            "own": wanted.own,
            "budget": wanted.budget,
            "names": wanted.names and [str(wanted.names.above), wanted.names.pid, wanted.names.socket],
            "settle_ms": wanted.settle_ms,
            "exempt": wanted.exempt,
        }
    ).encode()


def asked(message: bytes) -> Wanted:
    """What the daemon asked. Raises ValueError where it is of another version."""
    words = _understood(message)
    above, pid, path = words["names"] or ("", 0, "")
    return Wanted(
        Capture(
            {int(request): bytes.fromhex(shape) for request, shape in words["shapes"].items()},
            tuple(bytes.fromhex(rule) for rule in words["rules"]),
            {int(command): int(flags) for command, flags in words["watched"].items()},
            DriverFiles(*words["files"]),
        ),
        words["own"],
        words["budget"],
        Names(Path(above), pid, path) if above else None,
        words["settle_ms"],
        tuple(words["exempt"]),
    )


def answer(said: Answer) -> bytes:
    """The loader's message."""
    return json.dumps({"version": VERSION, **msgspec.structs.asdict(said)}).encode()


def answered(message: bytes) -> Answer:
    """What the loader said. Raises ValueError for what it never says, or where it is of another version."""
    words = _understood(message)
    return Answer(*(str(words.get(name, "")) for name in ("unable", "unpinned", "lenient")))


def _understood(message: bytes) -> dict[str, Any]:
    words = json.loads(message)
    if not isinstance(words, dict):
        raise ValueError("no message")
    if words.get("version") != VERSION:
        raise ValueError("another version of Runlist was installed meanwhile: start the daemon anew")
    return words
