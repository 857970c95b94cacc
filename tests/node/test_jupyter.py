"""A real notebook kernel on the emulated GPU: batch while nobody uses it, normal while a cell runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, Daemon, wait_for
from tests.fixtures.node import needs_modules

pytestmark = [
    needs_modules("ipykernel", "jupyter_client"),
    pytest.mark.skipif(ON_NVIDIA, reason="the kernel uses the emulated GPU"),
]

GPU = """
import os
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu
gpu = Gpu(0, blocking=True)
work = Accumulator(gpu, blocks=8)
rounds = work.rounds_for(1000)
def compute():
    work.launch(rounds)
    work.synchronize()
compute()
os.getpid()
"""
LOAD = """
get_ipython().config.Runlist.after_s = 1
get_ipython().run_line_magic("load_ext", "runlist.integrations.jupyter")
"""


class Kernel:
    """A kernel, as a notebook server runs it."""

    def __init__(self, commands: Commands) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(
            startup_timeout=60, env={**commands.environment, "IPYTHONDIR": str(commands.folder / "ipython")}
        )

    def run(self, code: str) -> str:
        """What a cell gives."""
        found: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            assert message["msg_type"] != "error", "\n".join(content["traceback"])
            if message["msg_type"] == "execute_result":
                found.append(content["data"]["text/plain"])

        reply = self.client.execute_interactive(code, timeout=60, output_hook=hear)
        assert reply["content"]["status"] == "ok", reply
        return "".join(found)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(commands: Commands) -> Iterator[Kernel]:
    made = Kernel(commands)
    yield made
    made.close()


def class_of(daemon: Daemon, pid: int) -> str:
    return next((task.task_class for task in daemon.client.ps() if task.pid == pid), "")


def test_a_notebook_gives_way_while_nobody_uses_it(daemon: Daemon, kernel: Kernel) -> None:
    pid = int(kernel.run(GPU))
    kernel.run(LOAD)
    wait_for(lambda: class_of(daemon, pid) == "batch", "it is idle")
    kernel.client.execute("import time\nend = time.time() + 4\nwhile time.time() < end: compute()")
    wait_for(lambda: class_of(daemon, pid) == "normal", "it works")
    began = time.monotonic()
    wait_for(lambda: class_of(daemon, pid) == "batch", "it is idle again")
    assert time.monotonic() - began > 2  # a long cell is work, all the time
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        kernel.run("1 / 0")
    wait_for(lambda: class_of(daemon, pid) == "normal", "a cell that fails is one, too")
    wait_for(lambda: class_of(daemon, pid) == "batch", "and has an end")
    kernel.run('get_ipython().run_line_magic("unload_ext", "runlist.integrations.jupyter")\ncompute()')
    time.sleep(0.5)
    assert class_of(daemon, pid) == "batch"


def test_a_notebook_needs_no_daemon(commands: Commands, kernel: Kernel) -> None:
    kernel.run(GPU)
    kernel.run(LOAD)
    assert kernel.run("compute(); 6 * 7") == "42"
    with pytest.raises(AssertionError, match="take deadline, latency, normal, batch"):
        kernel.run('get_ipython().config.Runlist.idle = "asleep"' + LOAD.replace("load_ext", "reload_ext"))
