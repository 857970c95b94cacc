"""The line of each table, key and array element in a TOML document, which tomllib does not tell.

tomllib reads the values; this only finds its way past them.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

TomlPath = tuple[str | int, ...]
"""Keys and array indices from the top: ("rule", 0, "set", "weight")."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*'""")
_SCALAR = re.compile(
    r'''"""(?:\\.|[^\\])*?"""(?!")|\'\'\'.*?\'\'\'(?!\')'''
    r"""|"(?:\\.|[^"\\])*"|'[^']*'|[^,\]}\n#]+""",
    re.DOTALL,
)

_TOKEN = re.compile(
    r'''"""(?>(?:\\.|[^"\\]|"(?!""))*)(?:"""|\\?\Z)|\'\'\'(?>(?:[^']|'(?!''))*)(?:\'\'\'|\Z)|#[^\n]*+'''
    r"""|(?P<deep>(?:(?:[A-Za-z0-9_-]++|"(?:\\.|[^"\\\n])*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16})"""
    r"""|[A-Za-z0-9_-]++|"(?:\\.|[^"\\\n])*+"?|'[^'\n]*+'?|.""",
    re.DOTALL,
)


def deep_key_at(document: str) -> int | None:
    """The line of a key with more than 16 parts, or None. Reading a key takes memory for the square of their number:
    ask before tomllib reads it.
    """
    deep = next((found for found in _TOKEN.finditer(document) if found["deep"]), None)
    return None if deep is None else document.count("\n", 0, deep.start()) + 1


def line_numbers(document: str) -> dict[TomlPath, int]:
    """Line numbers, from 1, of everything that has a name or an index in a valid TOML document."""
    return _Scanner(document).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._lines: dict[TomlPath, int] = {}
        self._last: dict[TomlPath, int] = {}  # index of the last table of each array of tables

    def scan(self) -> dict[TomlPath, int]:
        table: TomlPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._take("[["):
                *outer, name = self._keys()
                array = (*self._resolve(outer), name)
                index = self._last[array] = self._last.get(array, -1) + 1
                self._note(array)
                table = (*array, index)
                self._note(table)
                self._take("]]")
            elif self._take("["):
                table = self._resolve(self._keys())
                self._take("]")
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self._lines

    def _resolve(self, keys: list[str]) -> TomlPath:
        """The path of a header, in which the name of an array of tables stands for its last table."""
        path: TomlPath = ()
        for key in keys:
            path = (*path, key)
            self._note(path)
            if path in self._last:
                path = (*path, self._last[path])
        return path

    def _keys(self) -> list[str]:
        """A key, perhaps dotted."""
        keys = []
        while True:
            self._skip(_SPACE)
            word = self._skip(_KEY)
            keys.append(tomllib.loads(f"_ = {word}")["_"] if word[:1] in ("'", '"') else word)
            self._skip(_SPACE)
            if not self._take("."):
                return keys

    def _pair(self, table: TomlPath) -> None:
        start, path = self._at, table
        for key in self._keys():
            path = (*path, key)
            self._note(path, start)
        self._take("=")
        self._value(path)

    def _value(self, path: TomlPath) -> None:
        self._skip(_SPACE)
        if self._take("["):
            index = 0
            self._skip(_BLANK)
            while not self._take("]"):
                self._note((*path, index))
                self._value((*path, index))
                index += 1
                self._separator()
        elif self._take("{"):
            self._skip(_BLANK)
            while not self._take("}"):
                self._pair(path)
                self._separator()
        else:
            self._skip(_SCALAR)

    def _separator(self) -> None:
        self._skip(_BLANK)
        self._take(",")
        self._skip(_BLANK)

    def _take(self, word: str) -> bool:
        if not self._text.startswith(word, self._at):
            return False
        self._at += len(word)
        return True

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"no valid TOML at character {self._at}")
        self._at = match.end()
        return match[0]

    def _note(self, path: TomlPath, at: int | None = None) -> None:
        self._lines.setdefault(path, bisect_right(self._starts, self._at if at is None else at))
