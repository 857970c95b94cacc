"""Logs of single operations, as programs under the scheduler of operations write them.

    with operations_log.writing(Path("operations.log")):
        ...                                                # runlist trace --operations operations.log

A log is a file of lines: `{"runlist_operations": 1, "pid": PID}`, then an object for each operation, with the fields of
`Operation` and times of CLOCK_MONOTONIC, in ns. `done_ns` is 0 where nobody saw it end.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from runlist import operations
from runlist.errors import NotSupportedError, UsageError
from runlist.log import say
from runlist.operations.native import runs
from runlist.operations.record import Operation
from runlist.operations.tap import listening

__all__ = ["Log", "Operation", "read", "write", "write_head", "writing"]

_MARK = "runlist_operations"
_VERSION = 1
_MOST = 2**63 - 1
MOST_BYTES = 256 << 20
"""Of a log that is read."""
_NUMBERS = ("client", "kind", "operation_class", "sms", "called_ns", "launched_ns", "done_ns")


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


def read(path: Path, what: str = "") -> Log:
    """The log of a file, which `what` names in errors. Raises UsageError that names file and line; a last line that is
    not whole is left out, as the program may still write.
    """
    shown = what or f"--operations {path}"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{shown}: no file: name a log of operations")
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror}: name a log of operations") from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"{shown}: more than {MOST_BYTES >> 20} MiB: write a shorter log")
    text = content.decode(errors="replace")
    whole = text[: text.rfind("\n") + 1].splitlines()
    first = _fields(shown, 1, whole[0] if whole else "")
    if first.get(_MARK) != _VERSION or not _is_number(first.get("pid")):
        raise UsageError(f"{shown}: this is no log of operations")
    found: list[Operation] = []
    lost = 0
    for number, line in enumerate(whole[1:], 2):
        fields = _fields(shown, number, line)
        if set(fields) == {"lost"} and _is_number(fields["lost"]):
            lost += fields["lost"]
            continue
        found.append(_operation(shown, number, fields))
    return Log(first["pid"], found, lost)


def _fields(shown: str, number: int, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UsageError(f"{shown}: line {number} is no operation")
    return fields


def _operation(shown: str, number: int, fields: dict[str, Any]) -> Operation:
    numbers: dict[str, Any] = {name: fields.get(name) for name in _NUMBERS}
    name = fields.get("name", "")
    wrong = [each for each, value in numbers.items() if not _is_number(value)]
    if not wrong and numbers["client"] >= operations.MOST_CLIENTS:
        wrong = ["client"]
    if wrong or not isinstance(name, str):
        raise UsageError(f"{shown}: line {number}: {(wrong or ['name'])[0]} is not what it must be")
    return Operation(name=name, **numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Write this process' operations into a new file while this lasts, from a thread of its own. Raises UsageError for
    a file that cannot be written, and NotSupportedError where no scheduler of operations was started; then a file that
    is there is left as it is.
    """
    library = operations.library()
    if not runs(library):
        raise NotSupportedError("no scheduler of operations was started in this process")
    file = _begun(Path(path))
    whole = True

    def missing(error: OSError) -> None:
        nonlocal whole
        if whole:
            say(f"{path}: {error.strerror}: operations are missing in it from here on")
        whole = False

    def sink(taken: Sequence[Operation], lost: int) -> None:
        if whole:  # or it would go on within a line that broke off, and nobody could read what is before that
            try:
                write(file, taken, lost)
                file.flush()
            except OSError as error:
                missing(error)

    try:
        with listening(library, sink):
            yield
    finally:
        try:
            file.close()
        except OSError as error:
            missing(error)


def _begun(path: Path) -> IO[str]:
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(path.open("w"))
            write_head(file, os.getpid())
            file.flush()
            opened.pop_all()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: name a file that can be written") from None
    return file
