"""Device ids that the plugin offers and the kubelet hands out, and what a container was granted by them.

An id names the GPU and the piece of it, `GPU-…::p07` or `GPU-…::m012`, so that whoever reads the kubelet's
pod-resources needs no other source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runlist.errors import UsageError
from runlist.integrations.kubernetes import names
from runlist.integrations.parts import weight_of
from runlist.units import MAX_SIZE

GIB = 1 << 30
WHOLE = 100
"""Percent."""
LONGEST_ID = 63
_ID = re.compile(r"([\w.-]{1,50})::([pm])(\d{2,4})", re.ASCII)
_LETTERS = {names.SHARE_RESOURCE: "p", names.MEMORY_RESOURCE: "m"}


@dataclass(frozen=True, slots=True)
class Grant:
    """What a container has on each of some GPUs: percent of its time or None, bytes of its memory or None. Memory may
    be on other GPUs, since Kubernetes allocates each resource for itself.
    """

    gpus: tuple[str, ...] = ()
    percent: int | None = None
    memory: int | None = None
    memory_gpus: tuple[str, ...] = ()

    def settings(self) -> dict[str, str]:
        """As `runlist set` takes them: a whole GPU weighs what everybody does."""
        found = {}
        if self.percent is not None and self.percent < WHOLE:
            found["weight"] = str(weight_of(self.percent / WHOLE))
        if self.memory is not None:
            found["memory"] = str(self.memory)
        return found


def device_id(resource: str, gpu: str, number: int) -> str:
    """The id of a piece of a GPU, of pieces from 0 on."""
    return f"{gpu}::{_LETTERS[resource]}{number:02d}"


def split_id(resource: str, text: str) -> tuple[str, int]:
    """The GPU and the number in an id. Raises UsageError for what is none of this resource."""
    found = _ID.fullmatch(text)
    if found is None or found[2] != _LETTERS[resource] or device_id(resource, found[1], int(found[3])) != text:
        raise UsageError(f"{text[:LONGEST_ID]!r} is no id of {resource}")
    return found[1], int(found[3])


def of_annotations(annotations: Mapping[str, str]) -> Grant:
    """The grant that the annotations of a container tell: the kubelet writes them, as the plugin said. What makes no
    sense is left out.
    """
    percent, memory = (
        _number(annotations.get(name, ""), most)
        for name, most in ((names.GRANTED_SHARE, WHOLE), (names.GRANTED_MEMORY, MAX_SIZE))
    )
    gpus, memory_gpus = (
        tuple(gpu for gpu in annotations.get(name, "").split(",") if gpu)
        for name in (names.GRANTED_GPUS, names.GRANTED_MEMORY_GPUS)
    )
    return Grant(gpus, percent, memory, memory_gpus)


def of_devices(devices: Iterable[tuple[str, Iterable[str]]], percent_an_id: int = 1) -> Grant:
    """The grant of a container by the kubelet's pod-resources: names of resources, and the ids of each. An id of memory
    is 1 GiB; one of a share `percent_an_id`. Other resources are left out, and so are ids that are none.
    """
    pieces: dict[str, Counter[str]] = {name: Counter() for name in _LETTERS}
    for resource, ids in devices:
        if resource in pieces:
            for text in ids:
                try:
                    pieces[resource][split_id(resource, text)[0]] += 1
                except UsageError:
                    continue
    shares, memory = pieces[names.SHARE_RESOURCE], pieces[names.MEMORY_RESOURCE]
    return Grant(
        tuple(sorted(shares)),
        min(WHOLE, min(shares.values()) * percent_an_id) if shares else None,
        min(memory.values()) * GIB if memory else None,
        tuple(sorted(memory)),
    )


def _number(text: str, most: int) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= most else None
