"""Writing drop-ins: rules of others for the daemon, a file each (docs/rules.md). Whoever writes any does it here."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from runlist import paths, trusted
from runlist.text import printable

MAX_LABEL = 253
"""Letters of a label's value that the daemon takes."""

Value = str | int | Sequence["Value"] | Mapping[str, "Value"]
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def rule_text(
    head: str,
    conditions: Mapping[str, Value],
    labels: Mapping[str, str],
    settings: Mapping[str, str],
    refuse: Mapping[str, Value] | None = None,
) -> str:
    """A file with one rule, below a remark that says who wrote it."""
    said = {
        **conditions,
        "labels": {key: value[:MAX_LABEL] for key, value in labels.items() if value},
        "set": settings,
        **({"refuse": refuse} if refuse else {}),
    }
    return "\n".join(
        [f"# {printable(head)}", "[[rule]]", *(f"{key} = {_toml(value)}" for key, value in said.items()), ""]
    )


def _toml(value: Value) -> str:
    """A value as TOML has it: whoever names a pod or a group does not write our rules."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        escaped = printable(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in sorted(value.items()))
        return f"{{ {pairs} }}" if pairs else "{}"
    return "[\n" + "".join(f"  {_toml(one)},\n" for one in value) + "]"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


class Folder:
    """The folder of drop-ins. What is done happens in the very folder that `open` made or checked, and a file is there
    as a whole or not at all. Methods raise RunlistError or OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def open(self) -> None:
        """Open what has the path now; it is made where it is missing, as after somebody removed it."""
        self.close()
        paths.make_private(self.path.parent)
        paths.make_private(self.path)
        self.fd = trusted.open_folder(self.path)

    @property
    def is_current(self) -> bool:
        """Whether what is open still has the path."""
        try:
            return self.fd >= 0 and os.path.samestat(os.fstat(self.fd), os.lstat(self.path))
        except OSError:
            return False

    def put(self, name: str, text: str) -> None:
        """Write a file, or replace it."""
        hidden = f".{name}.{os.getpid()}"  # until it is whole
        with contextlib.suppress(FileNotFoundError):
            os.unlink(hidden, dir_fd=self.fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(hidden, flags, 0o600, dir_fd=self.fd), "w", encoding="utf-8") as file:
                file.write(text)
            os.rename(hidden, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(hidden, dir_fd=self.fd)
            raise

    def get(self, name: str) -> str | None:
        """A file's text, or None where there is none."""
        try:
            with open(trusted.open_in(self.fd, name, self.path / name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def names(self) -> list[str]:
        """All that is there."""
        return os.listdir(self.fd)

    def close(self) -> None:
        """Let go of it; the files stay."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
