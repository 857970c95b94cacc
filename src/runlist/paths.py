"""Where the daemon's socket, lock and log are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from runlist import trusted
from runlist.errors import NoPermissionError, UsageError
from runlist.protocol import environment_autogen as names

_ADVICE = f"set {names.SOCKET} to a path in a folder of your own"
SYSTEM_DIR = Path(names.SYSTEM_FOLDER)
TENANTS = "tenants"
DROP_INS = "rules.d"
LOG = "daemon.log"
LOCK, START, RECORD = ".lock", ".start", ".changed"
"""What the files end in that have the socket's name: the daemon's lock, the turn of who starts one, and the record of
what is to be put back.
"""
_NO_SOCKET = frozenset({
    "", "..", LOG, f"{LOG}.1", TENANTS, DROP_INS, names.MESSAGES_SOCKET, names.REGIONS_FOLDER, names.SHARING_FOLDER
})  # fmt: skip


class Device(Protocol):
    """The part of a plane that is used here."""

    @property
    def name(self) -> str:
        """What `--device` calls it."""

    def state_dir(self) -> Path | None:
        """Where its daemon keeps its socket, if not in the usual place."""


def state_dir(device: Device) -> Path:
    """The directory of this user's daemon for a device: root's is the system's."""
    own = device.state_dir()
    return _user_dir(device) if own is None else own


def _user_dir(device: Device) -> Path:
    if os.geteuid() == 0:
        return _of_device(SYSTEM_DIR, device)
    runtime = os.environ.get(names.RUNTIME_DIR)
    return _of_device(Path(runtime) / names.OWN_FOLDER if runtime else _temporary_dir(), device)


def _of_device(directory: Path, device: Device) -> Path:
    """The folder beside a directory for a device that is not the default: each has a daemon of its own."""
    if device.name == names.DEFAULT_DEVICE:
        return directory
    return directory.with_name(f"{directory.name}-{device.name}")


def _temporary_dir() -> Path:
    """A folder where anybody may write: `make_private` checks it."""
    return Path(names.TEMPORARY_FOLDER) / f"{names.TEMPORARY_PREFIX}{os.geteuid()}"


def daemon_socket(device: Device) -> Path:
    """The socket that this user's daemon listens on. Raises UsageError for one that is named as what is beside it."""
    named = os.environ.get(names.SOCKET)
    if not named:
        return state_dir(device) / names.STREAM_SOCKET
    path = Path(named)
    if path.name in _NO_SOCKET or path.suffix in (LOCK, START, RECORD):
        raise UsageError(f"{names.SOCKET}={named}: take another name, such as {names.STREAM_SOCKET}, for the socket")
    return path


def messages_socket(device: Device) -> Path:
    """The datagram socket on which this user's daemon hears its tenants."""
    return daemon_socket(device).with_name(names.MESSAGES_SOCKET)


def messages_apart(messages: Path, uid: int) -> Path:
    """The one beside it on which root's daemon hears the tenants of a user, and of nobody else."""
    return messages.with_name(f"{messages.stem}-{uid}{messages.suffix}")


def tenants_folder(device: Device) -> Path:
    """The folder that containers get to see: it has the datagram socket by a second name, and nothing else. Unlike the
    socket it stays when a daemon is started again.
    """
    return daemon_socket(device).with_name(TENANTS).absolute()


def candidate_sockets(device: Device) -> list[Path]:
    """Sockets where a daemon may be found, the caller's own first, then the system's."""
    own = daemon_socket(device)
    if os.environ.get(names.SOCKET) or device.state_dir() is not None:
        return [own]
    return list(dict.fromkeys([own, _of_device(SYSTEM_DIR, device) / names.STREAM_SOCKET]))


def regions_dir(device: Device) -> Path:
    """Where this user's memory regions are made: beside the daemon's socket if this user has that folder."""
    return _beside_socket(device, names.REGIONS_FOLDER)


def sharing_dir(device: Device) -> Path:
    """Where the folders of this user's programs are that share SMs, likewise."""
    return _beside_socket(device, names.SHARING_FOLDER)


def _beside_socket(device: Device, name: str) -> Path:
    beside = daemon_socket(device).parent
    try:
        found = beside.lstat()
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    except OSError:
        own = False
    return ((beside if own else _user_dir(device)) / name).absolute()  # programs find it from wherever they are


def home(instead: str) -> Path:
    """This user's home folder. Raises NoPermissionError where there is none, as for an id that nobody has: the variable
    `instead` names the folder that it is wanted for.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise NoPermissionError(f"this user has no home folder: set {instead}") from None


def config_home() -> Path:
    """Where this user's programs have their settings. Raises NoPermissionError for who has no home."""
    return _named_by(names.CONFIG_HOME, ".config")


def _named_by(variable: str, otherwise: str) -> Path:
    """The folder that a variable names, else one of the user's home. A relative one is none, as XDG's specification
    says: it would be another in each folder.
    """
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else home(variable) / otherwise


def rules_file() -> Path:
    """Where this user's daemon looks for rules when none are named. Raises NoPermissionError for who has no home."""
    if os.geteuid() == 0:
        return Path("/etc/runlist/rules.toml")
    return config_home() / "runlist" / "rules.toml"


def profiles_dir() -> Path:
    """Where profiles of this user's kernels are kept, for all devices. Raises NoPermissionError where this user has no
    folder at all.
    """
    return _named_by(names.STATE_HOME, ".local/state") / "runlist" / "profiles"


def drop_ins(device: Device) -> Path:
    """The folder of rules that programs drop in, beside the socket of this user's daemon."""
    return daemon_socket(device).with_name(DROP_INS).absolute()


def make_private(directory: Path, mode: int = 0o700, advice: str = _ADVICE) -> None:
    """Create a directory that only this user can write, or check that it is one and grant what `mode` grants. Nobody
    else may be able to swap it, or what it is in.

    Raises NoPermissionError otherwise, with `advice`. A directory that exists loses no right: it may be a home.
    """
    try:
        folder = trusted.open_folder(directory, make=mode)
    except trusted.Untrusted as error:
        raise NoPermissionError(f"{error}: {advice}") from None
    except OSError as error:
        raise NoPermissionError(f"{directory} cannot be made ({error.strerror}): {advice}") from None
    try:
        granted = stat.S_IMODE(os.fstat(folder).st_mode)
        if mode & ~granted:
            os.fchmod(folder, granted | mode)
    except OSError as error:
        raise NoPermissionError(f"{directory} cannot be used ({error.strerror}): {advice}") from None
    finally:
        os.close(folder)
