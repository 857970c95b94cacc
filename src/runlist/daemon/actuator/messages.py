"""Messages between the daemon and its actuator, in bytes: protocol/actuator.toml."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runlist.planes.interface import Prepared
from runlist.protocol import actuator_autogen as protocol
from runlist.protocol.actuator_autogen import Kind
from runlist.structure import Structure

_MESSAGE, _WORD, _TARGET, _RESULT = (
    Structure(protocol.STRUCTS[name]) for name in ("MESSAGE", "WORD", "TARGET", "RESULT")
)


class Result(msgspec.Struct, frozen=True):
    """What became of a target. Times are seconds of the monotonic clock; `done` is whether it is suspended."""

    woke: float
    began: float
    ended: float
    done: bool


class Said(msgspec.Struct, frozen=True):
    """A message of the actuator. What a kind has no use for is 0, or empty."""

    kind: Kind
    arm: int
    word: int
    error: int
    results: tuple[Result, ...]


def arm(number: int, words: Sequence[int], targets: Sequence[Prepared]) -> bytes:
    """An arm: where its words are in their files, and what is sent for its targets."""
    parts = [bytes(_MESSAGE.pack(kind=Kind.ARM, id=number, words=len(words), targets=len(targets)))]
    parts += [bytes(_WORD.pack(at=at)) for at in words]
    for target in targets:
        parts += [bytes(_TARGET.pack(off_steps=len(target.off), on_steps=len(target.on))), *target.off, *target.on]
    return b"".join(parts)


def disarm(number: int) -> bytes:
    """The word to let go of an arm."""
    return bytes(_MESSAGE.pack(kind=Kind.DISARM, id=number))


def said(message: bytes) -> Said:
    """What the actuator says. Raises ValueError for what it never says."""
    if len(message) < _MESSAGE.size:
        raise ValueError("it is too short")
    kind, word, number, _, targets, error = _MESSAGE.struct.unpack_from(message)
    body = message[_MESSAGE.size :]
    if len(body) != targets * _RESULT.size:
        raise ValueError("it has another length")
    results = tuple(
        Result(woke / 1e9, began / 1e9, ended / 1e9, done=not (failed or status))
        for woke, began, ended, failed, status in _RESULT.struct.iter_unpack(body)
    )
    return Said(Kind(kind), number, word, error, results)
