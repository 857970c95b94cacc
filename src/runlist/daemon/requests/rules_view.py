"""The rules in force, as people and tools see them."""

from __future__ import annotations

import os
from collections import defaultdict

from runlist import wire
from runlist.daemon.placement.rules import Rules
from runlist.daemon.requests.manager import Manager
from runlist.views.structs import RuleFileView, RuleView

MOST_RULES = 10_000
"""An answer is bounded."""


def rules_view(manager: Manager, uid: int) -> wire.RulesInForce:
    """All rules and files for root and the daemon's own user; for others the rules that their processes have."""
    owner = uid in (0, os.geteuid())
    placement = manager.placement
    pids: defaultdict[str, set[int]] = defaultdict(set)
    notes: dict[str, None] = {}
    for task in manager.visible(uid):
        pids[task.rule].add(task.task.key.pid)
        notes |= dict.fromkeys([*task.notes, *([task.unfit] if task.unfit else [])])
    folder = placement.drop_ins.folder if placement.drop_ins is not None else None
    files: list[tuple[str, Rules]] = []
    troubles = {} if placement.drop_ins is None else placement.drop_ins.troubles
    for name, content in sorted(placement.rules.drop_ins.items()):
        files.append((str(folder and folder / name), content))
    if placement.path is not None:
        files.append((str(placement.path), placement.rules.main))
    rules = [
        RuleView(
            rule=rule.where,
            file=path,
            asks=dict(rule.asks),
            sets=dict(rule.settings),
            refuses=rule.refuse.words,
            labels=dict(rule.labels),
            processes=len(pids[rule.where]) if rule.where in pids else 0,
        )
        for path, content in files
        for rule in content.rules
        if owner or rule.where in pids
    ]
    wrong = {str(folder and folder / name): said for name, said in troubles.items()}
    if placement.wrong:
        wrong[str(placement.path)] = placement.wrong
    known = {path: len(content.rules) for path, content in files}
    return wire.RulesInForce(
        rules=rules[:MOST_RULES],
        files=[
            RuleFileView(file=path, rules=known.get(path, 0), trouble=wrong.get(path, ""))
            for path in dict.fromkeys([*known, *wrong])
        ]
        if owner
        else [],
        notes=list(notes),
        left_out=max(0, len(rules) - MOST_RULES),
    )
