"""What a field of a view means: each says its kind, a line of help and its unit where it is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import get_type_hints

import msgspec


class Kind(StrEnum):
    """What a field is: a number that goes up and down, a number that only grows, or a label: all that is no number, or
    whose number names something.
    """

    LABEL = "label"
    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Field:
    """`unit` is as people write it; a `share` is a part of the GPU's time, 0 to 1. `of` is what a counter is called
    where it is counted, if that is another name. `now` is what replaced a field that is kept for those who know it.
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
