"""The one-way flow: which part of the package may import which, and what no source may contain."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

from runlist.planes.registry import PLANES, controls
from tests.layout.includes import circles

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "runlist"
MAX_LINES = 500

FLOW: dict[str, set[str]] = {
    # what anybody may use
    "arrivals": set(),
    "byte_lock": set(),
    "errors": {"text"},
    "log": {"text"},
    "rate": set(),
    "log_limit": {"proc", "rate"},
    "files": {"trusted"},
    "interpreter": {"errors", "protocol", "trusted"},
    "installed": set(),
    "lean": set(),
    "protocol": set(),
    "statistics": set(),
    "structure": set(),
    "text": set(),
    "trusted": {"errors"},
    "units": set(),
    "version": set(),
    "waiting": set(),
    "proc": {"errors", "rate", "text"},
    # what a policy sees, and what becomes of its decisions
    "model": {"units"},
    "plugins": {"errors", "trusted"},
    "policies": {"model", "plugins", "statistics", "units"},
    "scheduling": {"errors", "model", "plugins", "policies"},
    # the ways to GPUs and to the processes on them
    "planes": set(),
    "planes.usage": {"model"},
    "planes.interface": {"errors", "model", "planes.usage"},
    "planes.control": set(),
    "planes.registry": {"errors", "planes.control", "planes.interface", "protocol"},
    "planes.nvidia": {
        "emulated", "errors", "model", "planes.control", "planes.interface", "planes.usage", "proc", "protocol",
        "structure",
    },
    "planes.kernel": {
        "errors", "interpreter", "lean", "planes.interface", "planes.process", "proc", "protocol", "structure",
        "trusted",
    },
    "planes.process": {"errors", "installed", "proc", "protocol", "structure", "trusted"},
    "emulated": {"protocol", "errors", "installed", "trusted", "waiting"},
    "sharing": {"byte_lock", "errors", "interpreter", "paths", "planes.interface", "protocol", "trusted", "waiting"},
    # what users ask for, and what they are shown
    "settings": {"errors", "model", "planes.control", "planes.registry", "text", "units"},
    "views": {"model", "planes.control", "planes.registry", "text", "units"},
    "frames": set(),
    "wire": {"frames", "views"},
    "paths": {"errors", "protocol", "trusted"},
    # the daemon, from the ground up
    "daemon.helper": {"interpreter", "protocol"},
    "daemon.memory": {"rate", "errors", "planes.interface", "planes.process", "proc", "protocol"},
    "daemon.kernel": {
        "daemon.helper", "daemon.placement", "model", "paths", "planes.interface", "planes.kernel", "proc", "protocol",
        "settings",
    },
    "daemon.undo": {
        "daemon.helper", "errors", "frames", "lean", "planes.interface", "planes.process", "planes.registry", "proc",
        "wire",
    },
    "daemon.relay": {
        "daemon.helper", "rate", "errors", "frames", "lean", "planes.interface", "planes.process",
        "planes.registry", "proc", "version", "wire",
    },
    "daemon.actuator": {"daemon.helper", "errors", "planes.interface", "planes.process", "protocol", "structure"},
    "daemon.tasks": {
        "daemon.memory", "errors", "model", "planes.interface", "planes.process", "policies.parts.tail", "proc",
    },
    "daemon.gpu": {
        "byte_lock", "daemon.actuator", "daemon.tasks", "errors", "log", "model", "planes.interface", "planes.usage",
        "policies", "proc", "scheduling",
    },
    "daemon.placement": {
        "daemon.gpu", "daemon.memory", "daemon.tasks", "errors", "model", "proc", "protocol", "settings", "text",
        "trusted", "units",
    },
    "daemon.tree": {
        "daemon.gpu", "daemon.kernel", "daemon.memory", "daemon.placement", "rate", "daemon.relay",
        "daemon.tasks", "daemon.undo",
        "errors", "model", "planes.interface", "planes.kernel", "planes.process", "proc", "protocol", "units",
    },
    "daemon.requests": {
        "daemon.gpu", "daemon.kernel", "daemon.memory", "daemon.placement", "daemon.relay", "daemon.tasks",
        "daemon.tree",
        "daemon.undo", "errors", "frames", "model", "planes.interface", "planes.process", "policies",
        "proc", "protocol", "rate", "settings", "tenant", "units", "version", "views", "wire",
    },
    "daemon.compose": {
        "daemon.actuator", "daemon.gpu", "daemon.kernel", "daemon.memory", "daemon.placement", "daemon.requests",
        "daemon.tasks", "daemon.tree", "daemon.undo", "planes.interface", "policies",
    },
    "daemon.lean": {"lean"},
    "daemon.service": {"errors"},
    "daemon.__main__": {
        "daemon.compose", "daemon.lean", "log_limit", "daemon.placement", "daemon.relay", "daemon.requests",
        "daemon.service", "daemon.tree", "daemon.undo", "errors", "lean", "log", "paths", "planes.interface",
        "planes.registry", "policies", "proc", "protocol",
    },
    "daemon": set(),
    # those who use the daemon
    "starting": {"errors", "interpreter", "paths", "planes.interface", "protocol", "trusted"},
    "client": {
        "errors", "frames", "paths", "planes.interface", "planes.registry", "proc", "protocol", "settings", "starting",
        "trusted", "version", "views", "waiting", "wire",
    },
    "managing": {"client", "errors", "planes.registry", "proc", "protocol", "settings"},
    "top": {"client", "errors", "model", "text", "units", "views"},
    "operations.admission": set(),
    "operations.rules": {"errors", "operations.admission", "plugins", "policies.parts", "statistics"},
    "operations.record": set(),
    "operations.profiles": {"errors", "files", "operations.admission", "operations.record", "trusted"},
    "operations": {
        "errors", "log", "operations.admission", "operations.profiles", "operations.record", "operations.rules",
        "paths", "plugins", "protocol",
    },
    "operations_log": {"errors", "log", "operations"},
    "trace": {"errors", "files", "operations_log", "planes.interface", "planes.usage"},
    "why": {
        "client", "errors", "planes.kernel", "planes.usage", "proc", "protocol", "statistics", "structure", "text",
        "trace", "views",
    },
    "doctor": {
        "client", "errors", "interpreter", "planes.interface", "planes.kernel", "planes.process", "planes.registry",
        "proc", "protocol", "text", "views",
    },
    "advice": {"client", "errors", "proc", "text", "units", "views"},
    "demo": {
        "client", "emulated", "protocol", "errors", "files", "planes.interface", "planes.registry", "statistics",
        "workloads",
    },
    # where Runlist docks: clients of the daemon
    "integrations": set(),
    "integrations.drop_ins": {"paths", "text", "trusted"},
    "integrations.parts": set(),
    "integrations.gpu_sizes": {"client", "errors", "planes.interface"},
    "integrations.kubernetes": set(),
    "integrations.cdi": {
        "errors", "files", "integrations.drop_ins", "integrations.kubernetes", "interpreter", "log", "paths",
        "planes.interface", "planes.process", "planes.registry", "protocol", "settings", "trusted",
    },
    "integrations.plugin": {
        "errors", "files", "integrations.cdi", "integrations.kubernetes", "log", "log_limit", "paths",
        "planes.interface", "planes.process", "planes.registry", "protocol", "text", "trusted",
    },
    "integrations.node": {
        "client", "errors", "integrations.drop_ins", "integrations.gpu_sizes", "integrations.kubernetes",
        "integrations.parts", "planes.interface", "proc", "settings", "text", "trusted", "units",
    },
    "integrations.jupyter": {"client", "errors", "settings"},
    "integrations.slurm": {"errors", "integrations.drop_ins", "integrations.parts", "log", "units"},
    "integrations.systemd": {"errors", "files", "paths"},
    "integrations.exporter": {"client", "errors", "files", "log", "planes.registry", "version", "views"},
    "integrations.ray": {
        "errors", "integrations.gpu_sizes", "integrations.parts", "log", "managing", "planes.process",
        "planes.registry", "protocol", "settings", "units",
    },
    "ray": {"integrations.ray"},
    "__main__": {"cli"},
    "blocks": {"byte_lock", "errors", "trusted"},
    # those who need none
    "__init__": {"client", "managing", "planes.process.library", "tenant", "version"},
    "tenant": {"protocol"},
    "workloads": {"arrivals", "interpreter", "statistics", "tenant"},
    "sim": {
        "arrivals", "errors", "model", "policies", "protocol", "scheduling", "settings", "statistics", "text", "units",
    },
}  # fmt: skip
"""What each room may import besides itself. A room has all that is below its name and is no room of its own. `cli`, the
top, may import all.
"""

STANDARD_ONLY = {
    "arrivals": set(),
    "errors": {"text"},
    "interpreter": set(),
    "model": {"msgspec"},
    "planes.nvidia.rm": {"msgspec"},
    "planes.kernel": {"msgspec"},
    "planes.process": {"msgspec"},
    "units": set(),
    "policies": {"msgspec"},
    "statistics": set(),
    "views": {"msgspec"},
    "frames": set(),
    "daemon.relay.ferry": set(),
    "wire": {"msgspec"},
    "paths": set(),
    "tenant": set(),
    "trusted": set(),
}
"""Parts that use no library beyond Python's own, or only these: they are imported into every command."""


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(name: str) -> str:
    """The room of a module, by its name below `runlist.`: the longest that is one."""
    parts = name.split(".")
    rooms = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((room for room in rooms if room in FLOW), parts[0] if parts[0] == "cli" else name)


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _known_modules() -> set[str]:
    return {_module(path) for path in _sources()}


