"""Tasks, GPUs and the daemon as people and tools see them, with the meaning of each field."""

from __future__ import annotations

from typing import Annotated

import msgspec

from runlist.views.fields import counter, gauge, label


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted of a task, of a GPU with all its processes, or of a workload.

    Counters never shrink. A field of `runlist.model.Usage` comes here by its name, or by `of`.
    """

    gpu_seconds_held: Annotated[float, counter("time on the GPU", "s", of="held_s")] = 0.0
    gpu_seconds_idle: Annotated[float, counter("time on the GPU that is known to have been idle", "s", of="idle_s")] = (
        0.0
    )
    gpu_seconds_worked: Annotated[
        float, counter("time on the GPU without that, at most 1.3 s too much", "s", of="worked_s")
    ] = 0.0
    switches: Annotated[int, counter("how often it was switched in, where the source sees that", of="turns")] = 0
    suspensions: Annotated[int, counter("how often the daemon took it off the GPU")] = 0
    slices_put_back: Annotated[int, counter("how often it had changed its own slice, and that was put back")] = 0
    suspended_again: Annotated[
        int, counter("how often it worked while it was suspended, as who enables itself does, and was suspended again")
    ] = 0
    roused: Annotated[
        int, counter("how often it waited for a GPU that never turned to it, and was enabled once more")
    ] = 0
    memory_refusals: Annotated[int, counter("allocations that were refused, of its whole tree of processes")] = 0
    controls_asked: Annotated[
        int, counter("controls of groups and channels that its process sent the driver, where the kernel plane is on")
    ] = 0
    requests_refused: Annotated[
        int,
        counter("requests of its process that the policy map forbids, refused or not, where the kernel plane is on"),
    ] = 0


class Measured(Counted, frozen=True, kw_only=True):
    """Use of a GPU: by a task since it is managed, or by everybody since the daemon took the GPU up."""

    usage_source: Annotated[str, label("what the figures of usage were measured with")]
    share_1s: Annotated[float, gauge("part of the GPU in the last second, without known idle time", "share")]
    share_60s: Annotated[float, gauge("part of the GPU in the last minute, likewise", "share")]
    history: Annotated[list[float], label("share of each of the last 60 seconds, newest last", "share")]
    turns_per_s: Annotated[float, gauge("how often it was switched in, in the last second", "1/s")]


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """A client of a process whose operations are scheduled one by one (docs/operations.md), as the process tells about
    once a second.
    """

    client: Annotated[int, label("its number; 0 has high priority, the others go beside it")]
    operations: Annotated[int, counter("operations that it gave the GPU: kernels, graphs, copies, fills, events")]
    operations_deferred: Annotated[int, counter("those of them that waited in its queue")]
    bounds_reached: Annotated[int, counter("how often one waited for so long that it went without the rule")]
    operations_per_s: Annotated[float, gauge("operations, lately", "1/s")]
    deferred_per_s: Annotated[float, gauge("those of them that waited in its queue", "1/s")]
    queued: Annotated[int, gauge("operations that wait in its queue")]
    wait_us: Annotated[
        float | None, gauge("how long the middle one of those waited that left its queue lately; null: none did", "µs")
    ]
    oldest_us: Annotated[float | None, gauge("how long the oldest that waits has waited; null: none waits", "µs")]
    sms_share: Annotated[
        float | None,
        gauge("part of the SMs' time that its kernels take by their profiles; null: there are none", "share"),
    ]
    beside: Annotated[str, label("what the rule in force lets go beside client 0; of that one: at once")]


class TaskView(Measured, frozen=True):
    """One process' work on one GPU."""

    pid: Annotated[int, label("process id")]
    gpu: Annotated[str, label("UUID of the GPU")]
    task_class: Annotated[str, label("deadline, latency, normal or batch")]
    command: Annotated[str, label("its command, short")]
    user: Annotated[int, label("id of the user that it belongs to")]
    group: Annotated[str, label("tasks of a group share as one")]
    weight: Annotated[int, gauge("its weight beside others of its class")]
    cap_percent: Annotated[float | None, gauge("the most of the GPU's time that it may have", "percent")]
    budget_us: Annotated[int | None, gauge("GPU time that it is to have in each period", "µs")]
    period_us: Annotated[int | None, gauge("length of the period of its deadline", "µs")]
    target_p99_us: Annotated[float | None, gauge("99th percentile of latency that its requests are to keep", "µs")]
    p99_us: Annotated[
        float | None,
        gauge("99th percentile of latency that it reported, of the last second, or up to 20 requests in 5 s", "µs"),
    ]
    segment: Annotated[int | None, label("priority of the segment that it is in")]
    timeslice_us: Annotated[int | None, gauge("slice in force; null: each group has the one it was found with", "µs")]
    enabled: Annotated[bool, gauge("whether the policy lets it run")]
    suspended: Annotated[bool, gauge("whether its user, the want of room, or its memory quota keeps it off the GPU")]
    policy: Annotated[str, label("policy of its GPU")]
    rule: Annotated[str, label("line of the rules file that its settings come from")]
    why: Annotated[str, label("what the policy says of its share")]
    memory_bytes: Annotated[int | None, gauge("GPU memory that it holds", "bytes")]
    groups: Annotated[int, gauge("channel groups")]
    channels: Annotated[int, gauge("channels")]
    corrections: Annotated[int, counter("older name of slices_put_back", now="slices_put_back")]
    discovery_ms: Annotated[float, gauge("how long finding it took", "ms")]
    attach_ms: Annotated[float, gauge("how long its whole way to being managed took", "ms")]
    memory_limit_bytes: Annotated[int | None, gauge("what its whole tree may hold on this GPU", "bytes")]
    memory_overhead_bytes: Annotated[int | None, gauge("part of its memory that the driver takes for it", "bytes")]
    enforcement: Annotated[str, label("what is at work inside the process, or why nothing is")]
    cap_by: Annotated[str, label("where its cap is kept: driver, process or nowhere")]
    reached_by: Annotated[str, label("whose right got its descriptor: own right, launcher, lent; empty: nobody's")]
    together: Annotated[list[int], label("processes that run and stop with it: clients of one MPS server")] = []
    shares: Annotated[str, label("what it shares with others: time; or SMs, at the same time, by MPS")] = "time"
    sms: Annotated[int | None, gauge("SMs that it may use at most under MPS; null: all, or not told")] = None
    sms_percent: Annotated[float | None, gauge("part of the SMs that MPS was told to give it", "percent")] = None
    controls: Annotated[dict[str, str], label("the driver's own controls that are not at its defaults")] = {}
    command_line: Annotated[str, label("its whole command line, up to 32 KiB of it")] = ""
    cgroup: Annotated[str, label("path of its cgroup (v2), or of its job or container in an older hierarchy")] = ""
    container: Annotated[str, label("id of the container that it is in")] = ""
    labels: Annotated[dict[str, str], label("who it is, as its rule says: pod, namespace, container, job …")] = {}
    timeslice_set_us: Annotated[int | None, gauge("slice that was set by hand; null: the policy decides", "µs")] = None
    submissions: Annotated[int | None, counter("pieces of work that it submitted; null: its library does not tell")] = (
        None
    )
    seconds_waited: Annotated[
        float | None, counter("how long its threads waited for the GPU, as its library tells", "s")
    ] = None
    seconds_launching: Annotated[
        float | None, counter("how long they were at work from a first submission until they waited", "s")
    ] = None
    request_us: Annotated[float | None, gauge("how long its requests are, where that was seen", "µs")] = None
    room_ms: Annotated[
        float | None, gauge("from its first channel group on until others were off for it; null: none were", "ms")
    ] = None
    kernel_groups: Annotated[
        int | None,
        gauge("channel groups of its process on all GPUs, as the kernel saw them made; null: it tells of none"),
    ] = None
    kernel_channels: Annotated[int | None, gauge("channels of its groups on this GPU, likewise")] = None
    kernel_compute: Annotated[int | None, gauge("compute engines on these, likewise")] = None
    kernel_copy: Annotated[int | None, gauge("copy engines on these, likewise")] = None
    clients: Annotated[list[ClientView], label("its clients whose operations are scheduled one by one")] = []


