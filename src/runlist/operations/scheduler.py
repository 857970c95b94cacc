"""The scheduler of this process: its start and end, its clients, and the rule in force."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from runlist import paths
from runlist.errors import RunlistError, UsageError
from runlist.log import say
from runlist.operations import device, native
from runlist.operations.admission import Admission
from runlist.operations.admission import wrong as wrong_admission
from runlist.operations.device import Device
from runlist.operations.feedback import Feedback
from runlist.operations.learning import Learning
from runlist.operations.profiles import Profile, Store, read
from runlist.operations.profiles.profile import MOST_KERNELS
from runlist.operations.profiles.profile import wrong as wrong_profile
from runlist.operations.rules import Rule, load_rule
from runlist.operations.rules.interface import Counters, Model, wrong_every
from runlist.operations.torch_streams import TorchStreams
from runlist.protocol import environment_autogen as names

MOST_CLIENTS = 16


class Scheduler:
    """The scheduler of this process. Stopping it lets what is queued go first."""

    def __init__(self, library: ctypes.CDLL, clients: int, own: int | None) -> None:
        self.clients = clients
        self._library = library
        self._own = own  # which client this process is, with all its threads; None: threads are
        self._lock = threading.Lock()
        self._feedback: Feedback | None = None
        self._device: Device | None = None
        self._learning: Learning | None = None
        self._streams = TorchStreams()
        self._thread = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; may be called again."""
        with self._lock:
            self._end_feedback()
            learning, self._learning = self._learning, None
        if learning is not None:
            learning.stop()
        self._library.rl_operations_stop()

    @contextlib.contextmanager
    def client(self, index: int) -> Iterator[None]:
        """This thread is a client for so long, with all that it does, other tasks of asyncio included; 0 goes first.
        Where PyTorch was imported before, a stream of the thread's own is its current one meanwhile, and what was given
        to that is done at the end. Raises UsageError for a number that is none.
        """
        index = self._checked(index)
        self._streams.settle()
        if self._own is None:
            native.call(self._library, "client", index)
        clients: dict[object, int] = self._thread.__dict__.setdefault("clients", {})
        this = object()
        clients[this] = index
        try:
            with self._streams.own(index):
                yield
        finally:
            del clients[this]  # tasks of one thread may leave in any order: it stays the newest one that is left
            if self._own is None:
                self._library.rl_operations_client(next(reversed(clients.values()), -1))

    def use(self, rule: str | Path | Admission | Rule) -> None:
        """The rule from the next operation on: by its name, as a file, as an admission that stays, or one of one's own.

        Where this process is a client under MPS but not client 0, a rule that wants feedback is left to client 0's
        process, which alone sees its latencies. Raises UsageError for what is no rule.
        """
        made = rule_of(rule)
        with self._lock:
            self._end_feedback()
            if isinstance(made, Admission):
                native.admit(self._library, made)
                return
            if made.every_s is not None and self._own:
                return
            self._look_at_device()
            if made.every_s is not None:
                native.latencies(self._library)  # those under another rule
            self._feedback = Feedback(made, self._look, lambda answer: native.admit(self._library, answer))
            self._feedback.start()

    def why(self) -> str:
        """In a few words, why the rule in force answered what it last did; empty when there is nothing to say."""
        feedback = self._feedback
        return feedback.why() if feedback is not None else ""

    def profile(self, *profiles: Profile) -> None:
        """What kernels need, from now on. Raises UsageError for what the library would not take, and none of them
        counts then.
        """
        _check_profiles(profiles)
        for one in profiles:
            duration = ctypes.c_int64(one.duration_ns)
            native.call(
                self._library, "profile", one.name.encode(), ctypes.c_uint32(one.bound), ctypes.c_uint32(one.sms),
                duration,
            )  # fmt: skip

    def counters(self, client: int) -> Counters:
        """What was counted of a client; where this process is one, with all its threads, of that one."""
        return native.counters(self._library, self._checked(client) if self._own is None else self._own)

    def _checked(self, client: int) -> int:
        index = _whole("a client", client)
        if not 0 <= index < self.clients:
            raise UsageError(f"no client {index}: there are 0 to {self.clients - 1}")
        return index

    def _look(self) -> Model:
        clients = [native.counters(self._library, index) for index in range(self.clients)]
        return Model(time.monotonic(), clients, native.latencies(self._library), self._sms())

    def _look_at_device(self) -> Device | None:
        self._device = self._device or device.current()
        return self._device

    def _sms(self) -> int:
        return self._device.sms if self._device is not None else 0

    def _end_feedback(self) -> None:
        if self._feedback is not None:
            self._feedback.stop()
        self._feedback = None


