"""`runlist trace --why` on real processes of the kernel that runs here, late for reasons that are staged."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runlist.emulated import EmulatedGpu, artefacts
from runlist.errors import NoTargetError
from runlist.planes.kernel import rights
from runlist.planes.kernel.functions import places
from runlist.planes.kernel.watching import Function, Watch
from runlist.proc.process import capable
from runlist.why.functions import watched as watched_functions
from runlist.why.recorder import Recorder
from runlist.workloads.process import WorkloadProcess
from tests.fixtures.daemon import NOBODY, PATIENCE_S, ROOT, As, Commands, Daemon, Refused, remove_cgroup
from tests.fixtures.slow_file import slow_file
from tests.fixtures.trace import Parsed

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not capable(rights.BPF), reason="needs root with CAP_BPF and CAP_PERFMON"
)

USUAL = 6
PAUSE = ("--pause", "8ms")
SLACK_NS = 400_000
"""What the program sees more of a request than the kernel sees of its calls."""
FILE_S = 0.06
TRIES = 20
TENANTS = ("tenant", "tenant again", "tenant once more")
"""Two on a GPU share it: which of them had most of a request's time is a matter of luck."""


class Late:
    """The program of tests.fixtures.late; `before` are words that run it."""

    def __init__(self, commands: Commands, *before: str) -> None:
        words = [*before, sys.executable, "-m", "tests.fixtures.late"]
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=commands.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid: int = self.answer()["pid"]
        self.commands = commands

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "the program does not answer"
        line = self.process.stdout.readline()
        assert line, "the program died"
        found: dict[str, Any] = json.loads(line)
        return found

    def do(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def usual(self) -> None:
        for _ in range(USUAL):
            self.do("usual")

    def late(self, command: str, least_ms: int) -> dict[str, int]:
        """A request that really is late: what is to make it so may come only after a while, or be over too soon."""
        for _ in range(TRIES):
            told = self.do(command)
            if told["ns"] >= least_ms * 1_000_000:
                break
        return told

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # it may be a child of what runs it
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@contextlib.contextmanager
def before_others() -> Iterator[None]:
    """What is staged is to be the reason, and not whatever else this machine does: we go before the others of our
    session, and with it before other sessions, where the kernel shares cores among those first.
    """
    nice, session = os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup")
    before = session.read_text().split()[-1:] if session.exists() else []
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    if before:
        session.write_text("-10")
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        if before:
            session.write_text(before[0])


@contextlib.contextmanager
def hog(core: int) -> Iterator[tuple[int, int]]:
    """The process that takes a core, and where to write for that: a descriptor that others can open, too."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fixtures.late", "hog", str(reader)], cwd=ROOT, pass_fds=[reader],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        with contextlib.suppress(PermissionError):  # before whatever else wants that core
            os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid, writer
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def small_group() -> Iterator[Path | None]:
    """A cgroup that has a tenth of a core, in whichever hierarchy is there; None where there is none to be had."""
    folder = Path(f"/sys/fs/cgroup/cpu/runlist-test-why-{os.getpid()}")
    quota = {"cpu.shares": "262144", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000"}
    if not folder.parent.is_dir():
        folder, quota = Path("/sys/fs/cgroup", folder.name), {"cpu.weight": "10000", "cpu.max": "10000 100000"}
    try:
        folder.mkdir()
        for name, value in quota.items():
            (folder / name).write_text(value)
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            (folder.parent / "cgroup.procs").write_text(pid)
        remove_cgroup(folder)


@contextlib.contextmanager
def watched(program: Late, *words: str) -> Iterator[dict[str, Any]]:
    """What `trace --why` tells of what is done meanwhile, once that is over."""
    commands = program.commands
    process = commands.start("trace", "--why", str(program.pid), "--json", *PAUSE, *words)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert first.startswith("runlist: watching "), first + process.stderr.read()
    report: dict[str, Any] = {}
    yield report
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=3 * PATIENCE_S)
    assert process.returncode == 0, err
    report["said"] = err
    report.update(json.loads(out))


@dataclass
class Staged:
    """One recording of a program that is late for one reason after the other: what the program said of each request,
    who else was there, and what `trace --why` told.
    """

    told: dict[str, dict[str, int]]
    pids: dict[str, int]
    report: dict[str, Any]
    parsed: Parsed
    file: Path

    def row(self, name: str, culprit: str) -> dict[str, Any]:
        """The row of a request, which names its culprit."""
        row = self.row_of(name)
        assert row["culprit"] == culprit, f"{self.told[name]} {row}"
        return row

    def row_of(self, name: str) -> dict[str, Any]:
        """The row of a request: it adds up, and is as long as the program says."""
        told = self.told[name]
        assert self.report["dropped"] == 0
        row = min(self.report["slow"], key=lambda row: abs(row["began_ns"] - told["began"]))
        assert abs(row["began_ns"] - told["began"]) < 20_000_000, f"no slow request: {told} {row}"
        assert sum(row["parts_ms"].values()) == pytest.approx(row["ms"], rel=0.001)
        length = told["ns"] - told["launch_ns"] / 2  # others may have its core before the launch that it begins with
        slack = max(0.03 * told["ns"], SLACK_NS) + told["launch_ns"] / 2
        assert row["ms"] * 1e6 == pytest.approx(length, abs=slack)
        return dict(row)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Staged]:
    """All of it at once: what takes long is to begin."""
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    core = max(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(before_others())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        gpu = stack.enter_context(EmulatedGpu(folder / "gpu"))
        commands = Commands({**os.environ, **gpu.environment()}, folder)
        stack.callback(commands.close)
        for name, value in commands.environment.items():
            if name.startswith("RUNLIST_"):
                patch.setenv(name, value)
        daemon = stack.enter_context(Daemon(commands))
        program = Late(commands, sys.executable, "-m", "runlist.cli", "run", "--memory", "1G", "--")
        stack.callback(program.close)
        other = stack.enter_context(WorkloadProcess("batch", environment=commands.environment))
        taker, writer = stack.enter_context(hog(core))
        file = stack.enter_context(slow_file(tmp_path_factory.mktemp("files") / "weights", FILE_S))
        stack.callback(program.close)  # it has the file mapped
        small = stack.enter_context(small_group())
        cores = os.sched_getaffinity(program.pid)
        program.do(f"map {file}")
        told: dict[str, dict[str, int]] = {}
        out = folder / "why.pftrace"
        with watched(program, "--out", str(out), "--slower-than", "10ms") as report:
            program.usual()
            os.sched_setaffinity(program.pid, {core})
            told["core"] = program.do(f"core /proc/{os.getpid()}/fd/{writer}")
            os.sched_setaffinity(program.pid, cores)
            told["file"] = program.do(f"file {file} 409600")
            told["memory"] = program.do(f"memory {2 << 30} {1 << 21}")
            told["lock"], told["stopped"] = program.do("lock"), program.do("stopped")
            told["queue"] = program.late("queue", 40)
            for _ in range(4):
                program.do("gpu 10")
            other.run()
            daemon.client.attach(other.pid, "latency")
            for tenant in TENANTS:
                told[tenant] = program.late("gpu 10", 40)
            daemon.client.detach(other.pid)
            other.pause()
            told["gpu"] = program.do("gpu 20")
            daemon.client.set(program.pid, {"cap": 10})  # so that it is kept off for longer than it has the GPU
            told["cap"] = program.late("gpu 30", 150)
            daemon.client.set(program.pid, {"cap": "max"})
            program.usual()
            if small is not None:
                (small / "cgroup.procs").write_text(str(program.pid))
                for _ in range(4):  # it is seen to have moved only after a while
                    told["throttle"] = program.late("throttle", 50)
        pids = {"program": program.pid, "other": other.pid, "hog": taker}
        assert daemon.process.poll() is None
        yield Staged(told, pids, report, Parsed(out.read_bytes()), file)


def test_a_hog_on_its_core(staged: Staged) -> None:
    row = staged.row("core", "core")
    assert f"for a core, which hog [{staged.pids['hog']}] had" in row["why"]
    assert row["parts_ms"]["core"] > 5


def test_another_tenant_on_the_gpu(staged: Staged) -> None:
    rows = [staged.row_of(name) for name in TENANTS]
    assert all(row["parts_ms"]["behind"] > 0 < row["parts_ms"]["gpu"] for row in rows)
    blames = [row["why"] for row in rows if row["culprit"] == "behind"]
    assert blames, rows
    assert all(f"[{staged.pids['other']}] had the GPU for " in why for why in blames)


def test_a_file_that_is_not_in_memory(staged: Staged) -> None:
    row = staged.row("file", "files")
    assert f"for {staged.file} to be read (page fault)" in row["why"]
    assert row["parts_ms"]["files"] > 50


def test_memory_that_its_quota_refuses(staged: Staged) -> None:
    row = staged.row("memory", "memory")
    assert "its memory quota refused it memory once" in row["why"]
    assert row["parts_ms"]["memory"] > 45


def test_a_quota_of_processor_time(staged: Staged) -> None:
    if "throttle" not in staged.told:
        pytest.skip("needs a cgroup of its own")
    row = staged.row("throttle", "throttled")
    assert "cpu.max" in row["why"]
    assert row["parts_ms"]["throttled"] > 25


def test_another_thread_that_has_a_lock(staged: Staged) -> None:
    assert "it waited for another of its threads, " in staged.row("lock", "asleep")["why"]


def test_a_signal_that_stops_it(staged: Staged) -> None:
    assert "it was stopped for " in staged.row("stopped", "asleep")["why"]


def test_its_own_queue(staged: Staged) -> None:
    row = staged.row("queue", "queue")
    assert "its own earlier work had the GPU" in row["why"]


def test_a_cap_of_gpu_time(staged: Staged) -> None:
    row = staged.row("cap", "held")
    assert "its cap of 10 % of the GPU's time" in row["why"]


def test_its_own_work(staged: Staged) -> None:
    assert "its own work took " in staged.row("gpu", "gpu")["why"]


def test_what_watching_costs_is_said(staged: Staged) -> None:
    assert "watching cost some" in staged.report["said"]


def test_one_trace_has_the_threads_the_calls_and_the_gpu(staged: Staged) -> None:
    parsed = staged.parsed
    program = staged.pids["program"]
    assert any(name.startswith("GPU 0 ") for name in parsed.names)
    assert any(name.startswith("why: ") and name.endswith(f"[{program}]") for name in parsed.names)
    calls = parsed.slices[f"calls of thread {program}"]
    waits = [(start, end) for name, start, end in calls if name == "cuStreamSynchronize"]
    assert len(waits) >= 2 * USUAL
    assert any("refused (2)" in name for name, _, _ in calls)
    assert any("waiting for a core: hog" in name for name, _, _ in parsed.slices[f"thread {program}"])
    assert any("in a page fault" in name for name, _, _ in parsed.slices[f"thread {program}"])
    # The other one's turns are within the waits for the GPU of the request that was behind it: the clocks agree.
    (theirs,) = (name for name in parsed.slices if name.endswith(f"[{staged.pids['other']}]"))
    ahead = time.time_ns() - time.monotonic_ns()
    requests = [piece for name, pieces in parsed.slices.items() if name.startswith("requests ") for piece in pieces]
    assert len(requests) == staged.report["requests"]
    turns = parsed.slices[theirs]
    told = staged.told["tenant"]
    assert any(told["began"] < start - ahead < told["began"] + told["ns"] for _, start, _ in turns)


# -- what cannot be, in one line -------------------------------------------------------------------


def test_who_cannot_be_watched_is_told_in_one_line(commands: Commands) -> None:
    assert commands.fails(4, "trace", "--why", "4194303", "--json") == "process 4194303 does not exist"
    assert "go with --why PID" in commands.fails(2, "trace", "--slower-than", "20ms", "--out", "x.pftrace")
    for pid, said in ((os.getpid(), "has not loaded libcuda.so: ask "), (2, "it is the kernel's")):
        with pytest.raises(NoTargetError, match=said):
            Recorder(pid, None, None, None)


def test_without_the_right_it_is_one_line() -> None:
    nobody = As(NOBODY)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            with pytest.raises(Refused, match=f"process {other.pid} is another user's: ask as root") as refused:
                nobody(lambda: Recorder(other.pid, None, None, None))
        finally:
            other.kill()
    assert refused.value.exit_code == 3
    with pytest.raises(Refused, match="no right to load programs into the kernel: run this as root") as refused:
        nobody(lambda: Watch(os.getpid()))
    assert refused.value.exit_code == 3


def test_nothing_is_left_of_a_watch() -> None:
    def open_now() -> tuple[list[str], int]:
        rings = sum("bpf" in line for line in Path("/proc/self/maps").read_text().splitlines())
        return sorted(os.listdir("/proc/self/fd")), rings

    library = artefacts() / "libcuda.so.1"
    before = open_now()
    with Watch(os.getpid()) as watch:
        assert open_now()[1] > before[1]
        watch.watch_functions(library, watched_functions())
        watch.watch_functions(library, [Function("cuNobodyHasThis", 1)])
        assert watch.functions == len({*places(library, [each.symbol for each in watched_functions()]).values()})
    assert open_now() == before
    watch.close()


def test_a_process_that_ends_meanwhile_ends_the_recording(commands: Commands, on_device: None) -> None:
    program = Late(commands)
    try:
        process = commands.start("trace", "--why", str(program.pid), "--json", *PAUSE)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("runlist: watching ")
        program.usual()
        program.close()
        out, err = process.communicate(timeout=2 * PATIENCE_S)
        assert process.returncode == 0, err
        assert json.loads(out)["requests"] >= USUAL - 1
        assert f"runlist: process {program.pid} has ended\n" in err
    finally:
        program.close()


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no library"):
        places(_written(tmp_path, b"#!/bin/sh\n" * 100), ["cuInit"])
    with pytest.raises(ValueError, match="of 32 bits"):
        places(_written(tmp_path, b"\x7fELF\x01\x01" + bytes(100)), ["cuInit"])
    with pytest.raises(ValueError, match="empty"):
        places(_written(tmp_path, b""), ["cuInit"])
    whole = (artefacts() / "libcuda.so.1").read_bytes()
    for length in range(100, len(whole), len(whole) // 50):
        with contextlib.suppress(ValueError):
            places(_written(tmp_path, whole[:length]), ["cuInit"])


def _written(folder: Path, data: bytes) -> Path:
    path = folder / "library"
    path.write_bytes(data)
    return path
