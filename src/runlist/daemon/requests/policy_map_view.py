"""The policy map, as people and tools see it."""

from __future__ import annotations

from runlist import wire
from runlist.daemon.kernel.link import KernelLink
from runlist.daemon.kernel.policy import Entry
from runlist.views.structs import PolicyEntryView

REFUSES = "the kernel refuses (BPF_LSM)"


def policy_map_view(kernel: KernelLink) -> wire.PolicyMap:
    """All entries, in their order, and who sees to what they forbid."""
    if not kernel.works:
        enforced = f"nobody: {kernel.state or 'the kernel plane is starting'}"
    elif kernel.lenient:
        enforced = f"the daemon suspends who did it; {kernel.lenient}"
    else:
        enforced = REFUSES
    every = [*kernel.policy.entries, *kernel.policy.unused]
    return wire.PolicyMap(
        entries=[_entry(entry) for entry in sorted(every, key=lambda entry: entry.order)],
        enforced=enforced,
        trouble=kernel.policy.trouble,
    )


def _entry(entry: Entry) -> PolicyEntryView:
    return PolicyEntryView(
        rule=entry.rule.where,
        cgroup=entry.cgroup or "",
        cgroup_id=entry.cgroup_id,
        user=entry.user,
        comm=entry.comm or "",
        sets=dict(entry.rule.settings),
        refuses=entry.rule.refuse.words,
        places=entry.match() is not None,
        waits=entry.waits,
        behind=entry.behind,
    )
