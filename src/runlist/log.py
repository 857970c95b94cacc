"""Lines on standard error: the log of programs that run on, and single lines of those that have none."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, TextIO, cast

from runlist.text import printable

if TYPE_CHECKING:
    from structlog.typing import Processor


MOST_LETTERS, MOST_ITEMS = 1_000, 50
"""Of one value in a line of the log: whoever may cause a few lines a second must not fill a disk by long ones."""


def have_streams() -> None:
    """Open what whoever started us closed of the standard streams: else the next files get their numbers, such as a
    socket of somebody's, and what we and ours write to standard error goes there. Call it before anything is opened.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def say(line: str, who: str = "runlist") -> None:
    """One line, which may quote anybody. Standard error may be full or closed: what cannot be written is lost."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(f"{who}: {line}"), file=sys.stderr, flush=True)


def say_to_system(line: str, who: str, tag: str) -> None:
    """One line, also in the system's log under a tag: of programs whose standard error nobody may see."""
    import syslog

    say(line, who)
    syslog.openlog(tag, syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, printable(f"{who}: {line}"))


def write(text: str) -> None:
    """To standard error, as far as that takes it at once. What it does not, as a full disk, a terminal that was stopped
    by Ctrl-S or a journal that hangs, is lost and disturbs nobody.
    """
    octets = text.encode(errors="backslashreplace")
    room = select.poll()
    room.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        while octets and any(event & select.POLLOUT for _, event in room.poll(0)):
            piece = octets[: select.PIPE_BUF]  # for more than that a pipe does not say whether it waits
            octets = octets[os.write(2, piece) :]


class _StandardError:
    def write(self, text: str) -> None:
        write(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def _shown(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """One line that is not too long, and nothing that moves a terminal's cursor: strangers choose what is quoted."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _short(printable(value))
        elif isinstance(value, list) and len(value) > MOST_ITEMS:
            event[name] = f"{value[:MOST_ITEMS]} and {len(value) - MOST_ITEMS} more"
    return event


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}... ({len(text)} letters)"


def to_standard_error(*first: Processor) -> None:
    """Have the log written there, by whoever logs. `first` may change lines, or drop them."""
    import logging  # not above, as structlog: who only says a line does without

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[
            *first,
            _shown,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _StandardError())),
    )