class WorkloadView(Counted, frozen=True):
    """What the tasks of one workload used of one GPU, those that ended with it: who they are, and what was counted.

    A workload is who its tasks' rule says that they are, else a container, else all else of a user.
    """

    gpu: Annotated[str, label("UUID of the GPU")]
    user: Annotated[int | None, label("id of the user that it belongs to; null: of several")]
    container: Annotated[str, label("id of its container, where no rule says who it is")] = ""
    labels: Annotated[dict[str, str], label("who it is, as its rule says: pod, namespace, container, job …")] = {}
    folded: Annotated[bool, label("whether these are the oldest that ended, which are not told apart any more")] = False
    tasks_ended: Annotated[int, counter("tasks that ended")] = 0


class GpuView(Measured, frozen=True):
    """A GPU that has or had tasks. Its usage is that of all processes, also of those that ended."""

    gpu: Annotated[str, label("UUID of the GPU")]
    driver: Annotated[str, label("driver that it is reached by")]
    policy: Annotated[str, label("policy that decides its tasks' shares")]
    tasks: Annotated[int, gauge("tasks that are managed now")]
    memory_size_bytes: Annotated[int | None, gauge("memory that it has", "bytes")]
    memory_used_bytes: Annotated[int | None, gauge("memory that its processes hold", "bytes")]
    records_lost: Annotated[int, counter("records of who used it that were lost: that time is nobody's")]
    memory_unowned_bytes: Annotated[
        int | None,
        gauge("memory in use that no living process is known to hold: kept by descriptors, or managed", "bytes"),
    ] = None
    gives_way: Annotated[str, label("how the background gives way: switch, request or slice; empty: nobody does")] = ""
    gives_way_slice_us: Annotated[int | None, gauge("slices that the background has by slice", "µs")] = None
    switches_share: Annotated[
        float | None, gauge("part of the GPU that goes into switches for the foreground", "share")
    ] = None
    switch_budget_share: Annotated[float | None, gauge("part of the GPU that these switches may cost", "share")] = None
    pauses_per_s: Annotated[float | None, gauge("how often the foreground pauses", "1/s")] = None


