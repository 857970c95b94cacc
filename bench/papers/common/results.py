"""What a window gave of one task, as it is kept."""

from __future__ import annotations

import msgspec

from bench.papers.common.driving import NEWEST, Served
from bench.papers.common.task import Task
from runlist.statistics import percentile


class TaskResult(msgspec.Struct, frozen=True):
    """One task in one window. `latency_us` is each answered request's, in order: in an open queue from the intended
    arrival, else from when it was taken up. `late_us` is how long those had waited that nobody took up. `finished`
    requests ended in the window, whenever they came.
    """

    kind: str
    program: str
    seconds: float
    finished: int
    latency_us: list[float]
    phases_us: dict[str, float]
    dropped: int = 0
    late_us: list[float] = []
    wrong: int = 0
    died: str = ""

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.finished / self.seconds

    @property
    def waits(self) -> list[float]:
        """The latencies, ascending, those with a lower bound among them."""
        return sorted([*self.latency_us, *self.late_us])

    def mean(self) -> float:
        """µs; not a number where nothing was answered."""
        waits = self.waits
        return sum(waits) / len(waits) if waits else float("nan")

    def at(self, percent: float) -> float:
        """A percentile, µs; not a number where nothing was answered."""
        waits = self.waits
        return percentile(waits, percent) if waits else float("nan")


def result_of(task: Task, program: str, served: Served, mode: str, wrong: int) -> TaskResult:
    """What a window gave, as it is kept."""
    count = max(1, len(served.done))
    since = served.begun if mode == NEWEST else served.due
    return TaskResult(
        kind=task.kind,
        program=program,
        seconds=served.seconds,
        finished=served.finished,
        latency_us=[round((done - start) / 1e3, 1) for start, done in zip(since, served.done, strict=True)],
        phases_us={name: round(total / count / 1e3, 2) for name, total in served.phases.items()},
        dropped=served.dropped,
        late_us=[round(each / 1e3, 1) for each in served.late],
        wrong=wrong,
        died=served.died,
    )
