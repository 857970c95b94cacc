"""The runtime environment with which Ray's workers are managed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from runlist.errors import RunlistError
from runlist.integrations.ray.shares import Options
from runlist.log import say
from runlist.planes.process import preload
from runlist.planes.process.library import library
from runlist.protocol import environment_autogen as names
from runlist.units import MAX_SIZE

HOOK = "runlist.ray.setup"
_KEY = "worker_process_setup_hook"

NO_LIMIT_YET = MAX_SIZE
"""It has the library make a region, in which the quota is written later."""


def runtime_env(
    *,
    cap: bool = False,
    memory: bool = False,
    task_class: str | None = None,
    env_vars: Mapping[str, str] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """A runtime environment for `ray.init` with which `num_gpus` is kept, beside `others` that it is to have.

    With `cap` a part of a GPU is also the most of its time that a task gets, and with `memory` the most of its memory:
    for that librunlist.so is preloaded, which must be at the same place on all nodes. Raises UsageError for a bad
    class, FileNotFoundError for an installation without the library.
    """
    options = Options.parse(Options(cap, memory, task_class).words())
    others.pop(_KEY, None)
    variables = dict(env_vars or {})
    if options.words():
        variables[names.RAY] = options.words()
    if options.memory:
        variables = {**variables, **memory_variables(variables)}
    environment: dict[str, Any] = {**others, _KEY: HOOK}
    return {**environment, "env_vars": variables} if variables else environment


def extended(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The runtime environment of a script with what `runtime_env` adds, by the words of RUNLIST_RAY: for Ray's
    RAY_RUNTIME_ENV_HOOK, so that no script has to say anything. One with a hook of its own stays as it is, and what
    goes wrong is a line on standard error.
    """
    kept = dict(given or {})
    try:
        options = Options.parse(os.environ.get(names.RAY, ""))
        if kept.get(_KEY, HOOK) != HOOK:
            raise RunlistError(f"the script has a {_KEY} of its own: call {HOOK}() in it")
        return runtime_env(cap=options.cap, memory=options.memory, task_class=options.task_class, **kept)
    except (RunlistError, OSError) as error:
        say(f"Ray's num_gpus is not kept: {error}")
        return kept


def memory_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What a worker needs in its environment before it starts, so that it can have a memory quota later."""
    loaded = preload.variables(library(), None, strict=None, inherited=environment)
    return {**loaded, names.MEMORY: str(NO_LIMIT_YET)}
