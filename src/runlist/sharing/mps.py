"""NVIDIA's MPS control daemon, by its program: finding it, and asking it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from runlist import trusted
from runlist.errors import NotSupportedError, RunlistError
from runlist.protocol import environment_autogen as names

CONTROL = "nvidia-cuda-mps-control"
_ASK_S = 20.0
_AT_ONCE_S = 1.0
_AGAIN_S = (0.1, 0.3)
"""Pauses before it is asked again."""
_SOCKET = "control"
_MAX_ANSWER = 1 << 20
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_PREFIX = "CUDA_MPS_"
_NOT_ITS_OWN = (names.PRELOAD, names.VISIBLE_DEVICES)
_COMM = CONTROL[:11]  # "nvidia-cuda": how the names of its processes begin
_MAX_ENVIRONMENT = 1 << 20
_SOCKET_PATH = 107  # bytes, of a UNIX socket


def program() -> str:
    """The path of the control program. Raises NotSupportedError where there is none, Untrusted where somebody else
    could change it.
    """
    found = shutil.which(CONTROL)
    if found is None:
        raise NotSupportedError(
            f"--share sms needs NVIDIA's MPS, and {CONTROL} is not installed here: it comes with the driver"
        )
    found = os.path.abspath(found)
    try:
        trusted.check(found)
    except OSError as error:
        raise NotSupportedError(f"{found}: {error.strerror}") from None
    return found


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment for a control daemon, which takes what clients are to have by default from its own: nothing."""
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_PREFIX) and name not in _NOT_ITS_OWN and name not in names.OWN_SETTINGS
    }


def folders(pipe: Path, log: Path) -> dict[str, str]:
    """The variables that name a control daemon's folders."""
    return {names.MPS_PIPES: str(pipe), names.MPS_LOGS: str(log)}


def ask(path: str, pipe: Path, words: str) -> str | None:
    """What the control daemon of a pipe folder answers to a command; None where it does not. One that refused at once,
    though its socket is there, is asked again: it has been seen to, with other questions at the same moment.
    """
    for pause_s in (0.0, *_AGAIN_S):
        time.sleep(pause_s)
        began = time.monotonic()
        answer = _asked(path, pipe, words)
        if answer is not None or time.monotonic() - began > _AT_ONCE_S or not (pipe / _SOCKET).exists():
            return answer
    return None


def _asked(path: str, pipe: Path, words: str) -> str | None:
    # Into a file: what it leaves in the background would hold a pipe open. In memory, as disks are full or read-only.
    with open(os.memfd_create("answer"), "w+", errors="replace") as said:
        try:
            code = subprocess.run(
                [path], env={**environment(os.environ), names.MPS_PIPES: str(pipe)}, input=f"{words}\n", text=True,
                stdout=said, stderr=subprocess.DEVNULL, timeout=_ASK_S, check=False, cwd="/",
            ).returncode  # fmt: skip
        except (subprocess.TimeoutExpired, OSError):
            return None
        said.seek(0)
        return said.read(_MAX_ANSWER).strip() if code == 0 else None


def servers(path: str, pipe: Path) -> list[int] | None:
    """Process ids of a control daemon's servers; None where it does not answer."""
    return _numbers(ask(path, pipe, "get_server_list"))


def clients(path: str, pipe: Path) -> list[int]:
    """Process ids of the clients of all its servers."""
    return [
        client
        for server in servers(path, pipe) or []
        for client in _numbers(ask(path, pipe, f"get_client_list {server}")) or []
    ]


def has_fault(path: str, pipe: Path, server: int) -> bool:
    """Whether a server is out of order: one of its clients did what took all of them down."""
    return "FAULT" in (ask(path, pipe, f"get_server_status {server}") or "").upper()


def _numbers(text: str | None) -> list[int] | None:
    return None if text is None else [int(word) for word in text.split() if _NUMBER.fullmatch(word)]


def kill_left(pipe: Path) -> None:
    """Kill what is left of the control daemon of a pipe folder and its servers, whose parent is gone."""
    named = f"{names.MPS_PIPES}={pipe}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(int(entry.name))
            try:
                if entry.stat().st_uid != os.geteuid() or not (entry / "comm").read_text().startswith(_COMM):
                    continue
                with (entry / "environ").open("rb") as file:
                    if named in file.read(_MAX_ENVIRONMENT).split(b"\0"):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


def check_path(pipe: Path) -> None:
    """Raise RunlistError for a folder whose sockets the control daemon could not make: their paths are too long."""
    longest = len(os.fsencode(pipe / "control_privileged"))
    if longest > _SOCKET_PATH:
        raise RunlistError(
            f"{pipe} is too long for MPS by {longest - _SOCKET_PATH} bytes: set {names.RUNTIME_DIR} to a shorter path"
        )
