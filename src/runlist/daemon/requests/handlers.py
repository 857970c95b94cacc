"""What each request does, for whoever is at the other end of a connection."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import structlog

from runlist import wire
from runlist.daemon.gpu.gpus import LOAD_S
from runlist.daemon.memory.census import KEPT_S
from runlist.daemon.relay.channel import Peer
from runlist.daemon.requests.manager import Manager
from runlist.daemon.requests.own import OwnSettings
from runlist.daemon.requests.policy_map_view import policy_map_view
from runlist.daemon.requests.rules_view import rules_view
from runlist.daemon.requests.together import pids_together, together_notes
from runlist.daemon.requests.turns import Turns
from runlist.daemon.requests.view import views, workload_views
from runlist.daemon.tasks.managed import ManagedTask
from runlist.errors import ExitCode, NoPermissionError, RunlistError, UsageError
from runlist.planes.interface import Borrower
from runlist.policies import PolicySpec, look_at_policy
from runlist.proc.exhaustion import passes
from runlist.version import __version__

PIECE_S = 0.001
"""So long an answer is worked at before others come between."""

_log = structlog.get_logger()


class Handlers:
    """The requests of one `peer`. `regions` are the descriptors that came with those that were not served yet;
    `launched` is the launcher that it said it is, which `tell` has say a line to its user. A request to end sets
    `stop`.
    """

    def __init__(
        self,
        peer: Peer,
        manager: Manager,
        launcher: Borrower,
        tell: Callable[[str], None],
        status: Callable[[int], wire.DaemonStatus],
        stop: asyncio.Event,
        turns: Turns,
    ) -> None:
        self.regions: deque[int] = deque()
        self.launched: int | None = None
        self._pid, self._uid = peer
        self._manager = manager
        self._own = OwnSettings(manager)
        self._launcher, self._tell = launcher, tell
        self._status_of = status
        self._stop_asked = stop
        self._turns = turns

    async def answer(self, message: wire.Message) -> wire.Message:
        """Do what a request asks; never raises."""
        try:
            return await _HANDLERS[type(message)](self, message)
        except RunlistError as error:
            return _failure(str(error), error.exit_code)
        except OSError as error:
            return _failure(f"the driver could not be reached: {error.strerror or error}", ExitCode.FAILED)
        except Exception as error:
            if passes(error):
                _log.warning("there was no room for a request", reason=str(error) or "no memory")
                return _failure(f"the daemon has no room for this ({error or 'no memory'}): try again", ExitCode.FAILED)
            _log.exception("a request failed in the daemon")
            return _failure(f"the daemon failed at this request ({error!r}): see its log", ExitCode.FAILED)

    async def _tasks(self, tasks: list[ManagedTask], notes: list[str] | None = None) -> wire.Tasks:
        manager = self._manager
        made = views(tasks, manager.gpus, manager.census, manager.kernel.made_by)
        return wire.Tasks(await self._in_pieces(made), notes or [], __version__)

    async def _in_pieces(self, made: Iterator[Any]) -> list[Any]:
        """What is made, encoded. There may be hundreds, each of which takes a while: others come between."""
        async with self._turns.making:
            found, began = [], time.monotonic()
            for one in made:
                found.append(msgspec.Raw(msgspec.json.encode(one)))
                if time.monotonic() - began >= PIECE_S:
                    await self._turns.next()
                    began = time.monotonic()
            return found

    async def _together(self, tasks: list[ManagedTask], kept_s: float = 0.0) -> list[str]:
        """Notes on those that the GPU takes for one. Where there is no room to ask who they are, they go by what was
        told last: what was asked for is done by now, and must not seem refused.
        """
        manager = self._manager
        try:
            await manager.census.refresh(kept_s)
        except (RuntimeError, MemoryError, OSError) as error:
            if not passes(error):
                raise
        others = [pids_together(task, manager.gpus.scheduler(task.task.key.gpu), manager.census) for task in tasks]
        return together_notes(tasks, others)

    # -- one method per request --------------------------------------------------------------------

    async def _attach(self, request: wire.Attach) -> wire.Message:
        outcome = await self._manager.attach(request.pid, dict(request.settings), request.wait, self._uid)
        return await self._tasks(outcome.tasks, [*outcome.notes, *await self._together(outcome.tasks)])

    async def _launch(self, request: wire.Launch) -> wire.Message:
        region = self.regions.popleft() if request.region else None
        settings, tell = dict(request.settings), self._tell if request.hears else None
        notes = await self._manager.launches.begin(request.pid, settings, self._launcher, region, self._uid, tell)
        self.launched = request.pid
        return await self._tasks([], notes)

    async def _detach(self, request: wire.Detach) -> wire.Message:
        return await self._tasks([], self._manager.detach(request.pid, self._uid))

    async def _release(self, request: wire.Release) -> wire.Message:
        del request
        return await self._tasks([], self._manager.release(self._uid))

    async def _list(self, request: wire.ListTasks) -> wire.Message:
        del request
        return await self._tasks(self._manager.visible(self._uid))

    async def _change(self, request: wire.Change) -> wire.Message:
        outcome = self._manager.change(request.pid, request.settings, self._uid)
        return await self._tasks(outcome.tasks, outcome.notes)

    async def _manage(self, request: wire.Manage) -> wire.Message:
        region = self.regions.popleft() if request.region else None
        outcome = await self._own.manage(self._pid, dict(request.settings), region, self._uid)
        return await self._tasks(outcome.tasks, outcome.notes)

    async def _leave(self, request: wire.Leave) -> wire.Message:
        del request
        return await self._tasks([], self._own.leave(self._pid, self._uid))

    async def _suspend(self, request: wire.Suspend | wire.Resume) -> wire.Message:
        suspended = isinstance(request, wire.Suspend)
        if suspended and self._uid != 0:
            await self._manager.census.refresh()  # who came a moment ago may be another user's, and would stop with it
        tasks = self._manager.suspend(request.pid, suspended, self._uid)
        return await self._tasks(tasks, await self._together(tasks, KEPT_S))

    async def _use_policy(self, request: wire.UsePolicy) -> wire.Message:
        self._only_owner("switch the policy")
        spec = PolicySpec(request.name, request.options)
        try:
            async with asyncio.timeout(LOAD_S):
                await asyncio.to_thread(look_at_policy, spec)  # while others are served
        except TimeoutError:
            raise UsageError(f"policy {spec.name}: its file system does not answer: copy it to another") from None
        self._manager.gpus.use(spec)
        return self._status_of(self._uid)

    async def _rules(self, request: wire.ListRules) -> wire.RulesInForce:
        del request
        return rules_view(self._manager, self._uid)

    async def _reload(self, request: wire.ReloadRules) -> wire.RulesInForce:
        del request
        self._only_owner("have the rules read again")
        await self._manager.reload_rules()
        return rules_view(self._manager, self._uid)

    async def _policy_map(self, request: wire.GetPolicyMap) -> wire.PolicyMap:
        del request
        self._only_owner("see the policy map")
        return policy_map_view(self._manager.kernel)

    async def _status(self, request: wire.GetStatus) -> wire.Message:
        del request
        return self._status_of(self._uid)

    async def _workloads(self, request: wire.ListWorkloads) -> wire.Message:
        del request
        return wire.Workloads(await self._in_pieces(workload_views(self._manager.gpus, self._uid)))

    async def _stop(self, request: wire.Stop) -> wire.Message:
        del request
        self._only_owner("stop the daemon")
        self._stop_asked.set()
        return self._status_of(self._uid)

    def _only_owner(self, what: str) -> None:
        """A policy file is code that runs in the daemon, with the daemon's rights."""
        if self._uid not in (0, os.geteuid()):
            raise NoPermissionError(f"only root and the daemon's own user may {what}")


def _failure(message: str, code: ExitCode) -> wire.Failure:
    return wire.Failure(message, code, __version__)


_HANDLERS: dict[type[wire.Message], Callable[[Handlers, Any], Awaitable[wire.Message]]] = {
    wire.Attach: Handlers._attach,
    wire.Launch: Handlers._launch,
    wire.Detach: Handlers._detach,
    wire.Release: Handlers._release,
    wire.ListTasks: Handlers._list,
    wire.ListWorkloads: Handlers._workloads,
    wire.Change: Handlers._change,
    wire.Manage: Handlers._manage,
    wire.Leave: Handlers._leave,
    wire.Suspend: Handlers._suspend,
    wire.Resume: Handlers._suspend,
    wire.UsePolicy: Handlers._use_policy,
    wire.GetStatus: Handlers._status,
    wire.ListRules: Handlers._rules,
    wire.ReloadRules: Handlers._reload,
    wire.GetPolicyMap: Handlers._policy_map,
    wire.Stop: Handlers._stop,
}
