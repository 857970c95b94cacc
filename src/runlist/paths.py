"""Where the daemon's socket, lock and log are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from runlist.errors import NoPermissionError

SYSTEM_DIR = Path("/run/runlist")
SOCKET_NAME = "daemon.sock"
SOCKET_VARIABLE = "RUNLIST_SOCKET"
MESSAGES_NAME = "messages.sock"
MESSAGES_VARIABLE = "RUNLIST_MESSAGES"
"""Names the socket that a tenant sends to; `runlist run` sets it. The daemon's own is always beside its stream socket.
"""


class Device(Protocol):
    """What is asked of a plane."""

    def state_dir(self) -> Path | None:
        """Where its daemon keeps its socket, when not in the usual place."""


def state_dir(device: Device) -> Path:
    """The directory of this user's daemon for a device: root's is the system's."""
    own = device.state_dir()
    if own is not None:
        return own
    return _user_dir()


def _user_dir() -> Path:
    if os.geteuid() == 0:
        return SYSTEM_DIR
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "runlist" if runtime else Path(f"/tmp/runlist-{os.geteuid()}")  # noqa: S108 (checked by make_private)


def daemon_socket(device: Device) -> Path:
    """The socket that this user's daemon listens on."""
    named = os.environ.get(SOCKET_VARIABLE)
    return Path(named) if named else state_dir(device) / SOCKET_NAME


def messages_socket(device: Device) -> Path:
    """The datagram socket on which this user's daemon hears its tenants."""
    return daemon_socket(device).with_name(MESSAGES_NAME)


def candidate_sockets(device: Device) -> list[Path]:
    """Sockets where a daemon may be found, the caller's own first, then the system's."""
    own = daemon_socket(device)
    if os.environ.get(SOCKET_VARIABLE) or device.state_dir() is not None:
        return [own]
    return list(dict.fromkeys([own, SYSTEM_DIR / SOCKET_NAME]))


def regions_dir(device: Device) -> Path:
    """Where this user's memory regions are made: beside the daemon's socket if that folder is its own, as the daemon
    may be another user's.
    """
    beside = daemon_socket(device).parent
    try:
        found = beside.lstat()
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    except OSError:
        own = False
    return ((beside if own else _user_dir()) / "regions").absolute()  # programs find it from wherever they are


def rules_file() -> Path:
    """Where this user's daemon looks for rules when none are named."""
    if os.geteuid() == 0:
        return Path("/etc/runlist/rules.toml")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "runlist" / "rules.toml"


def make_private(directory: Path, mode: int = 0o700) -> None:
    """Create a directory that only this user can write, or check that it is one and grant what `mode` grants.

    Raises NoPermissionError otherwise. A directory that exists loses no right: it may be somebody's home.
    """
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise NoPermissionError(
            f"{directory} cannot be made ({error.strerror}): set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise NoPermissionError(
            f"{directory} belongs to somebody else or others can write there: remove it, or set XDG_RUNTIME_DIR"
        )
    directory.chmod(stat.S_IMODE(found.st_mode) | mode)
