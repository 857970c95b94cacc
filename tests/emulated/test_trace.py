"""`runlist trace` on real processes, its file read again with Perfetto's own library."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.cli import main
from tests.fixtures.daemon import Commands, Worker
from tests.fixtures.trace import Parsed

Start = Callable[..., Worker]


def _tracks(parsed: Parsed, *tenants: Worker) -> list[str]:
    """The names of the processes' tracks."""
    return [next(name for name in parsed.names if name.endswith(f"[{tenant.pid}]")) for tenant in tenants]


def test_who_held_the_gpu(commands: Commands, worker: Start) -> None:
    tenants = [worker(), worker()]
    out = commands.folder / "two.pftrace"
    result = commands.run("trace", "--out", str(out), "--seconds", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{out}: ")
    parsed = Parsed(out.read_bytes())
    group = parsed.names[0]
    assert group.startswith("GPU 0 ")
    names = _tracks(parsed, *tenants)
    assert all("tests.fixtures.worker" in name for name in names)
    assert {parsed.parent(name) for name in names} == {group}
    turns = sorted((start, end) for name in names for _, start, end in parsed.slices[name])
    assert len(turns) > 10
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(turns))
    held = sum(end - start for start, end in turns) / 1e9
    assert 0.5 < held <= turns[-1][1] / 1e9 - turns[0][0] / 1e9
    assert abs(turns[-1][1] - time.time_ns()) < 20e9
    samples = parsed.counters["busy"]
    assert samples
    assert all(0 <= percent <= 100 for _, percent in samples)


def test_who_has_the_gpu_alone_and_all_along(commands: Commands, worker: Start) -> None:
    """Nobody is switched, so the log has no record."""
    tenant = worker()
    tenant.wait_for_progress()
    out = commands.folder / "alone.pftrace"
    result = commands.run("trace", "--out", str(out), "--seconds", "1.5")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{out}: 1 turn of 1 process on 1 GPU\n")
    parsed = Parsed(out.read_bytes())
    (name,) = _tracks(parsed, tenant)
    ((what, start, end),) = parsed.slices[name]
    assert "no switch" in what
    assert 1.2 < (end - start) / 1e9 < 20
    assert abs(end - time.time_ns()) < 20e9


def test_a_gpu_without_work_was_held_by_nobody(commands: Commands, worker: Start) -> None:
    worker(idle=True)
    out = commands.folder / "idle.pftrace"
    assert commands.ok("trace", "--out", str(out), "--seconds", "0.5").startswith(f"{out}: 0 turns of 0 processes")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_at_a_signal(commands: Commands, worker: Start, number: signal.Signals) -> None:
    tenants = [worker(), worker()]
    out = commands.folder / "until.pftrace"
    process = commands.start("trace", "--out", str(out))
    deadline = time.monotonic() + 20
    while not (out.exists() and out.stat().st_size > 20_000):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 0
    assert all(Parsed(out.read_bytes()).slices[name] for name in _tracks(Parsed(out.read_bytes()), *tenants))


def test_as_json_and_for_one_gpu(commands: Commands, worker: Start) -> None:
    worker(), worker()
    recorded = commands.json("trace", "--out", "one.pftrace", "--seconds", "0.3", "--gpu", "0")
    assert recorded["gpus"] == 1
    assert recorded["processes"] == 2
    assert recorded["residencies"] > 2
    assert recorded["lost"] == 0


def test_what_cannot_be_is_one_line(commands: Commands) -> None:
    assert "no GPU '7'" in commands.fails(4, "trace", "--out", "x.pftrace", "--gpu", "7")
    assert "there is no folder /nowhere: make it first" in commands.fails(2, "trace", "--out", "/nowhere/x.pftrace")
    assert not (Path(commands.folder) / "x.pftrace").exists()
    log = Path(commands.folder) / "operations"
    log.write_text('{"runlist_operations": 1, "pid": 5}\n')
    words = ("trace", "--out", "./operations", "--operations", str(log), "--seconds", "0.1")
    assert "name one file" in commands.fails(2, *words)
    assert log.read_text() == '{"runlist_operations": 1, "pid": 5}\n'


@pytest.mark.parametrize("words", [("trace", "--out", "x.pftrace"), ("cdi", "generate")])
def test_an_emulated_gpu_that_is_gone_is_not_for_want_of_nvidias_driver(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNLIST_EMULATED_GPU", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main([*words, "--device", "emulated"])
    assert caught.value.code == 5
    assert f"no emulated GPU runs in {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_of_the_file(commands: Commands) -> None:
    assert commands.fails(1, "trace", "--out", "/dev/full", "--seconds", "0.1") == "/dev/full: No space left on device"
