"""Texts in the cells of a terminal: how wide they are, and what is left of one that is too long."""

from __future__ import annotations

import unicodedata

_CUT = "…"


def cells(text: str) -> int:
    """How many cells of a terminal a text takes: letters of East Asia take two, accents of their own none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, size: int) -> str:
    """A text cut off after `size` cells, where a mark shows it."""
    if cells(text) <= size:
        return text
    while text and cells(text) >= size:
        text = text[: min(len(text) - 1, size)]
    return text + _CUT if size > 0 else ""


def cut_at_word(text: str, size: int) -> str:
    """The same for sentences: cut off after a word, unless that leaves less than half."""
    short = cut(text, size)
    if short == text or not short:
        return short
    whole = short[:-1]
    if not text[len(whole)].isspace():
        whole = whole.rpartition(" ")[0]
    whole = whole.rstrip(" ,;:(")
    return whole + _CUT if 2 * cells(whole) >= size else short


def padded(text: str, size: int, *, right: bool = False, words: bool = False) -> str:
    """A text in exactly `size` cells, cut off after a word if those count."""
    text = cut_at_word(text, size) if words else cut(text, size)
    blank = " " * (size - cells(text))
    return blank + text if right else text + blank
