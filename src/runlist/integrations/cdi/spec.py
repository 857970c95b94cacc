"""What a CDI specification says of GPUs under Runlist: their nodes, the library with its preload, the daemon's socket
for messages, and a hook that tells the daemon which container this is.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runlist.errors import UsageError
from runlist.integrations.kubernetes import names
from runlist.planes.interface import NodeGpu
from runlist.protocol import environment_autogen as variables

VERSION = "0.5.0"
"""The first in which a device may be called `0`; newer ones add nothing that is needed here."""
FOLDER = "/opt/runlist"
LIBRARY = f"{FOLDER}/librunlist.so"
MESSAGES_FOLDER = variables.SYSTEM_FOLDER
"""In a container: where programs look for root's daemon."""
DEVICE_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Those that are no single GPU's."""
ALL = "all"
_PARTS = {"env": "", "deviceNodes": "path", "mounts": "containerPath", "hooks": "path"}
"""The lists of edits, and what each of their objects has to have; variables are text."""
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", re.ASCII)
_BIND = ["ro", "nosuid", "nodev", "bind"]

Edits = dict[str, Any]


def common_environment(library: bool, messages: bool) -> dict[str, str]:
    """Variables of a container in which the library and the folder with the socket are mounted."""
    found = {variables.PRELOAD: LIBRARY} if library else {}
    if messages:
        found[variables.MESSAGES] = f"{MESSAGES_FOLDER}/{variables.MESSAGES_SOCKET}"
    return found


def mount(host: str, container: str, options: Sequence[str] = _BIND) -> dict[str, Any]:
    """A folder or file of the host's."""
    return {"hostPath": host, "containerPath": container, "options": list(options)}


def spec(
    gpus: Sequence[NodeGpu],
    library: Path | None,
    messages: Path | None,
    hook: Sequence[str],
    hook_environment: Mapping[str, str],
    extra: Edits | None = None,
) -> dict[str, Any]:
    """A specification with each GPU by its index and its UUID, and all of them. `library` and `messages` are the
    host's, `hook` the words of a program for a container's begin and end; `extra` more edits for every container.
    """
    every = _edits(
        [f"{name}={value}" for name, value in common_environment(library is not None, messages is not None).items()],
        [path for path in DEVICE_NODES if Path(path).exists()],
        [mount(str(library), LIBRARY)] if library is not None else [],
    )
    if messages is not None:
        every.setdefault("mounts", []).append(mount(str(messages), MESSAGES_FOLDER))
    if hook:
        environment = [f"{name}={value}" for name, value in hook_environment.items()]
        # The first begins before any program of the container does; the last comes when all have ended.
        every["hooks"] = [
            {"hookName": when, "path": hook[0], "args": list(hook), "env": environment, "timeout": 10}
            for when in ("createRuntime", "poststop")
        ]
    nodes = {gpu.uuid: [f"/dev/nvidia{gpu.minor}"] if gpu.minor is not None else [] for gpu in gpus}
    devices = [_device(name, nodes[gpu.uuid]) for gpu in gpus for name in (str(gpu.index), gpu.uuid)]
    devices.append(_device(ALL, [path for paths in nodes.values() for path in paths]))
    found = {"cdiVersion": VERSION, "kind": names.CDI_KIND, "devices": devices, "containerEdits": every}
    return found if extra is None else {**found, "containerEdits": joined(every, extra)}


