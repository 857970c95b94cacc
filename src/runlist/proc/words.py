"""The words of a process: its command line and its environment. They are its own memory, and it chooses them."""

from __future__ import annotations

from runlist.proc import patience
from runlist.proc.process import other_thread, read_bytes
from runlist.text import printable

MAX_COMMAND_LINE = 1 << 15
"""How many bytes are read: it may be longer."""


def own_words(pid: int, name: str, limit: int) -> list[bytes]:
    """The words of `cmdline` or `environ`: none where the process takes its time."""
    return own_bytes(pid, name, limit).split(b"\0")


def own_bytes(pid: int, name: str, limit: int) -> bytes:
    """The same as they are: each ends with a zero byte."""

    def content() -> bytes:
        return read_bytes(pid, name, limit) or read_bytes(pid, f"task/{other_thread(pid)}/{name}", limit)

    return patience.ask(pid, content, b"")


def command_line(pid: int) -> str:
    """A process' words, separated by spaces and printable; its first 32 KiB, empty where there is none."""
    words = own_words(pid, "cmdline", MAX_COMMAND_LINE)
    return printable(b" ".join(words).decode("utf-8", "replace").strip())


def short_command(line: str) -> str:
    """A command line, short: the program's name and its first arguments."""
    program, _, rest = line.partition(" ")
    return f"{program.rpartition('/')[2]} {rest}".strip()[:80] or "?"
