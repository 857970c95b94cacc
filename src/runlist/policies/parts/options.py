"""Options of policies: strings of the user, read as numbers and lengths of time."""

from __future__ import annotations

from collections.abc import MutableMapping

from runlist.units import parse_duration_us


def number(options: MutableMapping[str, str], name: str, default: float, least: float, most: float) -> float:
    """Take an option out of `options`; the default when it is not there. Raises ValueError, with one clear line, for
    what is no number from `least` to `most`.
    """
    text = options.pop(name, None)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}={text} is not a number") from None
    return _within(f"{name}={text}", value, least, most)


def milliseconds(options: MutableMapping[str, str], name: str, default: float, least: float, most: float) -> float:
    """The same of a length of time: a number of milliseconds, or one with its unit."""
    text = options.pop(name, None)
    if text is None:
        return default
    microseconds = parse_duration_us(text, bare="ms")
    if microseconds is None:
        raise ValueError(f"{name}={text} is not a number of ms, nor one with its unit, such as 20ms or 1s")
    return _within(f"{name}={text}", microseconds / 1e3, least, most, " ms")


def _within(words: str, value: float, least: float, most: float, unit: str = "") -> float:
    if not least <= value <= most:
        raise ValueError(f"{words} is not within {least:g} to {most:g}{unit}")
    return value


def no_more(options: MutableMapping[str, str], *known: str) -> None:
    """Raise ValueError when options are left that nobody took. `known` are all that there are."""
    if options:
        raise ValueError(f"no option {', '.join(sorted(options))}: take {', '.join(known)}")
