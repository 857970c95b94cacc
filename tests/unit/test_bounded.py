"""How many parts an answer has, before it is read."""

from __future__ import annotations

import random

import pytest

from runlist.integrations.kubernetes import cri_autogen as cri
from runlist.integrations.kubernetes.bounded import has_more_parts


def test_fields_of_every_kind_are_counted_and_those_of_parts_are_not() -> None:
    labels = {f"key {number}": "x" * number for number in range(300)}
    one = cri.Container(id="one", state=cri.CONTAINER_EXITED, created_at=1 << 62, labels=labels)
    for message, fields in ((one, 303), (cri.ListContainersResponse(containers=[one] * 7), 7), (cri.Container(), 0)):
        data = message.SerializeToString()
        assert not has_more_parts(data, fields)
        assert has_more_parts(data, fields - 1) == (fields > 0)


def test_fields_of_fixed_length() -> None:
    data = b"\x09" + bytes(8) + b"\x15" + bytes(4)
    assert not has_more_parts(data, 2)
    assert has_more_parts(data, 1)


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_counted_to_an_end(seed: int) -> None:
    """A part has a byte at least."""
    data = random.Random(seed).randbytes(1000)
    assert not has_more_parts(data, len(data))
