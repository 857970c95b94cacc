"""Traces: who comes when and wants what. Ready ones by name, one's own by path.

`.toml` is a scenario of one's own (`scenario`), `.json` is read as DISB writes it (`disb`), `.csv` as a table of a
public cluster trace (`pai`).
"""

from __future__ import annotations

from pathlib import Path

from runlist.errors import UsageError
from runlist.sim.traces import disb, pai, scenario
from runlist.sim.workload import Trace, check_seconds

_FOLDER = Path(__file__).parent


def builtin_traces() -> dict[str, str]:
    """Names of the ready traces, and what they are."""
    return {path.stem: scenario.about(path) for path in sorted(_FOLDER.glob("*.toml"))}


def load_trace(
    name: str, seconds: float | None = None, *, compress: float | None = None, skip: float | None = None
) -> Trace:
    """A ready trace by name, or a file by path. `compress` and `skip` choose the part of a cluster trace.

    Raises UsageError, naming the file and the line or field, for what cannot be read or makes no sense.
    """
    if seconds is not None:
        check_seconds(seconds)
    path = _FOLDER / f"{name}.toml" if name in {ready.stem for ready in _FOLDER.glob("*.toml")} else Path(name)
    if path.suffix == ".csv":
        return pai.read(path, seconds, compress=compress or pai.DEFAULT_COMPRESS, skip=skip or 0.0)
    if compress is not None or skip is not None:
        raise UsageError("--compress and --skip belong to a cluster trace (.csv)")
    if path.suffix == ".toml":
        return scenario.read(path, seconds)
    if path.suffix == ".json":
        return disb.read(path, seconds)
    known = ", ".join(builtin_traces())
    raise UsageError(f"no trace {name}: take {known}, or the path of a .toml, .json or .csv file")
