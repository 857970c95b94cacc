"""Having this very process managed for a while.

    with runlist.manage(task_class="batch", weight=50):
        ...

It is the whole process that is managed, with all its threads and what it starts meanwhile. Afterwards it is put back to
what it had before, setting by setting.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from runlist.client import Client, Settings, words
from runlist.errors import NoTargetError, RunlistError, UsageError
from runlist.planes.registry import choose_plane
from runlist.proc.process import start_of
from runlist.protocol import environment_autogen as names
from runlist.settings.table import ANY_TASK, override, parse_request

if TYPE_CHECKING:
    from types import TracebackType

_Function = TypeVar("_Function", bound=Callable[..., Any])

PATIENCE_S = 20.0
"""How long the daemon may take to answer. One that has to be started has its own time for that."""


class NotManagedWarning(RuntimeWarning):
    """This process is not managed, although it asked for that."""


class Manage:
    """Settings for this process, in force while it is entered: by `with`, by `async with`, or around each call of a
    function. It may be entered again, also within itself and by several threads.
    """

    def __init__(self, settings: Mapping[str, str], *, required: bool = True, device: str | None = None) -> None:
        """Raises UsageError for settings that nobody could have."""
        parse_request(settings, ANY_TASK)
        self._settings = dict(settings)
        self._required = required
        self._device = device
        self._entered: list[Layer | None] = []  # no lock: a child of fork might find it held

    def __enter__(self) -> Self:
        self._entered.append(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (layer := self._entered.pop()) is not None:
            layer.end()

    async def __aenter__(self) -> Self:
        from asyncio import get_running_loop, to_thread  # it takes long to import, and most programs need it not

        begun: list[Layer | None] = []  # whoever takes it out sees to it
        cancelled = threading.Event()

        def end() -> None:
            with contextlib.suppress(IndexError):
                if (layer := begun.pop()) is not None:
                    layer.end()

        def begin() -> None:
            begun.append(self._begin())
            if cancelled.is_set():
                end()

        try:
            await to_thread(begin)
        except BaseException:  # the thread goes on
            cancelled.set()
            get_running_loop().run_in_executor(None, end)
            raise
        self._entered += begun
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (layer := self._entered.pop()) is not None:
            from asyncio import to_thread

            await to_thread(layer.end)

    def __call__(self, function: _Function) -> _Function:
        """The function, which has the settings while it runs: a coroutine until it is done, a generator from its first
        value until it ends or is closed.
        """
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def run_async_generator(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                async with self, contextlib.aclosing(function(*args, **kwargs)) as values:
                    step = values.asend(None)
                    while True:
                        try:
                            value = await step
                        except StopAsyncIteration:
                            return
                        try:
                            step = values.asend((yield value))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = values.athrow(error)

            return cast("_Function", run_async_generator)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return cast("_Function", run_coroutine)
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def run_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                with self:
                    result = yield from function(*args, **kwargs)
                return result

            return cast("_Function", run_generator)
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"runlist.manage decorates functions, not {function!r}")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast("_Function", run)

    def _begin(self) -> Layer | None:
        try:
            return begin(self._settings, self._device)
        except RunlistError as error:
            if self._required:
                raise
            warnings.warn(f"this process is not managed: {error}", NotManagedWarning, stacklevel=3)
            return None


def manage(
    *,
    task_class: str | None = None,
    weight: int | None = None,
    cap: str | float | None = None,
    burst: str | None = None,
    deadline: str | None = None,
    p99: str | None = None,
    group: str | None = None,
    memory: str | int | None = None,
    timeslice: str | int | None = None,
    settings: Settings | None = None,
    required: bool = True,
    device: str | None = None,
) -> Manage:
    """Have this process managed while a `with` block or a decorated function runs, and put back afterwards.

        with runlist.manage(task_class="batch", weight=50):
            ...

        @runlist.manage(cap=30)
        async def evaluate(): ...

    It is about the whole process: all its threads, and what it starts meanwhile. Values are those of `runlist set`;
    `settings` has others by name, as the driver's own controls. A GPU need not be in use yet. Nested uses add up, the
    inner ones win, and each takes with it what it brought. At the end every setting is as it was before, whoever gave
    it; what somebody else changed meanwhile stays. A child of fork is managed as long as its parent is.

    `memory` is of the whole tree of the process, and needs the library in it (`runlist run`). The daemon of `device`
    (RUNLIST_DEVICE when None) is this user's or the system's, and is started where none runs.

    Raises UsageError or TypeError for bad values at once, and RunlistError when the block is entered and this cannot be
    done; with `required=False` that is a NotManagedWarning, and the block runs as it would without.
    """
    if not isinstance(task_class, str | None):
        raise TypeError(f"a class is a string, not {task_class!r}")
    named = {
        "class": task_class, "weight": weight, "cap": cap, "burst": burst, "deadline": deadline, "p99": p99,
        "group": group, "memory": memory, "timeslice": timeslice,
    }  # fmt: skip
    given = {key: value for key, value in named.items() if value is not None}
    others = words(settings or {})
    if twice := sorted(given.keys() & others):
        raise UsageError(f"{', '.join(twice)}: named here and in settings: name it once")
    return Manage(words(given) | others, required=required, device=device)


# -- what is in force ------------------------------------------------------------------------------


class Layer:
    """One use that goes on: its settings are on top of those of the uses before it."""

    def __init__(self, process: _Process, settings: Mapping[str, str], patience_s: float) -> None:
        self.settings = settings
        self.patience_s = patience_s
        self._process = process

    def renew(self) -> None:
        """Say it all again to a daemon that this has not yet been said to by this: one that was started again knows
        nothing of it. Raises RunlistError.
        """
        self._process.renew(self)

    def end(self) -> None:
        """Take its settings away. What cannot be put back is a warning: the block has its own outcome."""
        self._process.end(self)


class _Process:
    """This process, as the daemon of one device knows it."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._layers: list[Layer] = []
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._told = (0, 0.0)
        """The daemon that `renew` told last: its process, and when it started."""

    def begin(self, settings: Mapping[str, str], patience_s: float) -> Layer:
        layer = Layer(self, settings, patience_s)
        with self._lock:
            with self._telling(patience_s):
                self._tell([*self._layers, layer], patience_s)
            self._layers.append(layer)
        return layer

    def renew(self, layer: Layer) -> None:
        with Client.open(device=self._device, patience_s=layer.patience_s) as client:
            status = client.status()  # nobody else waits while it does not answer
            daemon = status.pid, status.started_s
            with self._lock:
                if layer in self._layers and daemon != self._told:
                    self._say(client, self._layers)
                    self._told = daemon

    def end(self, layer: Layer) -> None:
        if os.getpid() != self._pid:  # our parent's: it has an end of its own
            return
        with self._lock:
            self._layers.remove(layer)
            try:
                with self._telling(layer.patience_s):
                    self._put_back(layer.patience_s)
            except RunlistError as error:
                warnings.warn(f"this process is not put back: {error}", NotManagedWarning, stacklevel=2)

    @contextlib.contextmanager
    def _telling(self, patience_s: float) -> Iterator[None]:
        """Where this is interrupted, the daemon may have heard it or not: it is told again what is in force."""
        try:
            yield
        except RunlistError:
            raise
        except BaseException:
            with contextlib.suppress(RunlistError):
                self._put_back(patience_s)
            raise

    def _tell(self, layers: list[Layer], patience_s: float) -> None:
        with Client.open(start=True, device=self._device, patience_s=patience_s) as client:
            self._say(client, layers)

    def _say(self, client: Client, layers: list[Layer]) -> None:
        together: dict[str, str] = {}
        for layer in layers:
            together = override(together, layer.settings)
        _manage(client, together)

    def _put_back(self, patience_s: float) -> None:
        if self._layers:
            self._tell(self._layers, patience_s)
            return
        try:
            with Client.open(device=self._device, patience_s=patience_s) as client:
                client.leave()
        except NoTargetError:
            return  # the daemon ended, and put everything back


_processes: dict[str, _Process] = {}
_finding = threading.Lock()


def begin(settings: Mapping[str, str], device: str | None = None, *, patience_s: float = PATIENCE_S) -> Layer:
    """Put settings in force for this process, until the `end` of what is returned. The daemon may take `patience_s` for
    each answer. Raises RunlistError, and nothing has changed then.
    """
    name = choose_plane(device).name
    with _finding:
        process = _processes.setdefault(name, _Process(name))
    return process.begin(settings, patience_s)


def _manage(client: Client, settings: Mapping[str, str]) -> None:
    region = _region()
    try:
        client.manage(settings, region)
    finally:
        if region is not None:
            os.close(region)


def _region() -> int | None:
    """A descriptor of the memory region that the library made for this process; None where there is none, or where it
    is one of those above us: it may not be ours alone, and if it is of our tree, the daemon has it.
    """
    path = os.environ.get(names.REGION, "")
    if os.path.basename(path) != f"{os.getpid()}-{start_of(os.getpid())}":
        return None
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None


def _after_fork() -> None:
    """A child is a process of its own, which asked for nothing."""
    global _finding
    _processes.clear()
    _finding = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
