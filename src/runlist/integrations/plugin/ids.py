"""Ids of the devices that the plugin offers and the kubelet hands out.

An id names the GPU and the piece of it, `GPU-…::p07` or `GPU-…::m012`, so that whoever reads the kubelet's
pod-resources needs no other source.
"""

from __future__ import annotations

import re

from runlist.errors import UsageError
from runlist.integrations.kubernetes import names

GIB = 1 << 30
WHOLE = 100
"""Percent."""
LONGEST_ID = 63
_ID = re.compile(r"([\w.-]{1,50})::([pm])(\d{2,4})", re.ASCII)
_LETTERS = {names.SHARE_RESOURCE: "p", names.MEMORY_RESOURCE: "m"}


def device_id(resource: str, gpu: str, number: int) -> str:
    """The id of a piece of a GPU, of pieces from 0 on."""
    return f"{gpu}::{_LETTERS[resource]}{number:02d}"


def split_id(resource: str, text: str) -> tuple[str, int]:
    """The GPU and the number in an id. Raises UsageError for what is none of this resource."""
    found = _ID.fullmatch(text)
    if found is None or found[2] != _LETTERS[resource] or device_id(resource, found[1], int(found[3])) != text:
        raise UsageError(f"{text[:LONGEST_ID]!r} is no id of {resource}")
    return found[1], int(found[3])
