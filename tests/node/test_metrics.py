"""What the exporter writes, and what is shipped for it, before Prometheus itself."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runlist.views.structs import WorkloadView
from tests.fixtures.daemon import ROOT, Commands, Daemon, Worker, short_path, wait_for
from tests.fixtures.fake_daemon import FakeDaemon, fake, gpu_view, start_fake, status, view
from tests.fixtures.metrics import ALERTS, ALERTS_TEST, all_expressions, of_dashboard, of_page
from tests.fixtures.node import needs_modules, needs_programs, program

__all__ = ["fake", "short_path", "start_fake"]

pytestmark = [needs_programs("promtool", "prometheus"), needs_modules("prometheus_client")]

LABELS = {"pod": 'web "0"\n\\', "namespace": "shop", "container": "main"}
GPU = "GPU-4e3db026-c5f4"


def promtool(*words: str | Path, text: bytes | None = None) -> str:
    tool = program("promtool")
    assert tool is not None
    done = subprocess.run([tool, *words], input=text, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


def test_alerts_are_rules_and_fire_when_they_should() -> None:
    promtool("check", "rules", ALERTS)
    promtool("test", "rules", ALERTS_TEST)


def test_every_expression_is_one(tmp_path: Path) -> None:
    """Prometheus' own parser takes them all."""
    rules = [{"record": f"r:{number}", "expr": text} for number, text in enumerate(all_expressions())]
    path = tmp_path / "rules.json"  # which is YAML, too
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


@pytest.fixture
def busy(fake: FakeDaemon) -> FakeDaemon:
    """A daemon with a workload that has a bit of everything."""
    fake.tasks = [
        view(pid=1, labels=LABELS, cap_percent=30.0, p99_us=2500.0, target_p99_us=5000.0, memory_limit_bytes=1 << 30,
             memory_overhead_bytes=1 << 20, group="a", submissions=5, seconds_waited=1.5, request_us=100.0,
             budget_us=1000, period_us=20_000),
        view(pid=2, user=65534),
    ]  # fmt: skip
    fake.workloads = [
        WorkloadView(gpu=GPU, user=0, labels=LABELS, gpu_seconds_held=12.5, memory_refusals=2),
        WorkloadView(gpu=GPU, user=65534, gpu_seconds_held=1.5),
        WorkloadView(gpu=GPU, user=None, folded=True, gpu_seconds_held=100.0),
    ]
    gpu = gpu_view(gives_way="slice", gives_way_slice_us=200, switches_share=0.01, switch_budget_share=0.1,
                   pauses_per_s=3.0, memory_unowned_bytes=5)  # fmt: skip
    fake.status = status(gpus=[gpu], troubles=["lost"], started_s=time.time(), waiting=["process 1"])
    return fake


def once(*words: str) -> bytes:
    """All metrics, as they are printed."""
    return subprocess.check_output([sys.executable, "-m", "runlist.cli", "exporter", "--once", *words], cwd=ROOT)


def test_the_metrics_are_without_fault(busy: FakeDaemon) -> None:
    """Promtool's linter of names, helps and types; the names of others are as they are."""
    text = once("--per-process")
    assert b"\nrunlist_up 1.0\n" in text
    said = promtool("check", "metrics", text=text)
    assert "runlist" not in said, said
    promtool_of_others = subprocess.run(
        [program("promtool") or "", "check", "metrics"], input=once("--names", "dcgm,kai,hami"), capture_output=True
    )
    assert b"error while linting" not in promtool_of_others.stderr  # it can be read


