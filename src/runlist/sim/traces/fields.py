"""Reading tables out of a file with errors that name the file and the field."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runlist.errors import UsageError
from runlist.text import short

_MOST_BYTES = 256 << 20


class Fields:
    """A table of a file. Every getter takes a field out; `done` refuses the rest. All raise UsageError.

    Without a `default` a field has to be there.
    """

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, Mapping):
            raise UsageError(f"{where}: take a table of fields, not {shown(table)}")
        self.where = where
        self._left: dict[str, Any] = {str(key): value for key, value in table.items()}

    def fault(self, name: str, what: str) -> UsageError:
        """An error about a field."""
        return UsageError(f"{self.where}: {name}: {what}")

    def has(self, name: str) -> bool:
        """Whether the field is there and not taken out yet."""
        return name in self._left

    def peek(self, name: str) -> Any:
        """A field that stays, or None."""
        return self._left.get(name)

    def value(self, name: str, default: Any = ...) -> Any:
        """Whatever is there."""
        if name in self._left:
            return self._left.pop(name)
        if default is ...:
            raise UsageError(f"{self.where}: {name} is missing")
        return default

    def word(self, name: str) -> str | int | float | None:
        """A string or a number, or None where there is neither."""
        value = self._left.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        del self._left[name]
        return value

    def put_back(self, name: str, value: Any) -> None:
        """Put a field back, for the next one who asks."""
        self._left[name] = value

    def number(self, name: str, default: Any = ...) -> Any:
        """A number as float, or the default."""
        value = self._checked(name, default, (int, float), "a number")
        return None if value is None else self._float(name, value)

    def whole(self, name: str, default: Any = ...) -> Any:
        """A whole number of 64 bits, or the default."""
        value = self._checked(name, default, (int,), "a whole number")
        if value is not None and value.bit_length() > 63:
            raise self.fault(name, f"{shown(value)} is too large")
        return value

    def flag(self, name: str) -> bool:
        """True or false, which it is where it is not there."""
        value = self.value(name, False)
        if not isinstance(value, bool):
            raise self.fault(name, f"take true or false, not {shown(value)}")
        return value

    def text(self, name: str, default: Any = ...) -> Any:
        """A string, or the default."""
        return self._checked(name, default, (str,), "a string")

    def items(self, name: str) -> Any:
        """A list."""
        return self._checked(name, ..., (list,), "a list")

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        values = self.items(name)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.fault(name, f"take numbers, not {shown(value)}")
        return tuple(self._float(name, value) for value in values)

    def table(self, name: str, default: Any = ...) -> Fields:
        """A table of its own."""
        return Fields(self.value(name, default), f"{self.where}: {name}")

    def done(self) -> None:
        """Refuse the fields that are left."""
        if self._left:
            raise UsageError(f"{self.where}: no such field: {', '.join(sorted(self._left))}")

    def _float(self, name: str, value: float) -> float:
        try:
            return float(value)
        except OverflowError:
            raise self.fault(name, f"{shown(value)} is too large") from None

    def _checked(self, name: str, default: Any, kinds: tuple[type, ...], wanted: str) -> Any:
        if name not in self._left and default is not ...:
            return default
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise self.fault(name, f"take {wanted}, not {shown(value)}")
        return value


def read_document(where: str, path: Path, parse: Callable[[str], Any]) -> Any:
    """What is in a file, by a parser of the standard library, JSON or TOML. Raises UsageError, which says `where`."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)  # a pipe or a device has no size
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{where}: larger than {_MOST_BYTES >> 20} MiB: take a part of it")
        return parse(content.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: line {error.lineno}: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    except ValueError:  # Python's own
        raise UsageError(f"{where}: a number has too many digits") from None
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply") from None


def shown(value: object) -> str:
    """A bad value as an error line can show it."""
    return short(repr(value))
