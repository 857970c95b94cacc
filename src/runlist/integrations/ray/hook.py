"""The place in Ray where a worker learns which GPUs its next task has, and what is done there.

Ray has no public place for this: one function of its own is wrapped, and nothing where Ray is not as it was read. A
task never fails because of us.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

from runlist.errors import RunlistError
from runlist.integrations.ray.shares import Options
from runlist.integrations.ray.worker import Worker
from runlist.log import say
from runlist.protocol import environment_autogen as names

WRAPPED = "set_visible_accelerator_ids"
"""Of ray._private.utils: called in the worker before each task and before the making of an actor, without arguments."""

OLDEST, NEWEST_MAJOR = (2, 9), 2
"""Versions of Ray that have it so."""

_MARK = "_runlist_worker"


def setup() -> None:
    """Have this worker of Ray managed by what its tasks and actors ask for in `num_gpus`: for
    `worker_process_setup_hook`. What goes wrong is one line on standard error.
    """
    try:
        import ray
        from ray._private import utils

        options = Options.parse(os.environ.get(names.RAY, ""))
        install(ray, utils, Worker(options, say))
    except RunlistError as error:
        say(f"Ray's num_gpus is not kept: {error}")
    except Exception as error:
        say(f"Ray's num_gpus is not kept: {type(error).__name__}: {error}")


def install(ray: Any, utils: Any, worker: Worker) -> None:
    """Wrap the one function, once. Raises RunlistError for a Ray in which it is not as it was."""
    wrapped: Any = getattr(utils, WRAPPED, None)
    if hasattr(wrapped, _MARK):
        return
    if (reason := unknown(str(ray.__version__), wrapped)) is not None:
        raise RunlistError(f"Ray {ray.__version__} {reason}: get a newer Runlist, or another Ray")

    @functools.wraps(wrapped)
    def set_visible_accelerator_ids() -> Any:
        result = wrapped()
        try:
            context = ray.get_runtime_context()
            worker.next_task(context.get_assigned_resources(), context.get_accelerator_ids().get("GPU", []))
        except Exception as error:
            worker.say_once(f"Ray's num_gpus is not kept: {type(error).__name__}: {error}")
        return result

    setattr(set_visible_accelerator_ids, _MARK, worker)
    setattr(utils, WRAPPED, set_visible_accelerator_ids)


def unknown(version: str, wrapped: object) -> str | None:
    """Why this Ray is not one that we know; None for one that is."""
    numbers = version.split(".")
    if not all(number.isdecimal() for number in numbers[:2]) or len(numbers) < 2:
        return "has a version that says nothing"
    found = (int(numbers[0]), int(numbers[1]))
    if found < OLDEST:
        return f"is older than {'.'.join(map(str, OLDEST))}"
    if found[0] > NEWEST_MAJOR:
        return f"is newer than {NEWEST_MAJOR}"
    if not callable(wrapped) or inspect.signature(wrapped).parameters:
        return f"gives workers their GPUs in another way (no {WRAPPED}() in ray._private.utils)"
    return None
