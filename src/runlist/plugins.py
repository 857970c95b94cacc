"""Classes that are found by the name of a module of ours, or in a file of a user's own: policies, and rules of the
scheduler of operations.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Generic, TypeVar

import msgspec

from runlist import trusted
from runlist.errors import Ended, NoPermissionError, UsageError

_MAX_FILE = 1 << 20
_MODULE = "runlist_user_"
"""How the names of modules begin that are files of users."""
_NO_NAME = re.compile(r"\W")

_Class = TypeVar("_Class")


class Plugins(msgspec.Struct, Generic[_Class], frozen=True):
    """Those of a kind, which is called `what`. Ours are the modules of `package` but `others`, and where `packages`
    says so only those that are packages. Each defines `what` in capitals, a subclass of `base` (`base_name` in words).
    """

    what: str
    package: str
    base: type[_Class]
    base_name: str
    others: frozenset[str]
    packages: bool = False

    def names(self) -> list[str]:
        """Of ours."""
        found = pkgutil.iter_modules(importlib.import_module(self.package).__path__)
        return sorted({one.name for one in found if one.ispkg or not self.packages} - self.others)

    def find(self, name: str) -> type[_Class]:
        """By its name, or the path of a .py file. Raises UsageError for what is none, and NoPermissionError for a file
        that somebody else can write.
        """
        if not name.endswith(".py"):
            return self.ours(name)
        path = Path(name)
        return self._class(_load(path, self.what), str(path))

    def look_at(self, name: str) -> None:
        """Read the file of one that is no name, and load nothing. Raises as `find`."""
        if name.endswith(".py"):
            _source(Path(name), self.what)

    def ours(self, name: str) -> type[_Class]:
        """By its name. Raises UsageError."""
        full, module = f"{self.package}.{name}", None
        try:
            if name.isidentifier() and name not in self.others:
                module = importlib.import_module(full)
        except ImportError as error:
            if error.name != full or not isinstance(error, ModuleNotFoundError):
                advice = "where another version of Runlist was installed meanwhile, start this anew"
                raise UsageError(f"{self.what} {name} cannot be loaded ({error}): {advice}") from None
        if module is None or not hasattr(module, self.what.upper()):
            known = ", ".join(self.names())
            raise UsageError(f"no {self.what} {name!r}: take {known} or the path of a .py file")
        return self._class(module, name)

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[None]:
        """While one is made, which is anybody's code: raises UsageError for whatever that raises."""
        try:
            yield
        except (UsageError, Ended, KeyboardInterrupt):
            raise
        except BaseException as error:
            said = str(error) if isinstance(error, ValueError) else line_of(error.__traceback__) + repr(error)
            raise UsageError(f"{self.what} {name}: {said}") from None

    def _class(self, module: ModuleType, name: str) -> type[_Class]:
        cls = getattr(module, self.what.upper(), None)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise UsageError(f"{self.what} {name} does not define {self.what.upper()}, a subclass of {self.base_name}")
        return cls


def line_of(trace: TracebackType | None) -> str:
    """`line 7: `, the innermost that an exception went through in a file of a user's own; empty where it did not."""
    line = None
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__")
        if type(name) is str and name.startswith(_MODULE):  # a file may say anything there
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f"line {line}: "


def _load(path: Path, what: str) -> ModuleType:
    """The module of a file that is `what`, in a word. Raises UsageError, in one line, for what cannot be loaded, and
    NoPermissionError for a file that somebody else can write.
    """
    place = zlib.crc32(os.fsencode(path.absolute()))  # files of one name in two folders are two modules
    name = f"{_MODULE}{what}_{_NO_NAME.sub('_', path.stem)}_{place:08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    source = _source(path, what)
    try:
        with _registered(name, module):
            exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 (it is code)
    except (Ended, KeyboardInterrupt):
        raise
    except BaseException as error:
        said = f"{line_of(error.__traceback__)}{type(error).__name__}: {error}"
        raise UsageError(f"{what} file {path} cannot be loaded: {said}") from None
    return module


@contextlib.contextmanager
def _registered(name: str, module: ModuleType) -> Iterator[None]:
    """It is found by its name, as dataclasses, pickle and others ask for the module of a class; not where it fails."""
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        yield
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise


def _source(path: Path, what: str) -> bytes:
    """A file's content, if nobody else could have written it."""
    try:
        with open(trusted.open_file(path), "rb") as file:
            source = file.read(_MAX_FILE + 1)
    except NoPermissionError as error:
        raise NoPermissionError(f"{what} file {path} is refused, since it is code: {error}") from None
    except (IsADirectoryError, trusted.NoFile):
        raise UsageError(f"{what} file {path} is no plain file: name one") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise UsageError(f"{what} file {path} does not exist") from None
    except OSError as error:
        raise UsageError(f"{what} file {path} cannot be read: {error.strerror}") from None
    if len(source) > _MAX_FILE:
        raise UsageError(f"{what} file {path} is larger than {_MAX_FILE >> 20} MiB: that is no {what}")
    return source
