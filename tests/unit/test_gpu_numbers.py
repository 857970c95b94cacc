"""Which GPU a number is that programs give the driver, as the daemon asks it."""

from __future__ import annotations

import asyncio
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


def asked(plane: Plane, *numbers: int) -> list[list[str | None]]:
    """What is known of these at first, and a moment later."""

    async def ask() -> list[list[str | None]]:
        one = gpus(plane)
        assert plane.asked == 0
        first = [one.numbered(number) for number in numbers]
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)
        return [first, [one.numbered(number) for number in numbers]]

    return asyncio.run(ask())


def test_the_driver_is_asked_once_and_nobody_waits_for_its_answer() -> None:
    plane = Plane(UUIDS)
    assert asked(plane, 3, 0, 1, -1, 1 << 32) == [[None] * 5, ["GPU-a", "GPU-b", None, None, None]]
    assert plane.asked == 1


@pytest.mark.parametrize("error", [NotSupportedError("no"), OSError("gone")])
def test_where_it_does_not_say_nobody_is_there(error: Exception) -> None:
    plane = Plane(error)
    assert asked(plane, 0) == [[None], [None]]
    assert plane.asked == 1
