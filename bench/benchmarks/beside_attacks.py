"""How long one user's `status` takes at root's daemon while another user runs each of the attacks on its sockets: on a
connection that is there, and on a new one each time.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from bench.harness import attacks, daemon
from bench.harness.benchmark import Needs
from bench.harness.figures import AT_MOST, Figure, holds, p99, spread
from runlist.client import Client
from runlist.errors import RunlistError

NEEDS = Needs("emulated")
GROUP, VICTIM, ATTACKER = 65534, 54321, 54400
PAUSE_S = 0.005
SETTLE_S = 0.5
TARGET_MS = 20


def measure(seconds: float = 60.0) -> list[Figure]:
    """Ask so long under each attack."""
    if os.geteuid() != 0:
        raise RuntimeError("beside_attacks needs root, to become other users")
    figures = []
    with _daemon() as folder:
        _asked(SETTLE_S)  # her relay is there
        for number, (name, attack) in enumerate([("nothing", None), *attacks.ATTACKS.items()]):
            with contextlib.ExitStack() as stack:
                if attack is not None:
                    stack.enter_context(attacks.under(attack, folder, ATTACKER + number, GROUP))
                time.sleep(SETTLE_S)
                found = _asked(seconds)
            details = {"status, ms": spread(found["there"]), "connect and status, ms": spread(found["new"])}
            target: tuple[str, float | None] = (AT_MOST, TARGET_MS) if attack is not None else ("", None)
            figures.append(Figure(f"status beside {name}: p99", p99(found["there"]), *target, "ms", details))
            figures.append(holds(f"beside {name} no request fails", not found["failed"], {"failed": found["failed"]}))
    return figures


@contextlib.contextmanager
def _daemon() -> Iterator[Path]:
    """Root's daemon, for a group."""
    with tempfile.TemporaryDirectory(prefix="rl-") as path:
        folder, group = Path(path), grp.getgrgid(GROUP).gr_name
        with daemon.started(folder, "runlist.daemon", "--group", group), Client.open() as client:
            yield folder
            client.stop()


def _asked(seconds: float) -> dict[str, list[float]]:
    """How long `status` takes in a process of another user, in ms, and what failed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attacks.become(VICTIM, GROUP)
            with open(writer, "w", encoding="utf-8") as pipe:
                json.dump(_ask(seconds), pipe)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        found: dict[str, list[float]] = json.loads(pipe.read() or "{}")
    os.waitpid(pid, 0)
    if not found:
        raise RuntimeError("the user who asks has failed")
    return found


def _ask(seconds: float) -> dict[str, list[float] | list[str]]:
    there: list[float] = []
    new: list[float] = []
    failed: list[str] = []
    end = time.monotonic() + seconds
    with Client.open(patience_s=20) as client:
        while time.monotonic() < end:
            try:
                began = time.perf_counter()
                client.status()
                there.append((time.perf_counter() - began) * 1e3)
                began = time.perf_counter()
                with Client.open(patience_s=20) as another:
                    another.status()
                new.append((time.perf_counter() - began) * 1e3)
            except RunlistError as error:
                failed.append(str(error))
            time.sleep(PAUSE_S)
    return {"there": there, "new": new, "failed": failed}
