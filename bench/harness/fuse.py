"""A file that a process of its own answers for, by FUSE: what stands in for devices and disks that are not here. Needs
root and /dev/fuse.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Answer = Callable[[int, bytes], bytes | None]
"""What the file answers to a request, by its code and body; None: it has no such request."""

IOCTL_DIR = 1 << 16
"""Of `flags`: ioctls may be asked of what is no regular part of the file system."""

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_GETATTR, _OPEN, _RELEASE, _INIT = 3, 14, 18, 26
FLUSH = 25
"""A descriptor of the file is closed, and whoever closes it waits."""
_SILENT = (2, 36, 42)  # forget, interrupt, batch forget
_MOST = 1 << 17
_DETACH = 2
_ENOSYS = 38
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def served(
    path: Path, answer: Answer, *, mode: int, size: int = 0, flags: int = 0, threads: int = 1, known_s: int = 3600
) -> Iterator[Path]:
    """Such a file at `path`, of `size` bytes. The kernel knows what it is for `known_s`; where that is 0, `answer`
    hears of each question first. Raises OSError where it cannot be mounted.
    """
    path.touch()
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fuse},rootmode={0o100000 | mode:o},user_id=0,group_id=0,allow_other".encode()
    _check(_libc.mount(b"runlist", bytes(path), b"fuse", 0, options))

    def answered(code: int, body: bytes) -> bytes | None:
        if code == _INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, flags, 0, 16, 12, 1 << 16, 1, 1, 0, 0, *[0] * 7)
        if code == _GETATTR:
            if known_s == 0:
                answer(code, body)
            blocks, times = size // 512, [0] * 6
            return struct.pack(
                "<QII3Q3Q3IIIIIIII", known_s, 0, 0, 1, size, blocks, *times, 0o100000 | mode, 1, 0, 0, 0, 512, 0
            )
        if code == _OPEN:
            return struct.pack("<QIi", 1, 0, 0)
        return b"" if code == _RELEASE else answer(code, body)

    server = os.fork()
    if server == 0:
        try:
            _serve(fuse, answered, threads)
        finally:
            os._exit(0)
    os.close(fuse)
    try:
        yield path
    finally:
        _check(_libc.umount2(bytes(path), _DETACH))
        os.kill(server, signal.SIGKILL)  # whoever still has the file mapped would keep it
        os.waitpid(server, 0)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _serve(fuse: int, answer: Answer, count: int) -> None:
    threads = [threading.Thread(target=_serve_some, args=(fuse, answer), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _serve_some(fuse: int, answer: Answer) -> None:
    while True:
        try:
            request = os.read(fuse, _MOST)
        except OSError:  # it is unmounted
            return
        code, unique = _IN.unpack_from(request)[1:3]
        if code in _SILENT:
            continue
        body = answer(code, request[_IN.size :])
        said = body or b""
        try:
            os.write(fuse, _OUT.pack(_OUT.size + len(said), 0 if body is not None else -_ENOSYS, unique) + said)
        except OSError:  # whoever asked is gone
            continue
