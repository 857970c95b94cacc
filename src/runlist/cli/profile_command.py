"""`runlist profile show|import|learn|clear`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlist.cli.common import App, Json, print_json
from runlist.cli.complete import profiled_gpus
from runlist.text import counted, printable

if TYPE_CHECKING:
    from runlist.operations.profiles import Store

Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="KIND",
        help="The kind of GPU, as in 'NVIDIA H200'; default this machine's first.",
        autocompletion=profiled_gpus,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command group."""
    profile = App(no_args_is_help=True, help="Keep profiles of kernels, for clients that go side by side.")
    app.add_typer(profile, name="profile")

    @profile.command("show")
    def show(gpu: Gpu = None, json: Json = False) -> None:
        """Show what is known of kernels: what each is bound by, how many SMs it fills, how long it takes, and whether
        that was imported or learned. Without --gpu, of all kinds of GPU.
        """
        store = _store()
        kinds = _kept(store, gpu)
        rows = [(kind, kept) for kind in kinds for kept in store.look(kind).values()]
        if json:
            print_json(
                [
                    {"gpu": kind, "name": kept.profile.name, "bound": kept.profile.bound.name.lower(),
                     "sms": kept.profile.sms, "duration_ns": kept.profile.duration_ns, "source": kept.source}
                    for kind, kept in rows
                ]
            )  # fmt: skip
            return
        if not rows:
            print("no profiles")
            return
        print(f"{'GPU':<24} {'BOUND':<8} {'SMS':>4} {'µs':>10} {'SOURCE':<9} KERNEL")
        for kind, kept in rows:
            one = kept.profile
            print(
                f"{printable(kind):<24} {one.bound.name.lower():<8} {one.sms:>4} {one.duration_ns / 1e3:>10.1f} "
                f"{kept.source:<9} {printable(one.name)}"
            )

    @profile.command("import")
    def import_(
        file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="The file.")], gpu: Gpu = None, json: Json = False
    ) -> None:
        """Keep the profiles of a file: one as Orion's tools write it, or one of Nsight Compute.

        That is `ncu --csv --page raw --print-kernel-base mangled`, with the sections SpeedOfLight, LaunchStats and
        Occupancy. A profile takes the place of one that is kept of the same kernel.
        """
        from runlist.operations.profiles import read
        from runlist.operations.profiles.store import IMPORTED

        store, known, kind = _store(), read(file), _kind(gpu)
        _tell(kind, store.put(kind, known, IMPORTED), "imported", json)

    @profile.command("learn")
    def learn(
        log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")], gpu: Gpu = None, json: Json = False
    ) -> None:
        """Keep the durations and SMs of a log of operations, which a program wrote with `operations_log.writing`.

        What is kept of a kernel by import stays. A program learns by itself where RUNLIST_LEARN=1 is in its
        environment.
        """
        from runlist import operations_log
        from runlist.operations.profiles import Learner
        from runlist.operations.profiles.store import LEARNED

        store, learner = _store(), Learner()
        learner.see(operations_log.read(log, str(log)).operations)
        kind = _kind(gpu)
        _tell(kind, store.put(kind, learner.profiles(), LEARNED), "learned", json)

    @profile.command("clear")
    def clear(gpu: Gpu = None, json: Json = False) -> None:
        """Forget what is kept. Without --gpu, of all kinds of GPU."""
        store = _store()
        kinds = _kept(store, gpu)
        cleared = {kind: store.clear(kind) for kind in kinds}
        if json:
            print_json([{"gpu": kind, "kernels": count} for kind, count in cleared.items()])
            return
        for kind, count in cleared.items():
            print(f"{printable(kind)}: {counted(count, 'kernel')} forgotten")


def _store() -> Store:
    from runlist import paths
    from runlist.operations.profiles import Store

    return Store(paths.profiles_dir())


def _kept(store: Store, gpu: str | None) -> list[str]:
    """The kinds of which something is kept, or the one that was named. Raises NoTargetError."""
    from runlist.errors import NoTargetError

    kinds = store.gpus()
    if gpu is None:
        return kinds
    if gpu not in kinds:
        there = f"there are those of {', '.join(map(printable, kinds))}" if kinds else "none are kept of any GPU"
        raise NoTargetError(f"no profiles of {printable(gpu)}: {there}")
    return [gpu]


def _kind(gpu: str | None) -> str:
    """The kind that was named, or this machine's. Raises UsageError."""
    from runlist.errors import UsageError
    from runlist.operations import device

    if gpu is not None:
        return gpu
    found = device.current()
    if found is None:
        raise UsageError("no driver here names its GPU: say which kind the profiles are of, by --gpu KIND")
    return found.name


def _tell(kind: str, count: int, how: str, json: bool) -> None:
    if json:
        print_json({"gpu": kind, "kernels": count})
    else:
        print(f"{printable(kind)}: {counted(count, 'kernel')} {how}")
