"""Options of policies: strings of the user, read as numbers."""

from __future__ import annotations

from collections.abc import MutableMapping


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
    if not least <= value <= most:
        raise ValueError(f"{name}={text} is not within {least:g} to {most:g}")
    return value


def no_more(options: MutableMapping[str, str], *known: str) -> None:
    """Raise ValueError when options are left that nobody took. `known` are all that there are."""
    if options:
        raise ValueError(f"no option {', '.join(sorted(options))}: take {', '.join(known)}")