def with_drivers(ours: dict[str, Any], text: str, where: str) -> dict[str, Any]:
    """A specification with what another, such as NVIDIA's, does for the devices of the same names: then one --device is
    enough. Raises UsageError for what is none.
    """
    try:
        theirs = json.loads(text)
        found = {str(device["name"]): _checked(device["containerEdits"]) for device in theirs["devices"]}
        every = _checked(theirs.get("containerEdits") or {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(
            f"{where}: no CDI specification in JSON: `nvidia-ctk cdi generate --format=json --output=FILE` writes one"
        ) from None
    if not any(device["name"] in found for device in ours["devices"]):
        raise UsageError(f"{where}: it has none of the devices here: {', '.join(found) or 'it is empty'}")
    made = copy.deepcopy(ours)
    for device in made["devices"]:
        if device["name"] in found:
            device["containerEdits"] = joined(found[device["name"]], device["containerEdits"])
    made["containerEdits"] = joined(every, made["containerEdits"])
    made["cdiVersion"] = max(made["cdiVersion"], str(theirs.get("cdiVersion", "")), key=_version)
    return made


def _checked(edits: Any) -> Edits:
    """Edits of others, which engines would refuse together with ours. Raises ValueError for what is none."""
    if not isinstance(edits, dict):
        raise ValueError("edits are an object")
    for name, key in _PARTS.items():
        parts = edits.get(name) or []
        if not (isinstance(parts, list) and all(_is_part(one, key) for one in parts)):
            raise ValueError(f"{name} is a list")
    return edits


def _is_part(one: Any, key: str) -> bool:
    return isinstance(one, dict) and key in one if key else isinstance(one, str)


def joined(first: Edits, second: Edits) -> Edits:
    """The edits of both, each once. For a variable or path that both name, the second counts."""
    made: Edits = {**first, **second}
    for key, of in (("env", _variable), ("deviceNodes", _node), ("mounts", _target)):
        together = {of(one): one for one in [*(first.get(key) or []), *(second.get(key) or [])]}
        if together:
            made[key] = list(together.values())
    hooks = [*(first.get("hooks") or []), *(second.get("hooks") or [])]
    return {**made, "hooks": hooks} if hooks else made


def _variable(text: str) -> str:
    return text.partition("=")[0]


def _node(node: dict[str, Any]) -> str:
    return str(node["path"])


def _target(one: dict[str, Any]) -> str:
    return str(one["containerPath"])


def _version(text: str) -> tuple[int, ...]:
    match = _VERSION.fullmatch(text)
    return tuple(map(int, match.groups())) if match else ()


def _device(name: str, nodes: Iterable[str]) -> dict[str, Any]:
    """One device. Nobody reads the variable: a device has to edit something, also where it has no node."""
    return {"name": name, "containerEdits": _edits([f"RUNLIST_CDI_DEVICE={name}"], list(nodes), [])}


def _edits(environment: list[str], nodes: list[str], mounts: list[dict[str, Any]]) -> Edits:
    """Only what there is: some readers refuse an empty list."""
    found = {"env": environment, "deviceNodes": [{"path": path} for path in nodes], "mounts": mounts}
    return {key: value for key, value in found.items() if value}


def as_yaml(value: Any, pad: str = "") -> str:
    """A value of dicts, lists, texts and numbers as YAML, whose scalars are written as JSON's."""
    if isinstance(value, dict) and value:
        return "".join(f"{pad}{json.dumps(key)}:{_below(child, pad)}" for key, child in value.items())
    if isinstance(value, list) and value:
        return "".join(f"{pad}- {as_yaml(child, pad + '  ').lstrip()}" for child in value)
    return f"{pad}{json.dumps(value)}\n"


def _below(value: Any, pad: str) -> str:
    tree = isinstance(value, dict | list) and bool(value)
    return f"\n{as_yaml(value, pad + '  ')}" if tree else f" {json.dumps(value)}\n"


def emulated_edits(environment: Mapping[str, str]) -> Edits:
    """What a container needs to reach an emulated GPU: its folder and its libraries, by the paths that they have
    here.
    """
    folders = [path for name in (variables.EMULATED_GPU, variables.LIBRARY_PATH)
               for path in environment.get(name, "").split(os.pathsep) if path]  # fmt: skip
    return {
        "env": [f"{name}={value}" for name, value in environment.items()],
        "mounts": [
            mount(path, path, ["rw" if path == environment[variables.EMULATED_GPU] else "ro", "bind"])
            for path in folders
        ],
    }  # fmt: skip
