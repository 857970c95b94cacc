"""Which GPU a number is that programs give the driver, as the daemon asks it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.gpu.gpus import Gpus
from runlist.errors import NotSupportedError
from runlist.policies import PolicySpec

UUIDS = {0: "GPU-b", 3: "GPU-a"}


class Plane:
    """Counts how often it is asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    def gpu_numbers(self) -> dict[int, str]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict(self.answer)


def gpus(plane: Plane) -> Gpus:
    made: Any = SimpleNamespace(gpu_numbers=plane.gpu_numbers)
    return Gpus(made, PolicySpec(), lambda pid, error: None)


def test_the_driver_is_asked_once() -> None:
    plane = Plane(UUIDS)
    one = gpus(plane)
    assert plane.asked == 0
    assert [one.numbered(number) for number in (3, 0, 1, -1, 1 << 32)] == ["GPU-a", "GPU-b", None, None, None]
    assert plane.asked == 1


@pytest.mark.parametrize("error", [NotSupportedError("no"), OSError("gone")])
def test_where_it_does_not_say_nobody_is_there(error: Exception) -> None:
    plane = Plane(error)
    one = gpus(plane)
    assert [one.numbered(0), one.numbered(0)] == [None, None]
    assert plane.asked == 1
