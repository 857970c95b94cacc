"""Finding benchmarks, running them, and keeping what they found."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bench.benchmarks
from bench import ROOT
from bench.harness import record, runner
from bench.harness.benchmark import Benchmark, Needs, find
from bench.harness.figures import AT_MOST, Figure
from runlist import __version__
from runlist.errors import RunlistError, UsageError

STABLE = {
    "accounted", "attach", "caps", "demo", "hook_cost", "idle", "launch_cost", "many", "service", "suspend",
    "throughput", "usage", "weights",
}  # fmt: skip
"""Commands that others rely on."""

ALL = find()


def test_every_file_of_the_folder_is_a_benchmark() -> None:
    (folder,) = bench.benchmarks.__path__
    assert list(ALL) == sorted(path.stem for path in Path(folder).glob("*.py") if path.stem != "__init__")
    assert ALL.keys() >= STABLE


@pytest.mark.parametrize("one", ALL.values(), ids=ALL)
def test_a_benchmark_says_all_of_itself(one: Benchmark) -> None:
    assert one.summary.endswith(".")
    assert len(one.summary) < 250
    assert one.measure.__doc__
    assert callable(one.measure)
    assert isinstance(one.needs, Needs)
    assert one.needs.device in {"", "nvidia", "emulated"}


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=lambda path: path.stem)
def test_nobody_imports_a_benchmark(path: Path) -> None:
    assert not re.search(r"^\s*(from|import) bench\.benchmarks", path.read_text(), re.MULTILINE)


def test_what_a_benchmark_lacks_is_told() -> None:
    assert Needs().missing("emulated", 1) == ""
    assert Needs("emulated").missing("nvidia", 1) == "the device emulated"
    assert Needs(gpus=2).missing("nvidia", 1) == "2 GPUs"
    needs = Needs(programs=("sh", "no-such-program"), modules=("json", "no_such_module"))
    assert needs.missing("nvidia", 1) == "the program no-such-program, the Python module no_such_module"


def test_a_name_that_is_no_benchmark_is_one_clear_line(capsys: Any) -> None:
    assert runner.main(["weights", "nonsense"]) == 2
    said = capsys.readouterr()
    assert said.err == f"no benchmark nonsense: take {', '.join(ALL)}\n"
    assert said.out == ""


def test_the_help_tells_what_each_measures(capsys: Any) -> None:
    with pytest.raises(SystemExit, match="0"):
        runner.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for name, one in ALL.items():
        assert f" {name} {one.summary}" in said


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Benchmark]:
    """The runner with no GPU and no daemon, and the benchmarks that it knows."""

    @contextlib.contextmanager
    def use_device(wanted: str | None) -> Iterator[Any]:
        if wanted == "abacus":
            raise UsageError("no device 'abacus': nvidia or emulated")
        yield SimpleNamespace(name="emulated")

    @contextlib.contextmanager
    def session(driver: object) -> Iterator[None]:
        yield

    def fails() -> list[Figure]:
        raise RuntimeError("no answer")

    known = {
        "good": Benchmark("good", "Good.", lambda: [Figure("g", 1.5, AT_MOST, 1, "ms", {"all": [1]})], Needs()),
        "bad": Benchmark("bad", "Bad.", fails, Needs()),
        "real": Benchmark("real", "Real.", fails, Needs("nvidia")),
    }
    monkeypatch.setattr(runner, "use_device", use_device)
    monkeypatch.setattr(runner.nvml, "session", session)
    monkeypatch.setattr(runner.record, "machine", lambda: {"gpus": ["a GPU"]})

    def open_(start: bool = False) -> Any:
        if start:
            return SimpleNamespace(close=lambda: None)
        if "gone" in known:
            raise RunlistError("no daemon runs")
        return contextlib.nullcontext(SimpleNamespace(status=lambda: SimpleNamespace(kernel_plane="off")))

    monkeypatch.setattr(runner.Client, "open", open_)
    monkeypatch.setattr(runner, "find", lambda: known)
    return known


def kept(folder: Path) -> tuple[str, dict[str, Any]]:
    (path,) = folder.iterdir()
    return path.name, json.loads(path.read_text())


def test_runs_of_one_minute_keep_a_file_each(on_a_gpu: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime(2026, 11, 26, 19, 0, tzinfo=datetime.UTC)
    clock = SimpleNamespace(now=lambda _: now)
    monkeypatch.setattr(runner.record, "datetime", SimpleNamespace(datetime=clock, UTC=datetime.UTC))
    for commit in "abc":
        assert runner.main(["good", "--out", str(tmp_path), "--commit", commit]) == 0
    found = {path.name: json.loads(path.read_text())["commit"] for path in tmp_path.iterdir()}
    name = "2026-11-26T1900-emulated-good"
    assert found == {f"{name}.json": "a", f"{name}-2.json": "b", f"{name}-3.json": "c"}


def test_a_result_names_its_code_its_machine_and_its_command(on_a_gpu: object, tmp_path: Path) -> None:
    assert runner.main(["good", "--out", str(tmp_path), "--commit", "abc"]) == 0
    name, result = kept(tmp_path)
    assert name.endswith("-emulated-good.json")
    assert (result["runlist"], result["commit"]) == (__version__, "abc")
    assert result["command"] == "python -m bench good --device emulated"
    assert result["machine"] == {"gpus": ["a GPU"], "kernel plane": "off"}
    (figure,) = result["figures"]
    assert figure == {"benchmark": "good", "met": False, "name": "g", "value": 1.5, "relation": "≤", "target": 1,
                      "unit": "ms", "details": {"all": [1]}}  # fmt: skip
    assert result["seconds"].keys() == {"good"}


def test_a_benchmark_has_options_of_its_own(on_a_gpu: dict[str, Benchmark], tmp_path: Path, capsys: Any) -> None:
    def add_options(parser: Any) -> None:
        parser.add_argument("--long-runs", type=int, default=2, help="how many of them")
        parser.add_argument("--drawing", type=Path, help="where it is put")

    on_a_gpu["fine"] = Benchmark(
        "fine", "Fine.", lambda options: [Figure("f", options.long_runs)], Needs(), add_options
    )
    assert runner.main(["fine", "good", "--long-runs", "3", "--drawing", "/tmp/a", "--out", str(tmp_path)]) == 0
    _, result = kept(tmp_path)
    assert [figure["value"] for figure in result["figures"]] == [3, 1.5]
    assert result["command"] == "python -m bench fine good --long-runs=3 --device emulated"
    with pytest.raises(SystemExit, match="0"):
        runner.main(["--help"])
    assert "options of fine:" in capsys.readouterr().out


def test_code_that_nobody_can_name_is_not_measured(
    on_a_gpu: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "commit", lambda: None)
    assert runner.main(["good", "--out", str(tmp_path)]) == 2
    assert "--commit" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_fails_is_told_and_the_others_run(on_a_gpu: object, tmp_path: Path) -> None:
    assert runner.main(["bad", "real", "good", "--out", str(tmp_path)]) == 1
    name, result = kept(tmp_path)
    assert name.endswith("-emulated.json")
    assert result["failures"] == {"bad": "no answer", "real": "needs the device nvidia"}
    assert [figure["name"] for figure in result["figures"]] == ["g"]


def test_a_benchmark_may_end_the_daemon(on_a_gpu: dict[str, Benchmark], tmp_path: Path) -> None:
    on_a_gpu["gone"] = on_a_gpu["good"]
    assert runner.main(["gone", "--out", str(tmp_path)]) == 0
    assert kept(tmp_path)[1]["machine"]["kernel plane"] == "no daemon runs"


def test_what_nobody_asked_for_and_cannot_run_here_is_left_out(on_a_gpu: dict[str, Benchmark], tmp_path: Path) -> None:
    del on_a_gpu["bad"]
    assert runner.main(["--out", str(tmp_path)]) == 0
    _, result = kept(tmp_path)
    assert (result["failures"], result["left_out"]) == ({}, {"real": "needs the device nvidia"})


def test_a_device_that_is_none_is_one_clear_line(on_a_gpu: object, tmp_path: Path, capsys: Any) -> None:
    assert runner.main(["good", "--device", "abacus", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "no device 'abacus': nvidia or emulated\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_commit_is_git_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True, text=True).stdout

    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.commit() is None
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")
    head = git("rev-parse", "HEAD").strip()
    assert record.commit() == head
    (tmp_path / "file").write_text("two")
    assert record.commit() == f"{head}-dirty"
