"""Notebooks whose class follows their work: normal while a cell runs, batch once nobody ran one for a while.

An extension of IPython, for a kernel: `%load_ext runlist.integrations.jupyter`, or for all of a machine's in
/etc/ipython/ipython_kernel_config.py (docs/jupyterhub.md). It uses the daemon that runs, and starts none; without one,
or where it refuses, the notebook goes on as if the extension were not there.
"""

from __future__ import annotations

import os
from typing import Any

from runlist.errors import UsageError
from runlist.integrations.jupyter.idle import ACTIVE, AFTER_S, IDLE, IdleClass

_loaded: dict[int, IdleClass] = {}
"""By the id of the shell."""


def load_ipython_extension(shell: Any) -> None:
    """Follow a shell's cells. `c.Runlist.active`, `c.Runlist.idle` and `c.Runlist.after_s` of its configuration say
    which classes, and after how long. Raises UsageError for what cannot be meant.
    """
    unload_ipython_extension(shell)
    settings = {"active": ACTIVE, "idle": IDLE, "after_s": AFTER_S}
    config = {**settings, **shell.config.get("Runlist", {})}
    if unknown := config.keys() - settings.keys():
        raise UsageError(f"c.Runlist.{min(unknown)}: no such setting: take {', '.join(settings)}")
    try:
        after_s = float(config["after_s"])
    except (TypeError, ValueError):
        raise UsageError(f"c.Runlist.after_s = {config['after_s']!r}: take a number of seconds") from None
    follower = IdleClass(os.getpid(), str(config["active"]), str(config["idle"]), after_s)
    shell.events.register("pre_run_cell", follower.begin)
    shell.events.register("post_run_cell", follower.end)
    _loaded[id(shell)] = follower


def unload_ipython_extension(shell: Any) -> None:
    """Stop following; the class stays what it is."""
    if (follower := _loaded.pop(id(shell), None)) is not None:
        shell.events.unregister("pre_run_cell", follower.begin)
        shell.events.unregister("post_run_cell", follower.end)
        follower.close()
