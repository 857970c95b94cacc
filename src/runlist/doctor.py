"""What works on this machine: the checks behind `runlist doctor`, each done for real."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from runlist.errors import ExitCode, RunlistError
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.client import free_client, open_client
from runlist.planes.nvidia.rm.transport import Driver, choose_driver
from runlist.planes.process import preload
from runlist.planes.process.library import library
from runlist.planes.registry import controls
from runlist.proc import borrow
from runlist.proc.inotify import OpenWatch

CGROUPS = Path("/sys/fs/cgroup")

OLDEST_DRIVER = (550, 0)
"""Oldest driver whose protocol was read; 580.159.04 is the one it was measured on."""

_CAP_SYS_PTRACE, _CAP_SYS_NICE = 19, 23
_RECORD_BYTES = 64  # at least what a program says of itself


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. `state` is ok, warn (works, with a limit) or fail (managing is not possible)."""

    what: str
    state: str
    detail: str


class _Failed(Exception):
    def __init__(self, detail: str, code: ExitCode = ExitCode.NOT_SUPPORTED) -> None:
        super().__init__(detail)
        self.code = code


class _Limited(Exception):
    """It works, with a limit."""


def examine(device: str | None) -> tuple[list[Finding], ExitCode]:
    """Every check, in order, and the exit code of `runlist doctor`. Raises UsageError for a bad device."""
    driver = choose_driver(device)
    findings: list[Finding] = []
    code = ExitCode.DONE
    for what, check in _checks(driver):
        try:
            findings.append(Finding(what, "ok", check()))
        except _Limited as limit:
            findings.append(Finding(what, "warn", str(limit)))
        except (_Failed, RunlistError) as failure:
            failed_code = failure.code if isinstance(failure, _Failed) else failure.exit_code
            findings.append(Finding(what, "fail", str(failure)))
            code = code or failed_code
    return findings, code


def _checks(driver: Driver) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "system", lambda: f"Python {platform.python_version()}, Linux {platform.release()}"
    yield "device", lambda: _device(driver)
    yield "GPUs", lambda: _gpus(driver)
    yield "borrowing", lambda: _borrowing(driver)
    yield "lending", lambda: _lending(driver)
    yield "other processes", _ptrace
    yield "privileged controls", _nice
    yield "watching", lambda: _watching(driver)
    yield "daemon", lambda: _daemon(driver)
    yield "process plane", _process_plane
    yield "memory limits", lambda: _memory_limits(driver)
    yield "kernel plane", _kernel_plane


def _device(driver: Driver) -> str:
    file = driver.open()
    try:
        client = open_client(file)
        free_client(client)
    finally:
        file.close()
    return f"{driver.name}: the driver answers"


def _gpus(driver: Driver) -> str:
    try:
        with nvml.session(driver):
            version, names = nvml.driver_version(), [gpu.name for gpu in nvml.gpus()]
    except nvml.NvmlError as error:
        raise _Failed(str(error)) from None
    if not names:
        raise _Failed("the driver shows no GPU")
    text = f"{len(names)} × {', '.join(sorted(set(names)))}, driver {version}"
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdecimal())
    if numbers < OLDEST_DRIVER:
        raise _Limited(f"{text}: older than {OLDEST_DRIVER[0]}, its protocol was never checked: update the driver")
    return text


def _borrowing(driver: Driver) -> str:
    """Copy a descriptor out of a child of ours, as is done with tenants. Where that is denied they must lend theirs."""
    reader, writer = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[reader])
    try:
        pidfd = borrow.open_process(child.pid)
        try:
            os.close(borrow.borrow(pidfd, 0))
        finally:
            os.close(pidfd)
    except OSError as error:
        denied = f"pidfd_getfd is denied even for children ({error.strerror}), as seccomp profiles of containers do"
        allow = "allow it with the capability SYS_PTRACE"
        try:
            _lending(driver)
        except _Limited:
            raise _Failed(f"{denied}: {allow}", ExitCode.NO_PERMISSION) from None
        raise _Limited(
            f"{denied}: `runlist run` goes by what programs lend instead; to attach programs that run already, {allow}"
        ) from None
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
        os.close(reader)
        os.close(writer)
    return "descriptors of our own children can be borrowed (pidfd_getfd)"


