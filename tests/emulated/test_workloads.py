"""The workloads as real processes, on the device of the session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from runlist.workloads.process import WorkloadError, WorkloadProcess, pause_all, run_all, start_all, stop_all
from tests.conftest import ON_NVIDIA, Tenant
from tests.fixtures.daemon import running, wait_for


def test_the_latency_program_answers_requests_and_its_numbers_are_right(tenant: Tenant) -> None:
    process = tenant("latency", "--rounds", "2000")
    process.run()
    window = process.measure(0.3)
    assert 1 <= len(window["latency_us"]) == len(window["response_us"]) <= 150
    assert min(window["latency_us"]) > 0
    assert process.quit()["correct"]


def test_the_batch_program_counts_its_kernels_and_its_numbers_are_right(tenant: Tenant) -> None:
    process = tenant("batch", "--rounds", "20000")
    process.run()
    assert process.measure(0.3)["kernels"] >= 4
    process.pause()
    assert process.measure(0.1)["kernels"] == 0
    process.run()
    assert process.measure(0.3)["kernels"] >= 4
    assert process.quit()["correct"]


def test_lengths_are_calibrated(tenant: Tenant) -> None:
    """A kernel asked to be ten times as long has about ten times the rounds."""
    short, long = (tenant("latency", "--kernel-us", text).ready["rounds"] for text in ("100", "1000"))
    assert 4 < long / short < 25


def test_two_programs_share_the_gpu_and_both_are_right(tenant: Tenant) -> None:
    latency, batch = tenant("latency", "--rounds", "5600"), tenant("batch", "--rounds", "50000")
    for process in (latency, batch):
        process.run()
        process.start()
    assert latency.measure(0.5)["latency_us"]
    assert batch.stop()["kernels"] > 0
    assert latency.quit()["correct"]
    assert batch.quit()["correct"]


def test_a_hint_takes_the_gpu_ahead_and_releases_in_order(tenant: Tenant) -> None:
    process = tenant("latency", "--rounds", "2000", "--hint-us", "200")
    process.run()
    assert process.measure(0.3)["latency_us"]
    assert process.quit()["correct"]


def test_the_timed_program_knows_how_long_it_kept_the_gpu(tenant: Tenant) -> None:
    process = tenant("timed", "--rounds", "50000", "--kernels", "20")
    process.run()
    window = process.measure(0.5)
    assert window["kernels"] == 20 * len(window["busy_s"]) > 0
    assert sum(window["busy_s"]) == pytest.approx(window["seconds"], rel=0.5)
    assert process.quit()["correct"]


def test_the_program_that_allocates_times_its_calls(tenant: Tenant) -> None:
    process = tenant("alloc")
    process.run()
    window = process.measure(0.2)
    assert len(window["latency_us"]) > 10
    assert min(window["latency_us"]) > 0
    process.quit()


def test_a_graph_does_the_same_work(tenant: Tenant) -> None:
    process = tenant("batch", "--graph", "--rounds", "2000")
    process.run()
    assert process.measure(0.3)["kernels"] >= 80
    assert process.quit()["correct"]


def test_the_rate_of_requests_changes_while_it_runs(tenant: Tenant) -> None:
    process = tenant("latency", "--rounds", "2000", "--poisson", "--report")
    process.run()
    process.set_rate(20)
    slow = len(process.measure(0.5)["latency_us"])
    process.set_rate(300)
    assert len(process.measure(0.5)["latency_us"]) > 2 * slow
    with pytest.raises(WorkloadError, match="a rate is a number above 0"):
        process.set_rate(0)
    assert process.quit()["correct"]


def test_several_programs_are_measured_together(tenant: Tenant) -> None:
    pair = [tenant("batch", "--rounds", "20000") for _ in range(2)]
    run_all(pair)
    start_all(pair)
    time.sleep(0.3)
    windows = stop_all(pair)
    pause_all(pair)
    assert all(window["kernels"] > 0 for window in windows)
    assert windows[0]["seconds"] == pytest.approx(windows[1]["seconds"], abs=0.2)


def test_a_process_is_known_before_it_is_ready(device_env: dict[str, str]) -> None:
    known: list[tuple[int, float]] = []

    def on_start(pid: int) -> None:
        known.append((pid, time.perf_counter()))

    with WorkloadProcess("latency", "--rounds", "10", environment=device_env, on_start=on_start) as process:
        assert known[0][0] == process.pid
        assert known[0][1] < process.ready["context_at"] < time.perf_counter()


def test_a_program_by_hand_measures_once(device_env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "runlist.workloads.batch", "--rounds", "2000", "--seconds", "0.2"]
    lines = subprocess.run(
        command, env=device_env, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert [line.split('"')[3] for line in lines] == ["ready", "window", "end"]
    assert '"correct": true' in lines[2]


def test_a_gpu_that_is_not_there_is_one_line(device_env: dict[str, str]) -> None:
    with pytest.raises(WorkloadError, match="there is no GPU 99"):
        WorkloadProcess("latency", "--gpu", "99", environment=device_env)


def test_a_program_ends_when_its_commands_end(tenant: Tenant) -> None:
    process = tenant("batch", "--rounds", "2000")
    process.run()
    process._process.stdin.close()
    assert process._process.wait(60) == 0


def test_death_in_a_window_is_told(tenant: Tenant) -> None:
    process = tenant("batch", "--rounds", "2000")
    process.run()
    process.start()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WorkloadError, match=r"batch ended early \(signal 9\)"):
        process.stop()


def test_a_request_of_steps_waits_for_each_or_once(tenant: Tenant) -> None:
    """Ten kernels a request; the host's part of nine gaps, or launches, is in each of the latencies."""
    for option in ("--gap-us", "--host-us"):
        process = tenant("latency", "--rounds", "500", "--steps", "10", option, "3000", "--period-ms", "40")
        process.run()
        latencies = process.measure(0.5)["latency_us"]
        assert min(latencies) > 9 * 3000
        assert process.quit()["correct"]


def test_a_hint_is_for_requests_of_one_kernel(device_env: dict[str, str]) -> None:
    with pytest.raises(WorkloadError, match="leave out --steps"):
        WorkloadProcess("latency", "--steps", "2", "--hint-us", "200", environment=device_env)


def test_a_batch_program_waits_after_as_many_launches_as_asked(tenant: Tenant) -> None:
    process = tenant("batch", "--rounds", "200", "--burst", "50")
    process.run()
    assert process.measure(0.3)["kernels"] % 50 == 0
    assert process.quit()["correct"]


def test_another_program_that_speaks_the_protocol_ends_with_all_that_it_started(device_env: dict[str, str]) -> None:
    code = (
        "import json, subprocess, sys; child = subprocess.Popen(['sleep', '600']);"
        "print(json.dumps({'event': 'ready', 'child': child.pid}), flush=True); sys.stdin.read()"
    )
    with WorkloadProcess("other", environment=device_env, words=[sys.executable, "-c", code]) as process:
        child = process.ready["child"]
        assert running(child)
    wait_for(lambda: not running(child))


@pytest.mark.skipif(ON_NVIDIA, reason="there is a driver")
@pytest.mark.parametrize("name", ["latency", "batch"])
def test_without_a_driver_they_name_the_emulated_gpu(name: str) -> None:
    hidden = {key: value for key, value in os.environ.items() if not key.startswith(("RUNLIST_", "LD_"))}
    command = [sys.executable, "-m", f"runlist.workloads.{name}", "--seconds", "1"]
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"{name}: no usable CUDA driver here (")
    assert done.stderr.endswith("): `runlist emulator -- COMMAND` gives a command an emulated GPU\n")
