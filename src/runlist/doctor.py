"""The checks of `runlist doctor`: each tries for real what Runlist needs of this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from runlist import interpreter
from runlist.errors import ExitCode, NoPermissionError, RunlistError
from runlist.planes.interface import Limited, Plane
from runlist.planes.kernel import trial
from runlist.planes.process import preload
from runlist.planes.process.library import library
from runlist.planes.registry import PLANES, choose_plane
from runlist.proc import borrow
from runlist.proc.inotify import OpenWatch
from runlist.proc.process import CAP_SYS_PTRACE, capable
from runlist.protocol import environment_autogen as names
from runlist.text import counted
from runlist.views.finding import Finding

_CAPS_DAC = (1, 2)
"""DAC_OVERRIDE, DAC_READ_SEARCH: /proc/PID/fd of other users is closed even to root without either."""
_RECORD_BYTES = 64  # at least as long as a tenant's message


def examine(device: str | None) -> tuple[list[Finding], ExitCode]:
    """Every check, in order, and the exit code of `runlist doctor`. Raises UsageError for a bad device."""
    plane = choose_plane(device)
    findings: list[Finding] = []
    code = ExitCode.DONE
    for what, check in _checks(plane):
        try:
            findings.append(Finding(what, "ok", check()))
        except Limited as limit:
            findings.append(Finding(what, "warn", str(limit)))
        except RunlistError as failure:
            findings.append(Finding(what, "fail", str(failure)))
            code = code or _code(failure.exit_code == ExitCode.NO_PERMISSION)
        except OSError as failure:  # of the check itself, as where no process can be started
            findings.append(Finding(what, "fail", f"this could not be looked at: {failure.strerror or failure}"))
            code = code or _code(isinstance(failure, PermissionError))
    return findings, code


def _code(a_right: bool) -> ExitCode:
    """The exit code for the first thing that is missing: a right, or something else."""
    return ExitCode.NO_PERMISSION if a_right else ExitCode.NOT_SUPPORTED


def _checks(plane: Plane) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "system", lambda: f"Python {platform.python_version()}, Linux {platform.release()}"
    yield from plane.checks()
    for name in PLANES:
        if name != plane.name:
            yield f"device {name}", lambda name=name: _another(name)  # type: ignore[misc]
    yield "borrowing", lambda: _borrowing(plane)
    yield "lending", lambda: _lending(plane)
    yield "other processes", _ptrace
    yield "watching", lambda: _watching(plane)
    yield "daemon", lambda: _daemon(plane)
    yield "process plane", _process_plane
    yield "kernel plane", lambda: _kernel_plane(plane)


def _another(name: str) -> str:
    """A plane that was not asked for."""
    try:
        choose_plane(name).check()
    except RunlistError as error:
        raise Limited(f"not in use: {error}") from None
    return f"not in use; --device {name} takes it"


def _borrowing(plane: Plane) -> str:
    """Copy a descriptor out of a child of ours, as out of tenants. Where that is denied, tenants must lend theirs."""
    reader, writer = os.pipe()
    child = subprocess.Popen(interpreter.script("input()"), stdin=subprocess.PIPE, pass_fds=[reader])
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
            _lending(plane)
        except Limited:
            raise NoPermissionError(f"{denied}: {allow}") from None
        raise Limited(
            f"{denied}: `runlist run` goes by what programs lend instead; to attach programs that run already, {allow}"
        ) from None
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
        os.close(reader)
        os.close(writer)
    return "descriptors of our own children can be borrowed (pidfd_getfd)"


def _lending(plane: Plane) -> str:
    """Have a child make an RM client with the library in it, and hear from it as the daemon would."""
    try:
        plane.check()
    except RunlistError as error:
        raise Limited(f"cannot be tried: {error}") from None
    code = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(f"{folder}/messages")
        ear.setblocking(False)
        try:
            preloaded = preload.variables(library(), None, strict=None, inherited={})
            named = {names.MESSAGES: f"{folder}/messages", names.DISABLE: "0"}
            environment = {**os.environ, **preloaded, **named}
            subprocess.run(interpreter.script(code), env=environment, capture_output=True, check=False)
            _, (fd, *_), _, _ = socket.recv_fds(ear, _RECORD_BYTES, 1)
            file = plane.adopt(fd)
        except (OSError, ValueError, RunlistError):  # nothing came, or no descriptor with it
            file = None
    if file is None:
        raise Limited("programs with the library do not lend: only those can be managed that may be borrowed from")
    file.close()
    return "programs that nobody may borrow from lend their descriptor themselves, if `runlist run` starts them"


def _ptrace() -> str:
    scope = "0"
    with contextlib.suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    if capable(CAP_SYS_PTRACE) and scope != "3":
        if not any(map(capable, _CAPS_DAC)):
            raise Limited(
                "only your own user's processes can be attached: those of others need CAP_DAC_READ_SEARCH, too"
            )
        return "processes of every user can be attached"
    if scope == "0":
        return "your own processes can be attached"
    if scope == "1":
        raise Limited(
            "ptrace_scope is 1: `runlist run` works, `runlist attach` needs a daemon run by root (sudo runlist daemon)"
        )
    raise Limited(f"ptrace_scope is {scope}: only root, or nobody, may attach; ask the machine's administrator")


def _watching(plane: Plane) -> str:
    watch = OpenWatch(plane.watch_paths())
    works = watch.works
    watch.close()
    if not works:
        raise Limited(
            "no inotify instance to be had: new processes are noticed within 10 s (raise fs.inotify.max_user_instances)"
        )
    return "new GPU processes are noticed at once (inotify)"


def _daemon(plane: Plane) -> str:
    from runlist.client import Client, NotForUs
    from runlist.errors import NoTargetError

    try:
        with Client.open(device=plane.name) as client:
            status = client.status()
    except NoTargetError:
        return "none runs; `runlist run` and `runlist attach` start one"
    except NotForUs as error:
        raise Limited(str(error)) from None
    return f"process {status.pid}, version {status.version}, policy {status.policy}, {counted(status.tasks, 'task')}"


def _process_plane() -> str:
    """Have the library loaded into a program, as `runlist run` does."""
    try:
        path = library()
        environment = preload.variables(path, None, strict=False, inherited={})
    except (FileNotFoundError, RunlistError) as error:
        raise Limited(f"memory cannot be limited from inside: {error}") from None
    look = f"print({path.name!r} in open('/proc/self/maps').read())"
    command = interpreter.script(look)
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.stdout.strip() != "True":
        said = (done.stderr.strip().splitlines() or ["no reason was told"])[0]
        raise Limited(f"memory cannot be limited from inside: {path} does not load ({said})")
    return f"{path.name} loads: memory limits and queries inside what `runlist run` starts"


def _kernel_plane(plane: Plane) -> str:
    """Load the programs, as the daemon does, and let go of them."""
    capture = plane.capture()
    if capture is None:
        raise Limited(f"the kernel sees no requests to {plane.name} GPUs: processes are found by looking")
    off = os.environ.get(names.KERNEL_PLANE) != "on"
    try:
        said = trial.run(capture)
        return f"{said}; a daemon with {names.KERNEL_PLANE}=on uses it" if off else said
    except (RunlistError, OSError) as error:
        raise Limited(f"{error}; without it, processes are found by looking") from None
