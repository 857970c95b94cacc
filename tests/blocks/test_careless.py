"""Careless words to kernels that stop between blocks: one clear line, and nothing that looks done and is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runlist import blocks
from runlist.blocks.host import Host
from runlist.errors import RunlistError, UsageError

ONE = 'extern "C" __global__ void one(int* x, float by, int n) { if (threadIdx.x == 0) atomicAdd(x, n); }'


@pytest.fixture
def kernel(host: Host) -> blocks.Resumable:
    return blocks.resumable(ONE, device=host)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": 1.5}, "1.5 is no grid"),
        ({"grid": None}, "None is no grid"),
        ({"arguments": [1]}, "kernel one has 3 parameters: 1 were given"),
        ({"arguments": [None, 1.0, 2, 3]}, "kernel one has 3 parameters: 4 were given"),
        ({"shared": -1}, "no block has -1 bytes"),
    ],
)
def test_what_no_launch_has_is_named(kernel: blocks.Resumable, changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"grid": 5, "block": 32, "arguments": [kernel.device.allocate(4), 1.0, 2], **changes}
    with pytest.raises(UsageError, match=said):
        kernel.launch(**given)


def test_a_text_without_kernels_is_told_what_one_is(host: Host) -> None:
    with pytest.raises(UsageError, match="the text has no kernel: a function that is __global__ void"):
        blocks.resumable("int f() { return 1; }", device=host)


@pytest.mark.parametrize("offset", [-1, 2, 1 << 40])
def test_nothing_is_written_beside_memory(host: Host, offset: int) -> None:
    memory = host.allocate(4)
    with pytest.raises(UsageError, match="do not fit into 4"):
        host.write(memory, b"abc", offset)
    assert host.read(memory) == bytes(4)
    with pytest.raises(UsageError, match="no memory has -1 bytes"):
        host.allocate(-1)


def test_a_sequence_takes_kernels_as_they_were_made_and_no_other_calls(kernel: blocks.Resumable, host: Host) -> None:
    x = host.allocate(4)
    with blocks.BLPExecutor(host) as steps:
        given: Any = kernel
        steps.add(given, 5, 32, [x, 1.0, 2])
        text: Any = "later"
        with pytest.raises(TypeError, match="a call of the host is a function, not 'later'"):
            steps.call(text)
        steps.run()
    assert host.read(x) == (10).to_bytes(4, "little")


@pytest.mark.parametrize(
    "use",
    [
        lambda steps, kernel, x: steps.add(kernel.function, 5, 32, [x, 1.0, 2]),
        lambda steps, kernel, x: steps.call(print),
        lambda steps, kernel, x: steps.start(),
        lambda steps, kernel, x: steps.run(),
        lambda steps, kernel, x: steps.clear(),
        lambda steps, kernel, x: steps.resume(blocks.Saved(0, 0)),
    ],
)  # fmt: skip
def test_a_closed_sequence_does_nothing_more(kernel: blocks.Resumable, use: Callable[..., None]) -> None:
    x = kernel.device.allocate(4)
    steps = kernel.launch(5, 32, [x, 1.0, 2])
    assert steps.wait(30)
    steps.close()
    with pytest.raises(RunlistError, match="this sequence was closed: make another"):
        use(steps, kernel, x)
    assert steps.wait(1)
    assert kernel.device.read(x) == (10).to_bytes(4, "little")
    steps.close()


def test_a_stopper_that_stops_nobody_says_so(tmp_path: Path) -> None:
    stopper = blocks.Stopper(tmp_path / "page")
    if (child := os.fork()) == 0:
        try:
            stopper.stop()
        except RunlistError as error:
            os._exit(7 if "came by fork" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    stopper.stop()
    stopper.close()
    with pytest.raises(RunlistError, match="this stopper was closed"):
        stopper.stop()
    with pytest.raises(RunlistError, match="this stopper was closed"), stopper.stopped():
        raise AssertionError
    stopper.close()
