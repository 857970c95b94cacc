"""What the daemon and the loader say to each other: one message each way, as JSON, on a SOCK_SEQPACKET socket."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from runlist.planes.interface import Capture, DriverFiles
from runlist.planes.kernel.loading import Wanted
from runlist.planes.kernel.names import Names

MAX_BYTES = 1 << 16
SHARED = (
    "events", "groups", "processes", "members", "controls", "objects", "files", "counters", "policy", "force", "exempt",
    "refusals", "swept", "asked",
)  # fmt: skip
"""The maps whose descriptors come with the answer, in this order."""


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
    """What the daemon asked."""
    words = json.loads(message)
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
    return json.dumps({"unable": said.unable, "unpinned": said.unpinned, "lenient": said.lenient}).encode()


def answered(message: bytes) -> Answer:
    """What the loader said. Raises ValueError for what it never says."""
    words = json.loads(message)
    if not isinstance(words, dict):
        raise ValueError("no answer")
    return Answer(*(str(words.get(name, "")) for name in ("unable", "unpinned", "lenient")))
