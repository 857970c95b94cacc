"""`runlist demo` as a program, for its figures."""

from __future__ import annotations

import json
import subprocess
import sys

from runlist.errors import RunlistError


def demo(seconds: float, *options: str) -> dict[str, float]:
    """What `runlist demo --json` with these options prints. Raises RunlistError when it fails."""
    words = [sys.executable, "-m", "runlist.cli", "demo", "--json", "--seconds", str(seconds), *options]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RunlistError(f"runlist demo ended with exit code {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout)
    return result