class DaemonView(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's status."""

    pid: Annotated[int, label("process id")]
    version: Annotated[str, label("version of Runlist")]
    driver: Annotated[str, label("what `--device` calls its device")]
    policy: Annotated[str, label("policy of every GPU, unless it was dropped there")]
    policy_options: Annotated[dict[str, str], label("its options")]
    private: Annotated[bool, label("whether it ends by itself when it manages nothing")]
    keeper_pid: Annotated[int, label("process id of its keeper")]
    tasks: Annotated[int, gauge("tasks that are managed, of all users")]
    rules: Annotated[str, label("path of its rules file")] = ""
    kernel_plane: Annotated[str, label("whether its kernel plane is on, and if not, why")] = ""
    waiting: Annotated[list[str], label("what of the caller's waits for room")] = []
    others_waiting: Annotated[int, gauge("how much of other users waits for room")] = 0
    troubles: Annotated[list[str], label("policies that were dropped, and usage that was lost")] = []
    started_s: Annotated[float, gauge("when it started, since 1970", "s")] = 0.0
    gpus: Annotated[list[GpuView], label("the GPUs that have or had tasks")] = []


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """A rule in force."""

    rule: Annotated[str, label("its file's name, and its line")]
    file: Annotated[str, label("path of its file")]
    asks: Annotated[dict[str, str], label("what it asks for, in words")]
    sets: Annotated[dict[str, str], label("what it sets")]
    refuses: Annotated[dict[str, str], label("what it refuses: slices, groups, gpus")] = {}
    labels: Annotated[dict[str, str], label("what it says of who it is")]
    processes: Annotated[int, gauge("processes that have it now")]


class PolicyEntryView(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the policy map: whom it names, what they get, and what they are refused."""

    rule: Annotated[str, label("line of the rules file that makes it")]
    cgroup: Annotated[str, label("path of the cgroup (v2) that it names")]
    cgroup_id: Annotated[int | None, label("the kernel's number of it")]
    user: Annotated[int | None, label("id of the user that it names")]
    comm: Annotated[str, label("name of the thread that it names")]
    sets: Annotated[dict[str, str], label("what it sets")]
    refuses: Annotated[dict[str, str], label("what is refused: slices, groups, gpus")]
    places: Annotated[bool, label("whether its processes get that without another look at them")]
    waits: Annotated[bool, label("whether there is no such cgroup now")]
    behind: Annotated[str, label("the rule that counts instead, for all that it names")] = ""

    @property
    def state(self) -> str:
        """Whether it is in force, in words."""
        if self.behind:
            return f"behind {self.behind}"
        if self.waits:
            return "no such cgroup"
        return "in force" if self.places else "rules decide"


class PolicyMapView(msgspec.Struct, frozen=True, kw_only=True):
    """The policy map: the rules that the kernel looks up itself."""

    entries: Annotated[list[PolicyEntryView], label("in the order in which they count")]
    enforced: Annotated[str, label("who sees to what they refuse")]
    trouble: Annotated[str, label("why the map is not as the rules say")] = ""


class RuleFileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file of rules."""

    file: Annotated[str, label("its path")]
    rules: Annotated[int, gauge("rules of it that are in force")]
    trouble: Annotated[str, label("what is wrong with it now; what it said before is in force")]


class RulesView(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force, in the order in which they are tried."""

    rules: Annotated[list[RuleView], label("the rules; for users those that their processes have")]
    files: Annotated[list[RuleFileView], label("their files, for root and the daemon's own user")]
    notes: Annotated[list[str], label("what was lowered to a bound, or is not in force")] = []
    left_out: Annotated[int, gauge("rules for which there was no room here")] = 0
