"""The folder of a run: where it was measured, what programs answered, and files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from runlist import files
from runlist.errors import UsageError

MACHINE = "machine.json"
DIGESTS = "digests"


class Folder:
    """Of a run; what else is in it, its paper says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def machine(self) -> dict[str, Any]:
        """Where it was measured, and how. Raises UsageError where there is no run."""
        found: dict[str, Any] = self.read(self.folder / MACHINE, dict[str, Any])
        return found

    def begin(self, facts: Mapping[str, Any], same: tuple[str, ...]) -> bool:
        """Keep where this is measured, or go on with a run: whether it is one. Raises UsageError when that was made on
        another machine, or by other code.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / MACHINE).exists():
                self.write(self.folder / MACHINE, facts)
                return False
        except OSError as error:
            raise UsageError(f"{self.folder}: {error.strerror}: name another folder with --out") from None
        before = self.machine()
        other = [name for name in same if msgspec.json.encode(before.get(name)) != msgspec.json.encode(facts[name])]
        if other:
            raise UsageError(
                f"{self.folder} has a run with another {' and '.join(other)} ({before.get(other[0])}, now "
                f"{facts[other[0]]}): name another folder with --out"
            )
        return True

    def wrong(self, program: str, checks: Mapping[int, str]) -> int:
        """How many digests of requests are not those that the same requests had before; new ones are kept."""
        path = self.folder / DIGESTS / f"{program}.json"
        known: dict[int, str] = self.read(path, dict[int, str]) if path.exists() else {}
        wrong = sum(known.get(number, digest) != digest for number, digest in checks.items())
        if checks.keys() - known.keys():
            path.parent.mkdir(exist_ok=True)
            self.write(path, {**checks, **known})
        return wrong

    def write(self, path: Path, value: Any) -> None:
        """Keep a value in a file."""
        files.replace(path, msgspec.json.encode(value) + b"\n")

    def read(self, path: Path, kind: Any) -> Any:
        """The value of a file. Raises UsageError."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}: name the folder of a run with -r") from None
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}: {error}: remove it, and run again") from None
