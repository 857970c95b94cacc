"""The folder of drop-ins: files of rules that other programs write, in force as soon as they are there.

A file counts when it was written to its end or renamed into its place. One that is wrong, or that others can write,
changes nothing: what it said before stays, and `troubles` says what is wrong. Files are read in a thread, and only
those that changed.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from runlist import trusted
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.reading import MAX_DROP_IN, shown
from runlist.daemon.placement.rule import Rule
from runlist.daemon.placement.rules import Rules
from runlist.errors import RunlistError
from runlist.proc.exhaustion import passes
from runlist.proc.inotify import Changes, FolderWatch
from runlist.proc.pool import Pool
from runlist.text import printable

_log = structlog.get_logger()

MOST_FILES = 8192
GATHER_S = 0.02
"""Changes that come so soon one after the other are taken together."""

REST = 4
"""After a change it rests for so many times as long as that took: others want the daemon's time, too."""

MOST_REST_S = 0.3
LOOK_EVERY_S = 0.5
"""How often the folder is looked through where the kernel does not tell of changes."""

REMOVAL_S = 0.3
"""How long whoever removes the folder may take to remove the one that it is in."""

PATIENCE_S = 5.0
"""How long reading may take before `troubles` says so."""

_THE_FOLDER = ""
_TOO_MANY = f"{{}}: more than {MOST_FILES} drop-ins: the last ones are left out"
_Signature = tuple[int, ...]
_ALL = Changes(frozenset(), all=True)


class _Read(msgspec.Struct, frozen=True):
    """What became of a file: its rules, or what is wrong, or neither where it is gone. Without a signature it is looked
    at again.
    """

    name: str
    signature: _Signature = ()
    rules: Rules | None = None
    trouble: str = ""


class _Look(msgspec.Struct, frozen=True):
    """What one look at the folder found. `files` are those that changed."""

    files: list[_Read]
    trouble: str = ""


