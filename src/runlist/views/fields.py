"""The meaning of a view's fields: each declares its kind, a line of help and its unit."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache, partial
from typing import get_type_hints

import msgspec


class Kind(StrEnum):
    """The kind of a field: a number that goes up and down, a number that only grows, or a label, which is a text or a
    number that names something.
    """

    LABEL = "label"
    GAUGE = "gauge"
    COUNTER = "counter"


class Field(msgspec.Struct, frozen=True):
    """`unit` is as people write it; a `share` is a part of the GPU's time, 0 to 1. `of` is the name under which a
    counter is counted, if that is another. `now` is the successor of a field that is kept for old readers.
    """

    kind: Kind
    help: str
    unit: str = ""
    of: str = ""
    now: str = ""


label = partial(Field, Kind.LABEL)
gauge = partial(Field, Kind.GAUGE)
counter = partial(Field, Kind.COUNTER)


@cache
def fields(view: type[msgspec.Struct]) -> Mapping[str, Field]:
    """Every field of a view by name, in order. Raises StopIteration for a field that does not say what it means."""
    hints = get_type_hints(view, include_extras=True)
    return {
        name: next(iter(one for one in getattr(hints[name], "__metadata__", ()) if isinstance(one, Field)))
        for name in view.__struct_fields__
    }