@cache
def _imports(path: Path, everywhere: bool = True) -> list[str]:
    """Every module that a file imports, by its full name; `from package import module` names the module."""
    tree = ast.parse(path.read_text())
    found: list[str] = []
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            assert node.module is not None
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            found += (name if name in _known_modules() else node.module for name in submodules)
    return found


def _own_imports(path: Path, *, everywhere: bool = True) -> set[str]:
    """Modules of this package that a file imports, below `runlist.`; the package itself is `__init__`. Without
    `everywhere` only those that it imports when it is itself imported.
    """
    names = {name for name in _imports(path, everywhere) if name == "runlist" or name.startswith("runlist.")}
    return {name.removeprefix("runlist").removeprefix(".") or "__init__" for name in names}


def _short(path: Path) -> str:
    """The name of a file's module below `runlist.`."""
    return _module(path).removeprefix("runlist").removeprefix(".") or "__init__"


def test_imports_flow_one_way() -> None:
    wrong = [
        f"{_short(path)} imports {name}"
        for path in _sources()
        if (room := _room(_short(path))) != "cli"
        for name in sorted(_own_imports(path))
        if _room(name) != room and not any(name == one or name.startswith(f"{one}.") for one in FLOW[room])
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_allowed_that_nobody_needs() -> None:
    used: dict[str, set[str]] = {}
    for path in _sources():
        used.setdefault(_room(_short(path)), set()).update(_own_imports(path))
    unused = [
        f"{room} -> {one}"
        for room, allowed in FLOW.items()
        for one in allowed
        if not any(name == one or name.startswith(f"{one}.") for name in used.get(room, ()))
    ]
    assert not unused


def test_the_rooms_are_in_floors() -> None:
    above: dict[str, set[str]] = {room: {_room(one) for one in allowed} for room, allowed in FLOW.items()}
    while above:
        ground = {room for room, allowed in above.items() if not allowed & above.keys() - {room}}
        assert ground, f"these are in a circle: {sorted(above)}"
        above = {room: allowed for room, allowed in above.items() if room not in ground}


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = {Path(_short(path)): {Path(name) for name in _own_imports(path, everywhere=False)} for path in _sources()}
    assert not circles(graph)


def _plugins() -> list[Path]:
    return sorted(path.parent for path in (PACKAGE / "policies").glob("*/__init__.py"))


def test_a_policy_sees_only_the_model() -> None:
    """Built-in policies see what a user's own file does: the model, their interface, and what they are made of. Only
    that reads units.
    """
    assert len(_plugins()) > 5
    wrong = []
    for folder in _plugins():
        own = f"policies.{folder.name}"
        seen = (own, "model.", "policies.parts.")
        plain = {"model", "policies.interface"} | ({"statistics", "units"} if folder.name == "parts" else set())
        for path in folder.rglob("*.py"):
            wrong += [f"{_short(path)} imports {name}" for name in sorted(_own_imports(path))
                      if name not in plain and not name.startswith(seen)]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_the_lower_parts_use_only_the_standard_library() -> None:
    wrong = []
    for path in _sources():
        part = next((one for one in STANDARD_ONLY if f"{_short(path)}.".startswith(f"{one}.")), None)
        if part is not None:
            allowed = set(sys.stdlib_module_names) | {"runlist", "__future__"} | STANDARD_ONLY[part]
            wrong += [f"{_short(path)} imports {name}" for name in sorted(_tops(path) - allowed)]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_tests_or_what_stands_beside_the_package() -> None:
    beside = {"tests", "bench", "tools", "emulator", "conftest", "pytest", "hypothesis"}
    wrong = [f"{_short(path)} imports {name}" for path in _sources() for name in sorted(_tops(path) & beside)]
    assert not wrong, "\n".join(wrong)


def _tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imports(path)}


