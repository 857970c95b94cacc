"""GPU seconds of workloads as the exporter tells them, against the GPU's own switch log: tasks of 200 ms come and go.

The log is read by a reader of the benchmark's own. Each pod is a rule's label; --pods 0 has one workload, the user.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.harness import daemon
from bench.harness.benchmark import Needs
from bench.harness.figures import AT_MOST, Figure
from bench.harness.gpu_log import GpuLog
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess

NEEDS = Needs(modules=("prometheus_client",))

TASKS, AT_ONCE, WORK_S = 40, 2, 0.2
POD = "RUNLIST_BENCH_POD"
SETTLED_S = 5.0
"""After which everything is charged: a task's account closes two seconds after its end."""

_HELD = "runlist_workload_gpu_held_seconds_total"


def add_options(parser: argparse._ArgumentGroup) -> None:
    """Those of this benchmark."""
    parser.add_argument("--pods", type=int, default=4, help="how many workloads; 0: one, without labels")
    parser.add_argument("--tasks", type=int, default=TASKS, help="how many processes come and go, of all pods")


def measure(options: argparse.Namespace) -> list[Figure]:
    """Processes that work for 200 ms from their first context on, two at a time, and are killed in the middle of it."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "rules.toml").write_text(rules(options.pods))
        stack.enter_context(daemon.started(folder, "runlist.daemon", "--rules", str(folder / "rules.toml")))
        client = stack.enter_context(Client.open())
        stays = stack.enter_context(_task(0, options.pods))
        _wait_until_managed(client, stays.pid)  # the daemon's log is open from here on
        client.suspend(stays.pid)  # else it has the GPU, idle, between the looks with which this begins
        log = stack.enter_context(GpuLog())
        time.sleep(SETTLED_S)
        before, began = exported(), log.forget()
        pids: dict[str, list[int]] = defaultdict(list)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = [pool.submit(_run, number, options.pods) for number in range(options.tasks)]
            while not all(run.done() for run in runs):
                time.sleep(0.2)
                log.read()
        for number, run in enumerate(runs):
            pids[_pod(number, options.pods)].append(run.result())
        pids[_pod(0, options.pods)].append(stays.pid)
        time.sleep(SETTLED_S)
        span, after = log.span(began), exported()
    known = {pod: sum(span.held(pid) for pid in of) * span.seconds for pod, of in pids.items()}
    told = {pod: after.get(pod, 0.0) - before.get(pod, 0.0) for pod in known}
    worst = max(abs(told[pod] / known[pod] - 1) for pod in known)
    details = {"by the switch log, s": known, "by the exporter, s": told, "records lost": log.dropped}
    name = f"GPU seconds of {len(known)} workload{'s' * (len(known) > 1)}, {options.tasks} tasks of {WORK_S * 1e3:g} ms"
    return [Figure(f"{name}: off the switch log by, worst", worst * 100, AT_MOST, 0.1, "%", details)]


def rules(pods: int) -> str:
    """A rule for each pod."""
    made = [
        f'[[rule]]\nenvironment = {{ {POD} = "{number}" }}\nset.class = "normal"\n'
        f'labels = {{ pod = "{_pod(number, pods)}" }}\n'
        for number in range(pods)
    ]
    return "\n".join(made) or f'[[rule]]\nenvironment = {{ {POD} = "0" }}\nset.class = "normal"\n'


def exported() -> dict[str, float]:
    """GPU seconds by pod, as a scraper reads them; "" for what has none."""
    from prometheus_client.parser import text_string_to_metric_families

    from runlist.integrations.exporter.serve import Exporter, Options

    exporter = Exporter(Options())
    _, text = exporter.text(exporter.look(), openmetrics=False)
    held: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name == _HELD:
                held[sample.labels.get("pod", "")] += sample.value
    return held


def _pod(number: int, pods: int) -> str:
    return f"pod-{number % pods}" if pods else ""


def _task(number: int, pods: int) -> WorkloadProcess:
    return WorkloadProcess("batch", environment={**os.environ, POD: str(number % pods if pods else 0)})


def _run(number: int, pods: int) -> int:
    with _task(number, pods) as process:  # it measures how long its kernels are, before it is ready
        process.run()
        time.sleep(WORK_S)
        return process.pid


def _wait_until_managed(client: Client, pid: int) -> None:
    deadline = time.monotonic() + 20
    while pid not in {task.pid for task in client.ps()}:
        if time.monotonic() > deadline:
            raise RuntimeError("the daemon does not manage what its rules say")
        time.sleep(0.05)
