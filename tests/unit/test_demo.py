"""The demo's parts that need no GPU."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from runlist.demo import DemoOptions, picture, report, run
from runlist.demo import device as demo_device
from runlist.demo.device import use_device
from runlist.demo.measure import Plan
from runlist.demo.noise import busy, noise
from runlist.demo.result import Latency, Result, Row
from runlist.errors import ExitCode, RunlistError, UsageError
from runlist.statistics import percentile

LATENCY = Latency.of([float(value) for value in range(1, 1001)])
RESULT = Result(
    device="emulated",
    gpu="Some GPU",
    workload="one against the other",
    rows=[
        Row("alone", LATENCY, 310.5, 1.0),
        Row("default sharing", LATENCY, 300.0, 0.966),
        Row("Runlist", LATENCY, 305.0, 0.982),
    ],
    p99_to_default=0.14,
    p99_to_alone=1.5,
    batch_to_default=1.01,
    attach_ms=42.0,
    correct=True,
)


def rendered(result: Result) -> str:
    sink = io.StringIO()
    Console(file=sink, width=120).print(report.table(result))
    return sink.getvalue()


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 100))
def test_a_percentile_was_seen_and_covers_its_share(samples: list[float], percent: float) -> None:
    ordered = sorted(samples)
    value = percentile(ordered, percent)
    assert value in samples
    assert sum(sample <= value for sample in samples) >= len(samples) * percent / 100 - 1e-9


def test_percentiles_of_a_known_set() -> None:
    assert (LATENCY.requests, LATENCY.p50, LATENCY.p90, LATENCY.p99, LATENCY.max) == (1000, 500, 900, 990, 1000)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Latency.of([])


@given(st.floats(1, 3600))
def test_a_plan_spends_the_time_it_was_given(seconds: float) -> None:
    plan = Plan.of(seconds)
    assert plan.windows * plan.window_s == pytest.approx(seconds)
    assert plan.rounds >= 1
    assert plan.window_s <= 1.51


def test_the_table_has_every_configuration_and_both_ratios() -> None:
    text = rendered(RESULT)
    for expected in (
        "alone",
        "default sharing",
        "Runlist",
        "Some GPU",
        "990",
        "310.5",
        "0.14",
        "1.01",
        "42 ms",
        "right",
    ):
        assert expected in text


def test_wrong_results_stand_out() -> None:
    assert "WRONG" in rendered(msgspec.structs.replace(RESULT, correct=False))


def test_progress_without_a_terminal_is_a_line_a_window() -> None:
    sink = io.StringIO()
    with report.progress(Console(file=sink), Plan(rounds=1, window_s=1.0)) as on_window:
        on_window("LC alone")
        on_window("BE alone")
    assert sink.getvalue().splitlines() == ["measuring 1/4: LC alone", "measuring 2/4: BE alone"]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    samples = {"alone": [90.0, 95.0, 100.0], "default sharing": [1500.0, 2100.0], "Runlist": [270.0, 290.0]}
    path = tmp_path / "out.png"
    picture.save(picture.draw(samples, "title"), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(RunlistError, match="No space left on device") as caught:
        picture.save(b"image", tmp_path / "out.png")
    assert caught.value.exit_code == ExitCode.FAILED
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunlistError, match="--out"):
        picture.save(b"image", tmp_path / "nowhere" / "out.png")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_the_time_must_be_sensible(seconds: float) -> None:
    with pytest.raises(UsageError):
        run(DemoOptions(seconds=seconds))


def test_a_folder_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="directory"):
        run(DemoOptions(out=tmp_path))


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UsageError, match="nvidia or emulated"), use_device("amd"):
        pass


def test_nvidia_is_not_replaced_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_device, "why_no_gpu", lambda name: "Driver Not Loaded")
    with pytest.raises(RunlistError, match="Driver Not Loaded") as caught, use_device("nvidia"):
        pass
    assert caught.value.exit_code == ExitCode.NOT_SUPPORTED


def test_the_environment_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNLIST_DEVICE", raising=False)
    monkeypatch.setattr(demo_device, "why_no_gpu", lambda name: None)
    before = dict(os.environ)
    with use_device(None) as device:
        assert device.name == "nvidia"
        assert os.environ["RUNLIST_DEVICE"] == "nvidia"
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("alone_us", "rates", "others", "words"),
    [
        ([100.0] * 99 + [380.0], [300.0, 310.0, 290.0], 0.5, []),
        ([100.0] * 97 + [500.0] * 3, [300.0, 310.0], 0.0, ["LC alone has a p99 of 5.0 times its p50"]),
        ([100.0], [400.0, 280.0, 390.0], 0.0, ["BE alone was up to 30 % slower in one window than in another"]),
        ([100.0], [300.0], 0.6, ["other programs had 60 % of the processors before it began"]),
        ([], [], 1.0, ["other programs had 100 % of the processors before it began"]),
        ([0.0], [0.0, 0.0], 0.0, []),
    ],
)
def test_a_noisy_machine_is_told(alone_us: list[float], rates: list[float], others: float, words: list[str]) -> None:
    assert noise(alone_us, rates, others) == words


def test_a_tail_of_the_machine_that_hides_nothing_is_no_noise() -> None:
    alone_us = [116.0] * 97 + [612.0] * 3  # as on a machine of two cores
    assert noise(alone_us, [300.0], 0.0, 2_316.0) == []
    assert noise(alone_us, [300.0], 0.0, 1_200.0) == ["LC alone has a p99 of 5.3 times its p50"]


def test_a_processor_that_somebody_uses_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    one = min(os.sched_getaffinity(0))
    worker = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{one}}}); print(flush=True)\nwhile True: pass"],
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {one})
        assert busy(0.3) > 0.9
    finally:
        worker.kill()
        worker.communicate()