def _texts() -> list[Path]:
    kept = [PACKAGE, *(ROOT / name for name in ("emulator", "native", "protocol", "bench", "tools", "tests", "docs"))]
    suffixes = {".py", ".cpp", ".h", ".hpp", ".inc", ".cu", ".md", ".txt", ".toml", ""}
    found = [path for folder in kept if folder.exists() for path in folder.rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return [path for path in found if path.suffix in suffixes and "__pycache__" not in path.parts]


_HAND_WRITTEN = {".py", ".cpp", ".h", ".hpp", ".inc", ".cu"}


def _hand_written() -> list[Path]:
    return [path for path in _texts() if path.suffix in _HAND_WRITTEN]


def test_no_file_grows_out_of_hand() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in _hand_written() if "autogen" not in path.name}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}, "split them"


def test_generated_files_say_so_in_their_name() -> None:
    starts = {path: "\n".join(path.read_text().splitlines()[:5]).lower() for path in _hand_written()}
    wrong = [path for path, start in starts.items() if ("do not edit" in start) != ("autogen" in path.name)]
    assert not wrong, wrong


def test_the_flow_names_only_rooms_that_exist() -> None:
    assert {_room(_short(path)) for path in _sources()} == set(FLOW) | {"cli"}


def test_a_command_is_a_module_whose_function_says_what_it_does() -> None:
    commands = sorted((PACKAGE / "cli").glob("*_command.py"))
    assert len(commands) >= 13
    wrong = []
    for path in commands:
        tree = ast.parse(path.read_text())
        registers = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "register"]
        inner = [node for register in registers for node in register.body if isinstance(node, ast.FunctionDef)]
        if not (ast.get_docstring(tree) and len(registers) == 1 and inner and all(map(ast.get_docstring, inner))):
            wrong.append(path.name)
    assert not wrong, wrong


def test_no_control_is_named_outside_its_plane() -> None:
    """Everybody else takes it from the table: `planes.registry.controls`. The protocols name what a driver has."""
    names = {row.name for row in controls()}
    assert names
    wrong = []
    for path in _sources():
        if not _short(path).startswith(("protocol.", *(f"planes.{plane}." for plane in PLANES))):
            tree = ast.parse(path.read_text())
            remarks = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            texts = [
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in remarks
            ]
            words = {word for text in texts for word in re.findall(r"[\w-]+", str(text).lower())}
            wrong += [f"{_short(path)} names {name}" for name in sorted(names & words)]
    assert not wrong, "\n".join(wrong)