def _lending(driver: Driver) -> str:
    """Have a child make an RM client with the library in it, and hear from it as the daemon would."""
    code = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(f"{folder}/messages")
        ear.setblocking(False)
        try:
            preloaded = preload.variables(library(), None, strict=None, inherited={})
            named = {"RUNLIST_MESSAGES": f"{folder}/messages", "RUNLIST_DISABLE": "0"}
            environment = {**os.environ, **preloaded, **named}
            subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
            _, (fd, *_), _, _ = socket.recv_fds(ear, _RECORD_BYTES, 1)
            file = driver.adopt(fd)
        except (OSError, ValueError, RunlistError):  # nothing came, or no descriptor with it
            file = None
    if file is None:
        raise _Limited("programs with the library do not lend: only those can be managed that may be borrowed from")
    file.close()
    return "programs that nobody may borrow from lend their descriptor themselves, if `runlist run` starts them"


def _ptrace() -> str:
    scope = "0"
    with contextlib.suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    if _capable(_CAP_SYS_PTRACE) and scope != "3":
        return "processes of every user can be attached"
    if scope == "0":
        return "your own processes can be attached"
    if scope == "1":
        raise _Limited(
            "ptrace_scope is 1: `runlist run` works, `runlist attach` needs a daemon run by root (sudo runlist daemon)"
        )
    raise _Limited(f"ptrace_scope is {scope}: only root, or nobody, may attach; ask the machine's administrator")


def _nice() -> str:
    names = ", ".join(row.name for row in controls() if row.privileged)
    if _capable(_CAP_SYS_NICE):
        return f"{names} may be set"
    raise _Limited(f"{names}: only with root or CAP_SYS_NICE; classes, slices and suspension need neither")


def _watching(driver: Driver) -> str:
    watch = OpenWatch(driver.watch_paths())
    works = watch.works
    watch.close()
    if not works:
        raise _Limited(
            "no inotify instance to be had: new processes are noticed within 10 s (raise fs.inotify.max_user_instances)"
        )
    return "new GPU processes are noticed at once (inotify)"


def _daemon(driver: Driver) -> str:
    from runlist.client import Client
    from runlist.errors import NoTargetError

    try:
        with Client.open(device=driver.name) as client:
            status = client.status()
    except NoTargetError:
        return "none runs; `runlist run` and `runlist attach` start one"
    return f"process {status.pid}, version {status.version}, policy {status.policy}, {status.tasks} tasks"


def _process_plane() -> str:
    """Have the library loaded into a program, as `runlist run` does."""
    try:
        path = library()
        environment = preload.variables(path, None, strict=False, inherited={})
    except (FileNotFoundError, RunlistError) as error:
        raise _Limited(f"memory cannot be limited from inside: {error}") from None
    look = f"print({path.name!r} in open('/proc/self/maps').read())"
    command = [sys.executable, "-c", look]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.stdout.strip() != "True":
        said = (done.stderr.strip().splitlines() or ["no reason was told"])[0]
        raise _Limited(f"memory cannot be limited from inside: {path} does not load ({said})")
    return f"{path.name} loads: memory limits and queries inside what `runlist run` starts"


def _memory_limits(driver: Driver) -> str:
    try:
        with nvml.session(driver):
            supported, version = nvml.memory_limits_supported(CGROUPS), nvml.driver_version()
    except nvml.NvmlError as error:
        raise _Failed(str(error)) from None
    if supported:
        return f"by the driver itself, for a daemon run by root (driver {version})"
    return f"by the driver: not supported (driver {version}); {preload.LIBRARY} holds them"


def _kernel_plane() -> str:
    raise _Limited("tracing by eBPF is not in this version; the driver plane finds processes by itself")


def _capable(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> number & 1)
