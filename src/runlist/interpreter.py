"""Starting an interpreter that imports nothing from where other users, or the folder that one is in, could put it.

This file is also the program that such an interpreter runs: `python -I interpreter.py MODULE ARGUMENTS…`. Isolated, it
looks for modules in its own installation alone, and in the folder that this package is in. The user's own packages come
behind that if Runlist needs them, and the folders of PYTHONPATH for a plane that is not Runlist's own: both only where
nobody but this user and root can write.
"""

from __future__ import annotations

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def command(module: str, *arguments: str) -> list[str]:
    """The words that run a module isolated. Its working directory is for the caller to set: `/`."""
    return [sys.executable, "-I", os.path.realpath(__file__), module, *arguments]


def script(code: str) -> list[str]:
    """The words that run a few lines isolated."""
    return [sys.executable, "-I", "-c", code]


def _extend_path() -> None:
    found = importlib.util.find_spec("runlist")
    if found is None or os.path.realpath(found.origin or "") != os.path.join(_ROOT, "runlist", "__init__.py"):
        sys.path.insert(0, _ROOT)  # that of whoever started us, and no other that is installed as well
    from runlist.protocol import environment_autogen as names

    folders = []
    if importlib.util.find_spec("msgspec") is None:
        folders.append(site.getusersitepackages())
    if "." in os.environ.get(names.DEVICE, ""):
        folders += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [folder for folder in folders if os.path.isabs(folder) and _is_trusted(folder)]


def _is_trusted(folder: str) -> bool:
    from runlist import trusted
    from runlist.errors import NoPermissionError

    try:
        trusted.check(folder)
    except (NoPermissionError, OSError):
        return False
    return True


def _main() -> None:
    module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    _extend_path()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import importlib.util
    import runpy
    import site

    _main()
