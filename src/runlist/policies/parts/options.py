"""Options of policies: strings of the user, read as numbers and lengths of time."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping

from runlist.units import parse_duration_us, parse_number


def number(
    options: MutableMapping[str, str], name: str, default: float, least: float, most: float, *, ms: bool = False
) -> float:
    """Take an option out of `options`; the default when it is not there. With `ms` it is a length of time: a number of
    milliseconds, or one with its unit. Raises ValueError, with one clear line, for a value outside `least` to `most`.
    """
    text = options.pop(name, None)
    if text is None:
        return default
    value = parse_number(text)
    if value is None:
        if not ms or (microseconds := parse_duration_us(text)) is None:
            also = " of ms, nor one with its unit, such as 20ms or 1s" if ms else ""
            raise ValueError(f"{name}={text} is not a number{also}")
        value = microseconds / 1e3
    if not least <= value <= most:
        raise ValueError(f"{name}={text} is not within {least:g} to {most:g}{' ms' if ms else ''}")
    return value


def word(options: MutableMapping[str, str], name: str, default: str, words: Collection[str]) -> str:
    """Take an option out of `options` that is one of some words; the default when it is not there. Raises ValueError,
    with one clear line, for another word.
    """
    text = options.pop(name, default)
    if text not in words:
        raise ValueError(f"no {name} {text!r}: take {', '.join(words)}")
    return text


def no_more(options: MutableMapping[str, str], *known: str) -> None:
    """Raise ValueError when options are left that nobody took. `known` are the names of all."""
    if options:
        raise ValueError(f"no option {', '.join(sorted(options))}: take {', '.join(known)}")
