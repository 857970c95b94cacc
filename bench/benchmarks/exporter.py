"""What the exporter costs on a node with 200 pods and 500 tasks: CPU time, memory, and how long a scrape takes.

The daemon is a stand-in that answers at once, so that the figures are the exporter's own.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.harness.benchmark import Needs
from bench.harness.cpu import Used, resident_mb
from bench.harness.figures import AT_MOST, Figure
from runlist import __version__, wire
from runlist.protocol import environment_autogen as names
from runlist.views.structs import GpuView, TaskView, WorkloadView

NEEDS = Needs(modules=("prometheus_client",))

PODS, TASKS, ENDED, GPUS = 200, 500, 800, 8
EVERY_S, SCRAPES = 15.0, 3
"""As Prometheus asks by default, and a quick look at how long one takes."""
QUICK = 10
_GPU = "GPU-4e3db026-c5f4-6c0f-e70a-eeef00a48f{:02x}"


def measure(scrapes: int = SCRAPES) -> list[Figure]:
    """Scrapes by one Prometheus, then ten as fast as looks change."""
    with tempfile.TemporaryDirectory() as name, _daemon(Path(name)), _exporter(Path(name)) as (pid, port):
        length = len(_scrape(port))
        used = Used([pid])
        for _ in range(scrapes):
            time.sleep(EVERY_S)
            _scrape(port)
        share = used.share()
        took = []
        for _ in range(QUICK):
            time.sleep(1.1)  # a look serves for a second
            began = time.perf_counter()
            _scrape(port)
            took.append(time.perf_counter() - began)
        memory = resident_mb(pid)
    load = f"{PODS} pods, {TASKS} tasks"
    return [
        Figure(f"exporter, {load}: CPU at a scrape each {EVERY_S:g} s", share * 100, AT_MOST, 1, "% of a core"),
        Figure(f"exporter, {load}: memory", memory, AT_MOST, 80, "MB"),
        Figure(f"exporter, {load}: a scrape, slowest of {QUICK}", max(took) * 1e3, AT_MOST, 100, "ms",
               {"each": [round(one * 1e3, 2) for one in took], "bytes": length}),
    ]  # fmt: skip


def _labels(number: int) -> dict[str, str]:
    return {"pod": f"inference-server-{number:04d}-7d9f8c6b5", "namespace": f"team-{number % 20}", "container": "main"}


def _task(number: int) -> TaskView:
    return TaskView(
        pid=10_000 + number, gpu=_GPU.format(number % GPUS), task_class="normal", command="python serve.py", user=0,
        group=f"pod {number % PODS}", weight=100, cap_percent=50.0, budget_us=None, period_us=None,
        target_p99_us=5000.0, p99_us=4321.0, segment=None, timeslice_us=2000, enabled=True, suspended=False,
        policy="priority", rule=f"/run/runlist/rules.d/kubernetes-{number}.toml:1", why="it has work", groups=4,
        channels=20, corrections=0, discovery_ms=1.0, attach_ms=2.0, memory_bytes=3 << 30,
        memory_limit_bytes=20 << 30, memory_overhead_bytes=1 << 20, enforcement="memory, queries", cap_by="driver",
        reached_by="own right", usage_source="switch log", share_1s=0.0123, share_60s=0.02, history=[0.0123] * 60,
        turns_per_s=400.0, gpu_seconds_held=1234.567891, gpu_seconds_worked=1200.123456, switches=123_456_789,
        command_line="python serve.py " + "--option value " * 60, labels=_labels(number % PODS),
        cgroup=f"/kubepods.slice/kubepods-pod{number:032x}.slice/cri-containerd-{number:064x}.scope",
        container=f"{number:064x}",
    )  # fmt: skip


def _workload(number: int) -> WorkloadView:
    return WorkloadView(
        gpu=_GPU.format(number % GPUS), user=0, labels=_labels(number), gpu_seconds_held=1234.567891 + number,
        gpu_seconds_worked=1200.1, gpu_seconds_idle=34.4, switches=1234567, suspensions=12, tasks_ended=number,
    )  # fmt: skip


def _gpu(number: int) -> GpuView:
    return GpuView(
        gpu=_GPU.format(number), driver="nvidia", policy="priority", tasks=TASKS // GPUS, records_lost=0,
        memory_size_bytes=140 << 30, memory_used_bytes=100 << 30, usage_source="switch log", share_1s=0.9,
        share_60s=0.9, history=[0.9] * 60, turns_per_s=800.0,
    )  # fmt: skip


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    """Answers every request with what it has; the frames are made once."""
    status = wire.DaemonStatus(
        pid=os.getpid(), version=__version__, driver="nvidia", policy="priority", policy_options={}, private=False,
        keeper_pid=1, tasks=TASKS, gpus=[_gpu(number) for number in range(GPUS)], started_s=1.0,
    )  # fmt: skip
    answers: dict[type[Any], bytes] = {
        wire.GetStatus: wire.encode(status),
        wire.ListTasks: wire.encode(wire.Tasks([_task(number) for number in range(TASKS)], [], __version__)),
        wire.ListWorkloads: wire.encode(wire.Workloads([_workload(number) for number in range(PODS + ENDED)])),
    }
    decoder = msgspec.json.Decoder(wire.Request)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / names.STREAM_SOCKET))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = wire.Connection(listener.accept()[0])
                    with contextlib.suppress(OSError):
                        while (body := connection.receive()) is not None:
                            connection.send_frame(answers[type(decoder.decode(body))])
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _exporter(folder: Path) -> Iterator[tuple[int, int]]:
    """Its process id and port."""
    environment = {**os.environ, names.SOCKET: str(folder / names.STREAM_SOCKET)}
    words = [sys.executable, "-m", "runlist.cli", "exporter", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            if (found := re.search(r":(\d+)/metrics", line)) is None:
                raise RuntimeError(f"the exporter did not start: {line.strip()}")
            yield process.pid, int(found[1])
        finally:
            process.terminate()
            process.wait()


def _scrape(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        text = connection.getresponse().read()
    if b"\nrunlist_up 1.0\n" not in text:
        raise RuntimeError("the exporter does not see the daemon")
    return text
