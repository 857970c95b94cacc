"""A file that answers every ioctl with success, and the argument as it came: what stands in for a driver's device where
there is none. The kernel sees true ioctls on it. Needs root and /dev/fuse.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from bench.harness import fuse

_IN = struct.Struct("<QIIQII")
_IOCTL = 39


def ioctl_file(path: Path, before: Callable[[], object] | None = None) -> AbstractContextManager[Path]:
    """Such a file at `path`, served by two threads of a process of its own; each calls `before` ahead of an answer."""

    def answer(code: int, body: bytes) -> bytes | None:
        if before is not None and code == _IOCTL:
            before()
        return _answer(code, body)

    return fuse.served(path, answer, mode=0o666, flags=fuse.IOCTL_DIR, threads=2)


def _answer(code: int, body: bytes) -> bytes | None:
    if code != _IOCTL:
        return None
    *_, in_size, out_size = _IN.unpack_from(body)
    data = body[_IN.size : _IN.size + in_size]
    return struct.pack("<iIII", 0, 0, 0, 0) + data[:out_size].ljust(out_size, b"\0")


if __name__ == "__main__":
    with ioctl_file(Path(sys.argv[1])):
        sys.stdin.read()
