"""Code of a user's own in a file: policies, and rules of the scheduler of operations."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from runlist import trusted
from runlist.errors import NoPermissionError, UsageError

_MAX_FILE = 1 << 20


def load(path: Path, what: str) -> ModuleType:
    """The module of a file that is `what`, in a word. Raises UsageError, in one line, for what cannot be loaded, and
    NoPermissionError for a file that somebody else can write.
    """
    spec = importlib.util.spec_from_file_location(f"runlist_user_{what}_{path.stem}", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    source = _source(path, what)
    try:
        exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 (it is code)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{what} file {path} cannot be loaded: {type(error).__name__}: {error}") from None
    return module


def _source(path: Path, what: str) -> bytes:
    """A file's content, if nobody else could have written it."""
    try:
        with open(trusted.open_file(path), "rb") as file:
            source = file.read(_MAX_FILE + 1)
    except NoPermissionError as error:
        raise NoPermissionError(f"{what} file {path} is refused, since it is code: {error}") from None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, trusted.NoFile, ValueError):
        raise UsageError(f"{what} file {path} does not exist") from None
    except OSError as error:
        raise UsageError(f"{what} file {path} cannot be read: {error.strerror}") from None
    if len(source) > _MAX_FILE:
        raise UsageError(f"{what} file {path} is larger than {_MAX_FILE >> 20} MiB: that is no {what}")
    return source
