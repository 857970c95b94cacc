"""The program that a container's runtime calls when a container with a GPU of ours begins and ends: it tells the
daemon by a drop-in rule which container that is, with the settings of its annotations. It never keeps a container
from starting: what goes wrong is one line in the system's log, and on standard error, which runtimes throw away.

The runtime gives the container's state on standard input, and the rules' folder is the one argument.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runlist.errors import RunlistError, UsageError
from runlist.integrations.drop_ins import Folder, rule_text
from runlist.integrations.kubernetes.names import SETTING_PREFIX
from runlist.log import say_to_system
from runlist.settings.table import parse_request

MOST_STATE = 1 << 20
MOST_SHOWN = 200
MOST_SAID = 16
MOST_TELLING_S = 2.0
"""A log that stands still holds up who writes to it, and a runtime gives up a container whose hook takes 10 s."""

_ID = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
SETTINGS = ("class", "weight", "cap", "burst", "deadline", "p99", "group", "memory", "timeslice")


def file_name(identity: str) -> str:
    """The name of a container's rules: behind that of the node agent, which knows the pod and so goes first."""
    return f"oci-{identity}.toml"


def rule(identity: str, annotations: Mapping[str, str]) -> tuple[str, list[str]]:
    """The rules of a container as TOML, and what is wrong with its annotations: such a setting is left out. Its
    processes share as one job, unless an annotation names another group.
    """
    settings, wrong, who = {"group": "container"}, [], f"container {identity[:12]}"
    for key, value in annotations.items():
        name = key.removeprefix(SETTING_PREFIX)
        if name == key:
            continue
        try:
            if name not in SETTINGS:
                raise UsageError(f"no such key: take {', '.join(SETTINGS)}")
            parse_request({**settings, name: value})
        except RunlistError as error:
            wrong.append(f"{who}: {key}={value}"[:MOST_SHOWN] + f": {str(error)[:MOST_SHOWN]}")
        else:
            settings[name] = value
    wrong[MOST_SAID:] = [f"{who}: and {len(wrong) - MOST_SAID} more"] if wrong[MOST_SAID:] else []
    head = "Written by Runlist's hook of this container, which also removes it."
    return rule_text(head, {"container": identity}, {"container": identity}, settings), wrong


def run(state: Any, folder: Path) -> list[str]:
    """Write or remove the rules of a container in this state; returns what is to be said. Raises RunlistError,
    OSError.
    """
    if not isinstance(state, dict):
        raise UsageError("this is no container's state")
    identity, annotations = state.get("id"), state.get("annotations") or {}
    if not (isinstance(identity, str) and _ID.fullmatch(identity) and isinstance(annotations, dict)):
        raise UsageError("this is no container's state: it has no id")
    if state.get("status") == "stopped":
        for name in (file_name(identity), f"container-{identity}.toml"):  # as hooks before 0.10 called it
            (folder / name).unlink(missing_ok=True)
        return []
    text, wrong = rule(identity, {str(key): str(value) for key, value in annotations.items()})
    with Folder(folder) as opened:
        opened.put(file_name(identity), text)
    return wrong


def main() -> None:
    """The program."""
    try:
        said = run(json.loads(sys.stdin.buffer.read(MOST_STATE)), Path(sys.argv[1]))
    except (RunlistError, OSError, ValueError, IndexError, RecursionError) as error:
        said = [str(error)]
    telling = threading.Thread(target=_tell, args=(said,), daemon=True)
    telling.start()
    telling.join(MOST_TELLING_S)


def _tell(lines: list[str]) -> None:
    for line in lines:
        say_to_system(line, "runlist", "runlist-cdi")


if __name__ == "__main__":
    main()