class Prometheus:
    """A real one, that scrapes `targets` once a second and has the alerts."""

    def __init__(self, folder: Path, port: int, target: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {"job_name": "runlist", "honor_labels": True, "static_configs": [{"targets": [target]}]}
            ],
        }
        path = folder / "prometheus.yml"
        path.write_text(json.dumps(config))
        promtool("check", "config", path)
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program("prometheus") or "", f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, what: str, **words: str) -> Any:
        with contextlib.suppress(OSError):
            query = urllib.parse.urlencode(words)
            with urllib.request.urlopen(f"{self.url}/api/v1/{what}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        return None

    def results(self, expression: str) -> list[Any]:
        """Its series that have a number now."""
        found = self.ask("query", query=expression)
        series = [] if found is None else found["result"]
        return [one for one in series if math.isfinite(float(one["value"][1]))]

    def value(self, expression: str) -> float | None:
        """Of a single series, or None."""
        found = self.ask("query", query=expression)
        results = [] if found is None else found["result"]
        assert len(results) <= 1, results
        return float(results[0]["value"][1]) if results else None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def prometheus(folder: Path, environment: Mapping[str, str]) -> Iterator[Prometheus]:
    """One that scrapes an exporter of its own."""
    exporter = subprocess.Popen(
        [sys.executable, "-m", "runlist.cli", "exporter", "--listen", "127.0.0.1:0", "--names", "dcgm,kai,hami"],
        cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert exporter.stderr is not None
    found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", exporter.stderr.readline())
    assert found is not None
    server = Prometheus(folder, free_port(), found[1])
    try:
        yield server
    finally:
        for process in (server.process, exporter):
            process.terminate()
            process.wait(30)


@pytest.fixture
def scraped(busy: FakeDaemon, tmp_path: Path) -> Iterator[Prometheus]:
    with prometheus(tmp_path, os.environ) as server:
        yield server


def test_a_real_prometheus_scrapes_it_and_answers_the_dashboards_questions(
    scraped: Prometheus, busy: FakeDaemon
) -> None:
    pod = 'runlist_workload_gpu_held_seconds_total{namespace="shop", pod="web \\"0\\"\\n\\\\"}'
    wait_for(lambda: scraped.value("sum(runlist_up)") == 1, timeout=60)
    assert scraped.value(pod) == 12.5
    assert scraped.value("sum(runlist_workload_gpu_held_seconds_total)") == 114
    assert scraped.value('sum(DCGM_FI_DEV_GPU_UTIL{namespace="shop"})') == 25
    (target,) = scraped.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    wait_for(lambda: (scraped.value("count_over_time(runlist_up[1m])") or 0) > 3, timeout=30)
    for expression in all_expressions():
        assert scraped.ask("query", query=expression) is not None, expression
    alerts = {alert["labels"]["alertname"] for alert in scraped.ask("alerts")["alerts"]}
    assert "RunlistDaemonInTrouble" in alerts  # it waits for ten minutes, and is pending
    busy.close()
    wait_for(lambda: scraped.value("sum(runlist_up)") == 0, timeout=30)
    wait_for(lambda: scraped.value(f"absent({pod})") == 1, timeout=30)  # it is told by nobody, and not as it was
    assert scraped.ask("targets")["activeTargets"][0]["health"] == "up"


RULES = """
[[rule]]
environment = { POD = "web" }
labels = { namespace = "shop", pod = "web", container = "main" }
set = { class = "latency", p99 = "5ms" }

[[rule]]
environment = { POD = "train" }
labels = { namespace = "lab", pod = "train", container = "main" }
set = { class = "batch", weight = 30, cap = "60%", memory = "2G", group = "user" }
"""


def test_every_panel_shows_something_of_a_real_daemon(
    commands: Commands, start_daemon: Callable[..., Daemon], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    """No panel and no question of the documents is empty on a node with a latency program and a batch job."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    daemon = start_daemon("--rules", str(rules))
    web, train = (worker(environment={**commands.environment, "POD": pod}) for pod in ("web", "train"))
    wait_for(lambda: len(daemon.client.ps()) == 2, "both to be managed")
    asked = dict.fromkeys([*(text for _, text in of_dashboard()), *of_page()])
    empty: list[str] = []
    with prometheus(tmp_path, commands.environment) as server:

        def all_answered() -> bool:
            web.do("report 2500")
            empty[:] = [text for text in asked if not server.results(text)]
            return not empty

        try:
            wait_for(all_answered, timeout=60)
        except AssertionError:
            raise AssertionError("\n".join(["these show nothing:", *empty])) from None
        rules_seen = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
        assert {(rule["health"], rule.get("lastError", "")) for rule in rules_seen} == {("ok", "")}
        held = 'sum by (namespace, pod) (runlist_workload_gpu_held_seconds_total{folded=""})'
        pods = {tuple(one["metric"].values()) for one in server.results(held)}
        assert pods == {("shop", "web"), ("lab", "train")}
    assert train.quit()
    assert web.quit()
