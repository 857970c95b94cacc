"""Random operations by three users under root's daemon, while daemon, keeper and tenants are killed.

RUNLIST_SOAK_S is how long, RUNLIST_SOAK_SEED says which operations. Whatever happens, no tenant is lost: with the
daemon gone, or all released, every tenant goes on with the driver's slices, its numbers are right, and daemon and
keeper have grown by nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runlist.errors import ExitCode
from runlist.statistics import percentile
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    NOBODY,
    PATIENCE_S,
    Commands,
    Daemon,
    Slices,
    group_of_nobody,
    needs_root,
    running,
    wait_for,
)
from tests.hostile.soaking import SETTLED_S, Life, Tenant, User, descriptors, resident

SECONDS = float(os.environ.get("RUNLIST_SOAK_S", "8"))
SEED = os.environ.get("RUNLIST_SOAK_SEED", "1")
USERS = (0, NOBODY, NOBODY - 1)
MOST_TENANTS = 2
"""Of each user."""

MOST_GROWTH = 1.05
BACK_S = PATIENCE_S
"""How late a tenant may be back before the test fails. How late it was is printed: two busy cores are no clock."""

pytestmark = [
    needs_root,
    pytest.mark.skipif(ON_NVIDIA, reason="opens up the emulated GPU's folder, and takes its time"),
]

GOOD = [
    {"class": "batch"}, {"class": "normal"}, {"class": "latency"}, {"weight": "300"}, {"weight": "1"}, {"cap": "30"},
    {"cap": "max"}, {"cap": "20ms/100ms", "burst": "10ms"}, {"deadline": "5ms/20ms"}, {"deadline": "none"},
    {"p99": "5ms"}, {"p99": "none"}, {"group": "one"}, {"group": "none"}, {"timeslice": "3ms"}, {"timeslice": "auto"},
    {"interleave": "high"}, {"interleave": "low"}, {"class": "batch", "weight": "50", "cap": "50"},
]  # fmt: skip
BAD = [
    {"class": "emperor"}, {"weight": "0"}, {"weight": "1e3"}, {"cap": "-1"}, {"cap": "nan"}, {"timeslice": "1h"},
    {"": ""}, {"deadline": "20ms/5ms"}, {"memory": "-8G"}, {"no": "such"}, {"group": "\0"}, {"cap": "1e999"},
]  # fmt: skip
POLICIES: list[tuple[str, dict[str, str]]] = [
    ("priority", {}), ("priority", {"quantum_ms": "20"}), ("fair", {}), ("gpreempt", {}), ("slo", {"headroom": "0.2"}),
    ("none", {}), ("priority", {"quantum_ms": "0"}), ("deadline", {"bound": "0.5"}), ("/nonexistent.py", {}),
]  # fmt: skip


class Soak:
    """The users, their tenants, and the daemon."""

    def __init__(self, commands: Commands, folder: Path, start_daemon: Callable[[], Daemon], slices: Slices) -> None:
        self.random = random.Random(SEED)
        self.commands, self.folder, self.start_daemon, self.slices = commands, folder, start_daemon, slices
        self.daemon = start_daemon()
        self.life = Life(self._lifetime())
        self.users = [User(commands, uid) for uid in USERS]
        self.tenants: list[Tenant] = []
        self.counts: dict[str, int] = {}
        self.back_s: list[float] = []
        self.asked_s: dict[str, list[float]] = {}
        self.grown: list[float] = []
        self.keeper_killed_at = 0.0

    def close(self) -> None:
        for tenant in self.tenants:
            tenant.end()
        for user in self.users:
            user.close()

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- what happens ------------------------------------------------------------------------------

    def round(self) -> None:
        """Every user asks for something at once; tenants do something; perhaps somebody is killed meanwhile."""
        asked = [(user, self._choose(user)) for user in self.users]
        for user, (method, arguments, named, _) in asked:
            user.ask(method, *arguments, **named)
        killed = self.life.over
        if killed:
            time.sleep(self.random.uniform(0, 0.03))
            self._kill_daemon()
        elif self.random.random() < 0.04:
            self._kill_keeper()
        else:
            self._let_a_tenant_act()
        everything = any(method == "release" and user.uid == 0 for user, (method, *_) in asked)
        for user, (method, arguments, _, learn) in asked:
            answer = {"user": user.uid, "asked": [method, *arguments], **user.answer()}
            self.count(method)
            self.asked_s.setdefault(method, []).append(answer["seconds"])
            if "gone" in answer:
                assert killed, answer
                self.count("no answer")
            elif "refused" in answer:
                self.count("refused")
                assert answer["code"] in set(ExitCode), answer
                assert "\n" not in answer["refused"], answer
            if not killed:
                learn(answer)
        if everything:
            for tenant in self.tenants:
                tenant.suspended = None
        if killed:
            self._expect_all_back()
            self._new_daemon()
        self._learn_what_is_suspended()

    def _choose(self, user: User) -> tuple[str, list[Any], dict[str, Any], Callable[[dict[str, Any]], None]]:
        """A request, and what is to be learnt from its answer."""
        own = [tenant for tenant in self.tenants if tenant.user == user.uid]
        others = [tenant for tenant in self.tenants if tenant.user != user.uid]
        chance = self.random.random()

        def nothing(answer: dict[str, Any]) -> None:
            del answer

        def refused(answer: dict[str, Any]) -> None:
            assert answer.get("code") in (ExitCode.USAGE, ExitCode.NO_PERMISSION, ExitCode.NO_TARGET), answer

        if chance < 0.1:
            return "ps", [], {}, nothing
        if chance < 0.2:
            return "status", [], {}, nothing
        if chance < 0.25:
            name, options = self.random.choice(POLICIES)
            return "use_policy", [name, options], {}, nothing if user.uid == 0 else refused
        if chance < 0.29:
            return "release", [], {}, lambda answer: self._all_resumed(user.uid)
        if chance < 0.33:
            return "hang_up", [], {}, nothing
        if chance < 0.37:
            return "attach", [self.random.choice([1 << 21, -1, 0])], {}, refused
        if others and chance < 0.45 and user.uid:
            method = self.random.choice(["suspend", "resume", "detach", "attach"])
            return method, [self.random.choice(others).pid], {}, refused
        if not own:
            return "status", [], {}, nothing
        tenant = self.random.choice(own)
        if chance < 0.5:
            return "set", [tenant.pid, self.random.choice(BAD)], {}, refused
        if chance < 0.65:
            settings = self.random.choice(GOOD)
            return "attach", [tenant.pid, "batch"], {"wait": True, "settings": settings}, self._unknown(tenant)
        if chance < 0.77:
            return "set", [tenant.pid, self.random.choice(GOOD)], {}, nothing
        if chance < 0.87:
            return "suspend", [tenant.pid], {}, self._unknown(tenant)
        if chance < 0.95:
            return "resume", [tenant.pid], {}, self._unknown(tenant)
        return "detach", [tenant.pid], {}, self._unknown(tenant)

    @staticmethod
    def _unknown(tenant: Tenant) -> Callable[[dict[str, Any]], None]:
        def learn(answer: dict[str, Any]) -> None:
            del answer
            tenant.suspended = None

        return learn

    def _all_resumed(self, user: int) -> None:
        for tenant in self.tenants:
            if user in (0, tenant.user):
                tenant.suspended = None

    def _learn_what_is_suspended(self) -> None:
        """What was asked for by one alone stays as it was asked for."""
        shown = {task.pid: task.suspended for task in self.daemon.client.ps()}
        self.life.managed |= bool(shown)
        for tenant in self.tenants:
            now = shown.get(tenant.pid, False)
            if tenant.suspended is None or not tenant.open:
                tenant.suspended = now
            assert tenant.suspended == now, f"{tenant.pid} suspended: {now}, and nobody asked for that"

    def _let_a_tenant_act(self) -> None:
        for user in USERS:
            if sum(tenant.user == user for tenant in self.tenants) < MOST_TENANTS:
                self._start(user)
                return
        tenant = self.random.choice(self.tenants)
        chance = self.random.random()
        if chance < 0.06:
            self.count("a tenant killed")
            self._remove(tenant)
        elif chance < 0.09:
            self.count("exec")
            tenant.send("exec")
            time.sleep(0.05)
            self._remove(tenant)
        elif chance < 0.14:
            self.count("fork")
            tenant.children.append(tenant.do("fork")["pid"])
        elif chance < 0.24:
            self.count("hint")
            tenant.do(f"hint {self.random.randrange(10_000)}")
        elif chance < 0.34:
            self.count("report")
            tenant.do(f"report {self.random.randrange(1, 20_000)}")
        elif chance < 0.44:
            self.count("segment")
            tenant.do(f"segment {self.random.randrange(-5, 5)}")
            tenant.do("segment end")
        elif chance < 0.5:
            self.count("pause and go")
            tenant.do("pause")
            tenant.do("go")
        elif chance < 0.56:
            self.count("stop and go on")  # while requests are under way; a launcher may have half of one
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in {tenant.process.pid, tenant.pid}:
                    os.kill(pid, number)
                time.sleep(self.random.uniform(0, 0.03))

    def _start(self, user: int) -> None:
        before: list[str] = []
        if user == 0 and self.random.random() < 0.5:
            settings = self.random.choice([["--memory", "1G"], ["--cap", "50"], ["--class", "latency"], []])
            before = [sys.executable, "-m", "runlist.cli", "run", *settings, "--"]
        self.count("run" if before else "start")
        folder = Path(tempfile.mkdtemp(dir=self.folder)) / "tenant"
        self.tenants.append(Tenant(self.commands, folder, user, before))

    def _remove(self, tenant: Tenant) -> None:
        self.tenants.remove(tenant)
        tenant.end()

    # -- kills -------------------------------------------------------------------------------------

    def _kill_daemon(self) -> None:
        both = self.random.random() < 0.2
        keeper = self.daemon.keeper
        self.killed_at = time.monotonic()
        if both:
            self.count("daemon and keeper killed")
            os.kill(self.daemon.pid, signal.SIGSTOP)  # so that neither acts on the other's end
            os.kill(keeper, signal.SIGKILL)
        self.daemon.kill()
        self.count("daemon killed")
        if both:
            for tenant in self.tenants:
                self.commands.ok("release", str(tenant.pid))
            self.killed_at = time.monotonic()

    def _new_daemon(self) -> None:
        self.daemon.client.close()
        assert "Traceback" not in self.daemon.log.read_text()
        self._hang_up()
        self.daemon = self.start_daemon()
        self.life = Life(self._lifetime())

    def _hang_up(self) -> None:
        for user in self.users:
            user.ask("hang_up")
            user.answer()

    def _lifetime(self) -> float:
        """How long a daemon lives: most a short while, some until growth would show."""
        return self.random.uniform(2, 10) if self.random.random() < 0.9 else min(SECONDS / 4, 2.5 * SETTLED_S)

    def _kill_keeper(self) -> None:
        if time.monotonic() < self.keeper_killed_at + 3:  # keepers that end at once make a daemon give up, as they must
            return
        self.keeper_killed_at = time.monotonic()
        self.count("keeper killed")
        keeper = self.daemon.keeper
        os.kill(keeper, signal.SIGKILL)
        wait_for(lambda: self.daemon.keeper != keeper and running(self.daemon.keeper), "another keeper")

    # -- what must hold ----------------------------------------------------------------------------

    def _expect_all_back(self) -> None:
        """Without a daemon every tenant works, with the driver's slices."""
        goals = {tenant: tenant.count + 2 for tenant in self.tenants}
        while goals:
            for tenant in [tenant for tenant, goal in goals.items() if tenant.count >= goal]:
                del goals[tenant]
                self.back_s.append(time.monotonic() - self.killed_at)
            assert time.monotonic() < self.killed_at + BACK_S, f"lost: {[tenant.pid for tenant in goals]}"
            time.sleep(0.002)
        for tenant in self.tenants:
            wait_for(lambda tenant=tenant: self.slices.of(tenant.pid) == DEFAULT_SLICES, f"{tenant.pid}'s slices")
            tenant.suspended = False

    def quiet(self) -> None:
        """Put everything back: all works again, and daemon and keeper have nothing more than before."""
        for user in self.users:
            user.ask("release")
            assert "value" in user.answer()
        self._hang_up()
        self.killed_at = time.monotonic()
        wait_for(lambda: not self.daemon.client.ps(), "all to be released")
        self._expect_all_back()
        for tenant in [tenant for tenant in self.tenants if tenant.launched]:  # they hold a connection
            self._finish(tenant)
        for pid in (self.daemon.pid, self.daemon.keeper) if self.life.managed else ():
            wait_for(lambda pid=pid: "anon_inode" in descriptors(pid), "a new keeper to be there")
            before = self.life.opened.get(pid) or descriptors(pid)
            with contextlib.suppress(AssertionError):  # said below, with what is more
                wait_for(lambda pid=pid, before=before: descriptors(pid) <= before)
            self.life.opened[pid] = descriptors(pid)  # fewer where the first look met one that was just starting
            assert self.life.opened[pid] <= before, f"{pid} has open what it had not"
            if self.life.age > SETTLED_S:
                settled = self.life.settled.setdefault(pid, resident(pid))
                self.grown.append(resident(pid) / settled)
                assert resident(pid) <= MOST_GROWTH * settled, f"{settled} to {resident(pid)} bytes"

    def _finish(self, tenant: Tenant) -> None:
        """End a tenant in order."""
        assert tenant.quit(), f"{tenant.pid} has wrong numbers"
        self._remove(tenant)
        self.count("ended in order")

    def finish(self) -> None:
        """End all; nothing is left."""
        self.quiet()
        for tenant in list(self.tenants):
            self._finish(tenant)
        assert not self.daemon.client.ps()
        self.daemon.client.stop()
        assert self.daemon.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in self.daemon.log.read_text()

    def summary(self) -> str:
        """What happened, in words."""
        back = sorted(self.back_s)
        parts = (percentile(back, 50), percentile(back, 99), back[-1])
        median, late, slowest = (f"{seconds * 1e3:.0f}" for seconds in parts)
        above = sum(each > 1 for each in back)
        slow = {method: round(max(times) * 1e3, 1) for method, times in sorted(self.asked_s.items())}
        return "\n".join(
            [
                f"seed {SEED}, {SECONDS:.0f} s: {dict(sorted(self.counts.items()))}",
                f"back after ms: median {median}, p99 {late}, slowest {slowest}; {above} of {len(back)} later than 1 s",
                f"slowest answers, ms: {slow}",
                f"resident memory after {SETTLED_S:.0f} s: × {max(self.grown, default=1):.3f} at most",
            ]
        )


@pytest.fixture
def soak(commands: Commands, start_daemon: Callable[..., Daemon], slices: Slices, tmp_path: Path) -> Iterator[Soak]:
    gpu = Path(commands.environment["RUNLIST_EMULATED_GPU"])
    with contextlib.ExitStack() as undo:
        for path in (gpu.parent, gpu, *gpu.iterdir()):
            undo.callback(path.chmod, path.stat().st_mode & 0o7777)
            path.chmod(0o777)
        made = Soak(commands, tmp_path, lambda: start_daemon("--group", group_of_nobody()), slices)
        undo.callback(made.close)
        yield made


@pytest.mark.timeout(SECONDS + 300)
def test_random_operations_and_kills_lose_nothing(soak: Soak, record_property: Any) -> None:
    began = time.monotonic()
    quiet_at = began
    try:
        while time.monotonic() < began + SECONDS:
            if time.monotonic() > quiet_at:
                soak.quiet()
                quiet_at = time.monotonic() + min(15, SECONDS / 4)
            soak.round()
        soak.finish()
    finally:
        print(soak.summary() if soak.back_s else "nothing came back yet")
    record_property("soak", soak.summary())
