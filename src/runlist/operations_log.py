"""Logs of single operations, as programs under the scheduler of operations write them.

    with operations_log.writing(Path("operations.log")):
        ...                                                # runlist trace --operations operations.log

A log is a file of lines: `{"runlist_operations": 1, "pid": PID}`, then an object for each operation, with the fields of
`Operation` and times of CLOCK_MONOTONIC, in ns. `done_ns` is 0 where nobody saw it end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from runlist import operations
from runlist.errors import NotSupportedError, UsageError

_MARK = "runlist_operations"
_VERSION = 1
_MOST = 2**63 - 1
_NUMBERS = ("client", "kind", "operation_class", "sms", "called_ns", "launched_ns", "done_ns")


@dataclass(frozen=True)
class Operation:
    """One of them: called by the program, given to the driver, done on the GPU. Client 0 is that of high priority."""

    client: int
    kind: int
    operation_class: int
    sms: int
    called_ns: int
    launched_ns: int
    done_ns: int
    name: str = ""


@dataclass(frozen=True)
class Log:
    """What a program wrote: `lost` operations were overwritten before they were taken."""

    pid: int
    operations: Sequence[Operation]
    lost: int = 0


def write_head(file: IO[str], pid: int) -> None:
    """Begin a log."""
    file.write(json.dumps({_MARK: _VERSION, "pid": pid}) + "\n")


def write(file: IO[str], operations: Iterable[Operation], lost: int = 0) -> None:
    """Add to a log."""
    file.writelines(json.dumps(asdict(one)) + "\n" for one in operations)
    if lost:
        file.write(json.dumps({"lost": lost}) + "\n")


def read(path: Path) -> Log:
    """The log of a file. Raises UsageError that names file and line; a last line that is not whole is left out, as the
    program may still write.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise UsageError(f"--operations {path}: {error.strerror}: name a log of operations") from None
    whole = text[: text.rfind("\n") + 1].splitlines()
    first = _fields(path, 1, whole[0] if whole else "")
    if first.get(_MARK) != _VERSION or not _is_number(first.get("pid")):
        raise UsageError(f"--operations {path}: this is no log of operations")
    found: list[Operation] = []
    lost = 0
    for number, line in enumerate(whole[1:], 2):
        fields = _fields(path, number, line)
        if set(fields) == {"lost"} and _is_number(fields["lost"]):
            lost += fields["lost"]
            continue
        found.append(_operation(path, number, fields))
    return Log(first["pid"], found, lost)


def _fields(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UsageError(f"--operations {path}: line {number} is no operation")
    return fields


def _operation(path: Path, number: int, fields: dict[str, Any]) -> Operation:
    numbers: dict[str, Any] = {name: fields.get(name) for name in _NUMBERS}
    name = fields.get("name", "")
    wrong = [each for each, value in numbers.items() if not _is_number(value)]
    if wrong or not isinstance(name, str):
        raise UsageError(f"--operations {path}: line {number}: {(wrong or ['name'])[0]} is not what it must be")
    return Operation(name=name, **numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


class _Taken(ctypes.Structure):
    """struct rl_operation of native/include/runlist_operations.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("called_ns", "launched_ns", "done_ns")),
        *((name, ctypes.c_uint32) for name in ("client", "kind", "operation_class", "sms")),
        ("lost", ctypes.c_uint64),
        ("name", ctypes.c_char * 64),
    )


_ROOM = 4096
_EVERY_S = 0.05


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write this process' operations into a new file while this lasts, from a thread of its own. One at a time. Raises
    UsageError for a file that cannot be written, and NotSupportedError where no scheduler of operations was started.
    """
    library = operations.library()
    try:
        file = path.open("w")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: name a file that can be written") from None
    with file:
        write_head(file, os.getpid())
        file.flush()
        if library.rl_operations_log(1) < 0:
            raise NotSupportedError("no scheduler of operations was started in this process")
        taker = _Taker(library, file)
        end = threading.Event()

        def work() -> None:
            while not end.wait(_EVERY_S):
                taker.take()

        thread = threading.Thread(target=work, daemon=True, name="operations-log")
        thread.start()
        try:
            yield
        finally:
            end.wait(_EVERY_S)  # what the program waited for is seen to be done a little later
            end.set()
            thread.join()
            library.rl_operations_log(0)
            taker.take()  # with what is not done


class _Taker:
    """Takes what the library has, and writes it."""

    def __init__(self, library: ctypes.CDLL, file: IO[str]) -> None:
        self._library, self._file = library, file
        self._room = (_Taken * _ROOM)()
        self._lost = 0

    def take(self) -> None:
        """All that is there."""
        while (count := self._library.rl_operations_take(self._room, _ROOM)) > 0:
            taken = self._room[:count]
            lost, self._lost = taken[-1].lost - self._lost, taken[-1].lost  # it is told of all since the start
            write(self._file, map(_operation_of, taken), lost)
            self._file.flush()
            if count < _ROOM:
                return


def _operation_of(taken: Any) -> Operation:
    return Operation(
        taken.client, taken.kind, taken.operation_class, taken.sms, taken.called_ns, taken.launched_ns, taken.done_ns,
        taken.name.decode(errors="replace"),
    )  # fmt: skip
