"""Text of strangers, as it may be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text without what could move a terminal's cursor: processes choose their own command lines."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
