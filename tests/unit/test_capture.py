"""What the kernel plane is told to capture of requests, by the driver's own structures (nvos.h) and numbers."""

from __future__ import annotations

import pytest

from runlist.planes.nvidia.capture import CAPTURE
from runlist.protocol import kernel_autogen as kernel
from runlist.protocol.kernel_autogen import Kind, Verb
from runlist.structure import Structure

SHAPE, RULE = (Structure(kernel.STRUCTS[name]) for name in ("SHAPE", "RULE"))


def request(number: int, size: int) -> int:
    """_IOWR('F', number, structure)."""
    return 3 << 30 | size << 16 | ord("F") << 8 | number


@pytest.mark.parametrize(
    ("number", "size", "verb", "places"),
    [
        (0x2B, 32, Verb.ALLOCATE, {"client": 0, "parent": 4, "object": 8, "class": 12, "params": 16, "status": 28}),
        (0x2B, 48, Verb.ALLOCATE, {"client": 0, "parent": 4, "object": 8, "class": 12, "params": 16, "status": 40}),
        (0x29, 16, Verb.FREE, {"client": 0, "object": 8, "status": 12}),
        (0x2A, 32, Verb.CONTROL, {"client": 0, "object": 4, "class": 8, "status": 28}),
        (
            0x34, 28, Verb.DUPLICATE,
            {"client": 0, "parent": 4, "object": 8, "source_client": 12, "source": 16, "status": 24},
        ),
        (211, 16, Verb.TRANSFER, {"object": 0, "parent": 4, "status": 8}),
    ],
)  # fmt: skip
def test_where_in_a_request_is_what(number: int, size: int, verb: Verb, places: dict[str, int]) -> None:
    shape = dict(SHAPE.unpack(CAPTURE.shapes[request(number, size)]))
    assert (shape.pop("verb"), shape.pop("bytes")) == (verb, size)
    found = {name.removesuffix("_at"): at for name, at in shape.items() if at != kernel.NOWHERE}
    assert found == places


def test_no_other_requests_are_captured() -> None:
    assert len(CAPTURE.shapes) == 6


@pytest.mark.parametrize(
    ("class_", "kind"),
    [
        (0x0, Kind.CLIENT), (0x1, Kind.CLIENT), (0x41, Kind.CLIENT), (0x80, Kind.DEVICE), (0x2080, Kind.SUBDEVICE),
        (0xA06C, Kind.GROUP), (0xA06F, Kind.CHANNEL), (0xC86F, Kind.CHANNEL), (0xCBC0, Kind.COMPUTE),
        (0xC8B5, Kind.COPY), (0x90F1, Kind.OTHER), (0x40, Kind.OTHER), (0xC0, Kind.OTHER), (0xB5, Kind.OTHER),
        (0x10041, Kind.OTHER), (0x10080, Kind.OTHER), (0x1A06C, Kind.OTHER),
    ],
)  # fmt: skip
def test_what_kind_of_object_a_class_is_of(class_: int, kind: Kind) -> None:
    """As the programs look it up: the first rule that fits."""
    rules = [RULE.struct.unpack(rule) for rule in CAPTURE.rules]
    fits = (of for mask, value, least, of in rules if class_ & mask == value and class_ >= least)
    assert next(fits, Kind.OTHER) == kind


def test_controls_of_groups_and_channels_are_counted_and_those_that_undo_a_share_are_told() -> None:
    own, told, others = kernel.WATCH_OWN, kernel.WATCH_EVENT, kernel.WATCH_OTHERS | kernel.WATCH_PARTLY
    assert CAPTURE.watched == {
        0xA06C0103: own | told,  # its slice
        0x2080110B: own | told | others,  # channels, of whomever, are disabled
        0xA06C0107: own,  # how often the runlist names it
        0xA06C0110: own,  # it stays on the GPU
        0xA06F0111: own,  # a slice ends
        0xA06C0101: 0,  # which each group needs once
        0xA06C0104: 0,
        0xA06C0105: 0,
        0xA06C0106: 0,
    }
