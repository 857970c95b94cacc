"""Profiles that are kept: a file of JSON for each kind of GPU, in a folder of the user's.

    {"runlist_profiles": 1, "gpu": "NVIDIA H200", "kernels": {"gemm": {"bound": "compute", "sms": 132,
     "duration_ns": 21000, "source": "imported"}}}

Files are replaced at once; who changes one holds the folder's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlist import files, trusted
from runlist.errors import NoPermissionError, RunlistError, UsageError
from runlist.operations.admission import Bound
from runlist.operations.profiles.profile import MOST_KERNELS, Profile, wrong

IMPORTED, LEARNED = "imported", "learned"

_MARK, _VERSION = "runlist_profiles", 1
_MOST_BYTES = 16 << 20
_HEAD_BYTES = 1 << 20  # of them for the name of the GPU
_INDENT = 8  # more bytes of a kernel inside a file than alone
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LOCK = ".lock"
_PATIENCE_S, _LOOK_S = 10.0, 0.01
_NONE = "this is no file of profiles: remove it"


@dataclass(frozen=True, slots=True)
class Kept:
    """A profile, and where it is from: IMPORTED or LEARNED."""

    profile: Profile
    source: str


class Store:
    """The profiles of a folder, which is made when there is something to keep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def gpus(self) -> list[str]:
        """The kinds of GPU of which there are any, by name. Raises UsageError for a file that is none of ours."""
        try:
            paths = sorted(self.folder.glob("[!.]*.json"))
        except OSError as error:
            raise UsageError(f"{self.folder}: {error.strerror}") from None
        return sorted(_read(path)[0] for path in paths)

    def path(self, gpu: str) -> Path:
        """The file of a kind."""
        return self.folder / f"{_UNSAFE.sub('-', gpu).strip('.-')[:100] or 'unknown'}.json"

    def look(self, gpu: str) -> dict[str, Kept]:
        """By kernel, the oldest first; none where nothing is kept of this kind. Raises UsageError for a file that is
        not what it should be.
        """
        path = self.path(gpu)
        if not path.exists():
            return {}
        named, found = _read(path)
        if named != gpu:
            raise UsageError(f"{path}: these are of {named!r}, not of {gpu!r}: rename the file")
        return found

    def put(self, gpu: str, profiles: Iterable[Profile], source: str) -> int:
        """Keep some; what is learned takes the place of nothing that was imported. The oldest go where there is no
        room. Returns how many were kept. Raises RunlistError where that cannot be.
        """
        with self._locked():
            there = self.look(gpu)
            given: set[str] = set()
            for one in profiles:
                if wrong(one) or (source == LEARNED and one.name in there and there[one.name].source != LEARNED):
                    continue
                there.pop(one.name, None)  # it is the newest again
                there[one.name] = Kept(one, source)
                given.add(one.name)
            return len(given & self._write(gpu, there))

    def clear(self, gpu: str) -> int:
        """Forget a kind. Returns how many kernels were known; a file that is none of ours stays, and is an error."""
        with self._locked():
            found = self.look(gpu)
            try:
                self.path(gpu).unlink(missing_ok=True)
            except OSError as error:
                raise RunlistError(f"{self.path(gpu)}: {error.strerror}") from None
            return len(found)

    def _write(self, gpu: str, kept: Mapping[str, Kept]) -> set[str]:
        """Returns which of them there was room for."""
        kernels = _newest(
            {
                name: {"bound": one.profile.bound.name.lower(), "sms": one.profile.sms,
                       "duration_ns": one.profile.duration_ns, "source": one.source}
                for name, one in kept.items()
            }
        )  # fmt: skip
        content = json.dumps({_MARK: _VERSION, "gpu": gpu, "kernels": kernels}, indent=1).encode() + b"\n"
        try:
            files.replace(self.path(gpu), content, 0o600)
        except OSError as error:
            raise RunlistError(f"{self.path(gpu)}: {error.strerror}") from None
        return set(kernels)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = trusted.make_file(self.folder / _LOCK, make=0o700)
        except trusted.Untrusted as error:
            raise NoPermissionError(f"{error}: no profiles can be kept there") from None
        except OSError as error:
            raise NoPermissionError(f"{self.folder}: {error.strerror}: no profiles can be kept there") from None
        try:
            _lock(lock, self.folder)
            yield
        finally:
            os.close(lock)


def _lock(lock: int, folder: Path) -> None:
    """Who has it may stand still, as in a debugger."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                why = f"another program has changed it for {_PATIENCE_S:g} s: end that"
                raise RunlistError(f"{folder}: {why}") from None
        time.sleep(_LOOK_S)


def _newest(kernels: Mapping[str, Any]) -> dict[str, Any]:
    """The last of them, as many as there is room for, of so many bytes as are read again."""
    found: dict[str, Any] = {}
    octets = 0
    for name, fields in list(kernels.items())[: -MOST_KERNELS - 1 : -1]:
        octets += len(json.dumps({name: fields}, indent=1)) + _INDENT
        if octets > _MOST_BYTES - _HEAD_BYTES:
            break
        found[name] = fields
    return dict(reversed(found.items()))


def _read(path: Path) -> tuple[str, dict[str, Kept]]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: {_NONE}")
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: {_NONE}")
        text = content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}:1: {_NONE}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: {_NONE} ({error.msg})") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}:1: {_NONE}") from None
    kernels = found.get("kernels") if isinstance(found, dict) else None
    gpu = found.get("gpu") if isinstance(found, dict) else None
    if not isinstance(kernels, dict) or not isinstance(gpu, str) or found.get(_MARK) != _VERSION:
        raise UsageError(f"{path}:1: {_NONE}")
    return gpu, {name: _kept(path, text, name, fields) for name, fields in kernels.items()}


def _kept(path: Path, text: str, name: str, fields: Any) -> Kept:
    def no_profile(why: str) -> UsageError:
        return UsageError(f"{path}:{_line(text, name)}: {why}")

    if not isinstance(fields, dict):
        raise no_profile(f"the kernel {name!r} is no profile")
    bound = {one.name.lower(): one for one in Bound}.get(str(fields.get("bound")))
    sms, duration_ns, source = fields.get("sms"), fields.get("duration_ns"), fields.get("source")
    if bound is None or source not in (IMPORTED, LEARNED) or type(sms) is not int or type(duration_ns) is not int:
        raise no_profile(f"the kernel {name!r} is no profile")
    one = Profile(name, bound, sms, duration_ns)
    if why := wrong(one):
        raise no_profile(why)
    return Kept(one, source)


def _line(text: str, name: str) -> int:
    """Where a kernel is, as near as that can be told."""
    at = text.find(f"{json.dumps(name)}:")
    return text.count("\n", 0, max(0, at)) + 1