class DropIns:
    """Keeps a book up to date. `changed` is called with the rules that came and went, once for all that changed at
    about the same time. `troubles` has a line for each file that is wrong.
    """

    def __init__(self, folder: Path, book: RuleBook, changed: Callable[[list[Rule]], None]) -> None:
        self.folder = folder
        self._book = book
        self._changed = changed
        self._untold: list[Rule] = []  # which came or went
        self._wrong: dict[str, str] = {}
        self._signatures: dict[str, _Signature] = {}
        self._watch = FolderWatch()
        self._is_first = True
        self._thread = Pool(1, "drop-ins")
        self._take(self._look(_ALL))

    @property
    def troubles(self) -> dict[str, str]:
        """What is wrong, by the file's name; empty for the folder itself."""
        return dict(self._wrong)

    async def follow(self) -> None:
        """Take what changes, for ever."""
        happened = asyncio.Event()
        loop = asyncio.get_running_loop()
        if self._watch.fileno() >= 0:
            loop.add_reader(self._watch.fileno(), happened.set)
        try:
            failed = False
            while True:
                try:
                    async with asyncio.timeout(LOOK_EVERY_S if self._tries_again or failed else None):
                        await happened.wait()
                except TimeoutError:
                    changes = _ALL
                else:
                    await asyncio.sleep(GATHER_S)
                    happened.clear()
                    changes = self._watch.changes()
                began = time.monotonic()
                try:
                    await self._update(_ALL if failed else changes)
                    failed = False
                except Exception as error:
                    if not passes(error):
                        raise
                    failed = True
                    _log.warning("the drop-ins are looked at again", reason=str(error) or "no memory")
                await asyncio.sleep(min(MOST_REST_S, REST * (time.monotonic() - began)))
        finally:
            if self._watch.fileno() >= 0:
                loop.remove_reader(self._watch.fileno())

    async def _update(self, changes: Changes) -> None:
        looking = asyncio.get_running_loop().run_in_executor(self._thread, self._look, changes)
        await asyncio.wait([looking], timeout=PATIENCE_S)
        if not looking.done():
            self._note(_THE_FOLDER, f"{self.folder}: reading takes long; what was in force stays")
        self._take(await looking)

    @property
    def _tries_again(self) -> bool:
        """Whether the kernel may not tell of what is to be looked at."""
        unread = self._wrong.keys() - self._signatures.keys()
        return not self._watch.works or bool(unread)

    def close(self) -> None:
        """Let go of the folder."""
        self._watch.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- in force ----------------------------------------------------------------------------------

    def _take(self, look: _Look) -> None:
        self._note(_THE_FOLDER, look.trouble)
        for read in look.files:
            self._signatures.pop(read.name, None)
            if read.signature:
                self._signatures[read.name] = read.signature
            self._note(read.name, read.trouble)
            if not read.trouble:
                self._untold += self._book.put(read.name, read.rules)
        if self._untold:
            self._changed(self._untold)
            self._untold = []

    def _note(self, name: str, trouble: str) -> None:
        if trouble and self._wrong.get(name) != trouble:
            _log.warning("a drop-in is refused, and what it said before stays", reason=trouble)
        if trouble:
            self._wrong[name] = trouble
        else:
            self._wrong.pop(name, None)

    # -- looking, in the thread --------------------------------------------------------------------

    def _look(self, changes: Changes) -> _Look:
        try:
            folder = self._opened()
        except FileNotFoundError:
            return _Look([_Read(name) for name in self._signatures], f"{self.folder}: the folder above it is gone")
        except (RunlistError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return _Look([], f"{self.folder}: the drop-ins are refused: {reason}")
        try:
            every = changes.all or changes.moved or _THE_FOLDER in self._wrong or not self._watch.works
            if every:
                self._watch.watch(folder)
            names = self._names(folder) if every else sorted(changes.names | self._linked(folder, changes.made))
            names = [name for name in names if _counts(name)]
            files = [read for name in names[:MOST_FILES] if (read := self._read(folder, name)) is not None]
            return _Look(files, _TOO_MANY.format(self.folder) if len(names) > MOST_FILES else "")
        except OSError as error:
            return _Look([], f"{self.folder}: the drop-ins cannot be read: {error.strerror}")
        finally:
            os.close(folder)

    def _opened(self) -> int:
        """The folder, made where it is missing; but not where the daemon's whole folder is being removed, as that of an
        emulated GPU which ends: nothing is to be left of that.
        """
        if self._is_first:
            self._is_first = False
            return trusted.open_folder(self.folder, make=0o700)
        try:
            return trusted.open_folder(self.folder)
        except FileNotFoundError:
            time.sleep(REMOVAL_S)
            return trusted.open_folder(self.folder, make=0o700, above=False)

    def _names(self, folder: int) -> list[str]:
        there = os.listdir(folder)
        gone = (self._signatures.keys() | self._wrong.keys()) - {_THE_FOLDER, *there}
        return [*sorted(gone), *sorted(there)]

    def _linked(self, folder: int, names: Iterable[str]) -> set[str]:
        """Those that are whole as soon as they are there: links of both kinds, and what is no file."""
        whole = set()
        for name in names:
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                whole.add(name)
        return whole

    def _read(self, folder: int, name: str) -> _Read | None:
        """A file that changed; None for one that did not."""
        path = self.folder / name
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return _Read(name)
        except OSError as error:
            return _Read(name, trouble=f"{shown(path)}: it cannot be looked at: {error.strerror}")
        signature = (
            found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns,
            found.st_mode, found.st_uid, found.st_gid,
        )  # fmt: skip
        if signature == self._signatures.get(name):
            return None
        if name not in self._signatures and len(self._signatures) >= MOST_FILES:
            return _Read(name, signature, trouble=_TOO_MANY.format(shown(path)))
        try:
            with open(trusted.open_in(folder, name, path), "rb") as file:
                content = file.read(MAX_DROP_IN + 1)
            return _Read(name, signature, Rules.of_drop_in(path, content))
        except FileNotFoundError:
            return _Read(name)
        except trusted.NoFile:
            reason = f"{shown(path)}: not a file: put a file of rules there, or remove it"
        except OSError as error:
            return _Read(name, trouble=f"{shown(path)}: it cannot be read: {error.strerror}")
        except trusted.Untrusted as error:
            reason = printable(f"{path.name}: refused: {error}")
        except RunlistError as error:
            reason = printable(str(error))
        return _Read(name, signature, trouble=reason)


def _counts(name: str) -> bool:
    return name.endswith(".toml") and not name.startswith(".")
