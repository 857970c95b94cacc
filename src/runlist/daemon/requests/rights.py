"""Who may change what."""

from __future__ import annotations

import os
from collections.abc import Mapping

from runlist.errors import NoPermissionError, NoTargetError
from runlist.proc.process import owner_of
from runlist.settings.table import SETTINGS


def check_owner(pid: int, uid: int) -> None:
    """Raise NoTargetError for a process that is gone, NoPermissionError for another user's."""
    owner = owner_of(pid)
    if owner is None:
        raise NoTargetError(f"process {pid} does not exist")
    if uid not in (0, owner):
        raise NoPermissionError(f"process {pid} belongs to user {owner}: only that user and root may manage it")


def check_right(settings: Mapping[str, str], uid: int) -> None:
    """Raise NoPermissionError for privileged settings: the daemon may have rights that this user has not."""
    kept = [key for key in settings if SETTINGS[key].privileged]
    if kept and uid not in (0, os.geteuid()):
        raise NoPermissionError(f"only root and the daemon's own user may set {', '.join(kept)}")
