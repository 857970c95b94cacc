"""The advice: for each thing that there is to say of a task, the first row that fits what was seen of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runlist.advice.observation import Observation, Pattern
from runlist.views.finding import Finding

WITH_A_FOREGROUND = frozenset({"priority", "slo", "cap", "deadline"})
"""Policies that know who has to give way: the layers stand over `priority`."""
STILL_FITS = 1.5
"""Switches may cost so many times what they should: slices are corrected as programs change."""

MUCH_IDLE = 0.3
"""From this part on it is worth while to have others in a task's turns."""


@dataclass(frozen=True, slots=True)
class Row:
    """A `state`, when it is that, and what is said then: `Observation.words` fills its names in."""

    state: str
    when: Callable[[Observation], bool]
    says: str


def _costs_too_much(seen: Observation) -> bool:
    return seen.switches_share > STILL_FITS * seen.budget_share


def _otherwise(seen: Observation) -> bool:
    del seen
    return True


def _is(pattern: Pattern) -> Callable[[Observation], bool]:
    return lambda seen: seen.pattern is pattern


_AUTO = "`runlist policy use priority` (give_way=auto)"
_RUN = "start it with `runlist run`"
_BACKGROUND = "it gets what others leave; to protect it: `runlist set {pid} class=latency`"

TABLE: dict[str, tuple[Row, ...]] = {
    "state": (
        Row("warn", lambda seen: not seen.in_reach, "{why}"),
        Row("warn", lambda seen: seen.suspended and bool(seen.why), "it is suspended: {why}"),
        Row("warn", lambda seen: seen.suspended, "it is suspended: `runlist resume {pid}` lets it go on"),
    ),
    "class": (
        Row(
            "warn",
            lambda seen: seen.task_class == "normal",
            "its class is normal, which is background beside latency tasks; to protect it: "
            "`runlist set {pid} class=latency`",
        ),
        Row("ok", lambda seen: seen.task_class == "batch", "its class is batch: " + _BACKGROUND),
        Row("ok", _otherwise, "its class is {class}"),
    ),
    "work": (
        Row("warn", _is(Pattern.IDLE), "it did nothing on the GPU for {seconds}: ask again while it works"),
        Row(
            "warn",
            lambda seen: seen.pattern is Pattern.ENDLESS and seen.foreground and not seen.capped,
            "it never pauses: the GPU is {busy} busy for it, and the background gets nothing; a cap helps: "
            "`runlist set {pid} cap=80`",
        ),
        Row("ok", _is(Pattern.ENDLESS), "it never pauses: the GPU is {busy} busy for it"),
        Row(
            "ok",
            lambda seen: seen.pattern is Pattern.GPU_BOUND and seen.request_us is not None,
            "GPU-bound requests of about {request} with gaps: the GPU is {busy} busy for it{pauses}; it waits for the "
            "GPU in {waits} of its work",
        ),
        Row(
            "ok",
            _is(Pattern.GPU_BOUND),
            "GPU-bound: the GPU is {busy} busy for it{pauses}; it waits for the GPU in {waits} of its work",
        ),
        Row(
            "ok",
            _is(Pattern.HOST_BOUND),
            "host-bound: the GPU is {busy} busy for it{pauses}; it waits for the GPU in {waits} of its work",
        ),
        Row(
            "warn",
            lambda seen: seen.tells and bool(seen.submissions_per_s),
            "{submissions} launches a second, and it never waits in a synchronising call, as in a loop of "
            "cudaEventQuery: what it waits for does not show",
        ),
        Row("ok", _otherwise, "the GPU is {busy} busy for it{pauses}"),
    ),
    "library": (
        Row("ok", lambda seen: seen.tells, "the library is in it, and tells of its requests"),
        Row(
            "warn",
            lambda seen: seen.foreground and seen.enforcement.startswith("not loaded: "),
            "the library is not in it ({not_loaded}): the daemon sees only its turns",
        ),
        Row(
            "warn",
            lambda seen: seen.foreground,
            f"not under the library: the daemon sees only its turns; {_RUN} to have whole requests served",
        ),
    ),
    "way": (
        Row("ok", lambda seen: not seen.foreground, ""),
        Row(
            "warn",
            lambda seen: seen.policy not in WITH_A_FOREGROUND,
            "policy {policy} lets nobody give way to it: `runlist policy use priority` does",
        ),
        Row("ok", lambda seen: seen.task_class == "deadline", "it has its budget before all others: nobody gives way"),
        Row(
            "ok",
            lambda seen: not seen.gives_way,
            "nothing has to give way to it now: no work of a lower class is there, or it is kept off, or deadlines go "
            "first",
        ),
        Row(
            "warn",
            lambda seen: seen.gives_way == "request" and seen.pattern is Pattern.HOST_BOUND,
            "the background is off for each of its requests, although it waits for its host: slices would cost the "
            f"background less, and {_AUTO} chooses them",
        ),
        Row(
            "ok",
            lambda seen: seen.gives_way == "request",
            "the background is off for each of its requests, switches cost {cost}: fits",
        ),
        Row(
            "warn",
            lambda seen: seen.gives_way == "slice" and seen.pattern is Pattern.GPU_BOUND,
            "the background has slices of {slice}, and each launch may wait for one: by request would fit; "
            f"{_AUTO} looks for that within a minute",
        ),
        Row(
            "warn",
            lambda seen: seen.gives_way == "slice" and _costs_too_much(seen),
            "the background has slices of {slice}, and switches cost {cost}, more than {budget}: slices grow to 2 ms "
            "at most, and it pauses too often for that",
        ),
        Row(
            "ok",
            lambda seen: seen.gives_way == "slice",
            "the background has slices of {slice}, switches cost {cost}: fits",
        ),
        Row(
            "ok",
            lambda seen: not _costs_too_much(seen),
            "the background gives way at each launch, switches cost {cost}: fits",
        ),
        Row(
            "warn",
            lambda seen: not seen.tells and seen.target_p99_us is not None,
            "the background gives way at each launch, and switches cost {cost}, more than {budget}: with a target "
            f"nothing is guessed, so {_RUN}",
        ),
        Row(
            "warn",
            _otherwise,
            "the background gives way at each launch, and switches cost {cost}, more than {budget}: "
            f"{_AUTO} chooses another way within seconds, if one fits",
        ),
    ),
    "turns": (
        Row("ok", lambda seen: not (seen.turns_with and seen.gives_way), ""),
        Row("ok", lambda seen: seen.policy not in WITH_A_FOREGROUND, ""),
        Row("ok", lambda seen: (seen.idle or 0.0) < MUCH_IDLE, ""),
        Row(
            "warn",
            _otherwise,
            "it takes turns with {others}, and has left the GPU idle for {idle} of its own: clients of one MPS server "
            "fill it together (`runlist run --share sms`)",
        ),
    ),
    "target": (
        Row("ok", lambda seen: seen.target_p99_us is None, ""),
        Row(
            "warn",
            lambda seen: seen.p99_us is None,
            "it has a target of {target} and reports no latencies, so nothing keeps it",
        ),
        Row("warn", lambda seen: (seen.p99_us or 0) > (seen.target_p99_us or 0), "p99 {p99}, over its {target}"),
        Row("ok", _otherwise, "p99 {p99} of {target}"),
    ),
}
"""By what a row is about. An empty sentence is not said."""


def advise(seen: Observation) -> list[Finding]:
    """What to say of a task. Of one that is kept off the GPU nothing else is known."""
    words = seen.words()
    found = []
    for what, rows in TABLE.items():
        row = next((row for row in rows if row.when(seen)), None)
        if row is not None and row.says:
            found.append(Finding(what, row.state, row.says.format_map(words)))
        if what == "state" and found:
            break
    return found