def start(
    clients: int = 2,
    rule: str | Path | Admission | Rule = "orion",
    profiles: str | Path | Iterable[Profile] | None = None,
    *,
    learn: bool | None = None,
) -> Scheduler:
    """Start the scheduler of this process, for so many clients, by a rule.

    Profiles are those of a file as `read` takes it, or some, or none with `()`; without a word those that are kept of
    this kind of GPU. `learn` has kernels without one learned from what the clients do, into what is kept; that costs an
    event an operation. Without a word RUNLIST_LEARN=1 says so.

    In a process that is a client itself, under MPS (`runlist run --share sms`), it runs already, and only the rule and
    the profiles are set. Raises UsageError for what is wrong in arguments or the file, TypeError for a number that is
    none, and NotSupportedError where the library is not in the process. Then nothing was started.
    """
    if not 1 <= _whole("how many clients there are", clients) <= MOST_CLIENTS:
        raise UsageError(f"{clients} clients: there can be 1 to {MOST_CLIENTS}")
    made = rule_of(rule)
    given = None if profiles is None else read(Path(profiles)) if isinstance(profiles, str | Path) else list(profiles)
    _check_profiles(given or [])
    scheduler = Scheduler(native.library(), clients, native.own_client())
    if scheduler._own is None:
        native.call(scheduler._library, "start", clients)
    try:
        learn = os.environ.get(names.LEARN) == "1" if learn is None else learn
        gpu = scheduler._look_at_device() if given is None or learn else None
        known = _kept(gpu) if given is None and gpu is not None else given or []
        scheduler.profile(*known)
        scheduler.use(made)
        if learn:
            store = Store(paths.profiles_dir())
            scheduler._learning = Learning(scheduler._library, scheduler.profile, store, gpu, known)
    except BaseException:
        scheduler.stop()
        raise
    return scheduler


def _kept(gpu: Device) -> list[Profile]:
    """Where what is kept cannot be read, that is said, and there are none."""
    try:
        return [one.profile for one in Store(paths.profiles_dir()).look(gpu.name).values()]
    except RunlistError as error:
        say(f"going on without profiles: {error}")
        return []


def rule_of(rule: str | Path | Admission | Rule) -> Admission | Rule:
    """A rule as it is written, or as it is. Raises UsageError for what is none."""
    made = load_rule(rule) if isinstance(rule, str | Path) else rule
    if isinstance(made, Admission):
        if why := wrong_admission(made):
            raise UsageError(why)
    elif not isinstance(made, Rule):
        raise UsageError(
            f"{made!r} is no rule: take a name, the path of a .py file, an Admission, or a Rule that was made, as "
            "Mine({})"
        )
    elif why := wrong_every(made.every_s):
        raise UsageError(f"rule {type(made).__name__}: {why}")
    return made


def _check_profiles(profiles: Sequence[Profile]) -> None:
    if len(profiles) > MOST_KERNELS:
        raise UsageError(f"{len(profiles)} profiles: there is room for {MOST_KERNELS}")
    for one in profiles:
        if not isinstance(one, Profile):
            raise UsageError(f"{one!r} is no Profile")
        if why := wrong_profile(one):
            raise UsageError(f"a profile that the library does not take: {why}")


def _whole(what: str, number: Any) -> int:
    """Raises TypeError for what is no whole number."""
    if isinstance(number, bool):
        raise TypeError(f"{what} is a whole number, not a truth value")
    return index(number)
