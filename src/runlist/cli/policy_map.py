"""Entries of the policy map that a command sets: a drop-in each, which is in force when the command ends, or was never
there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from runlist.client import Client
from runlist.daemon.placement.reading import read_drop_in
from runlist.daemon.placement.rule import Rule
from runlist.errors import NoTargetError, RunlistError, UsageError
from runlist.integrations.drop_ins import Folder, Value, rule_text
from runlist.protocol.kernel_autogen import MOST_GPUS
from runlist.settings.table import parse_settings
from runlist.text import printable
from runlist.views.structs import RuleView
from runlist.wire import PolicyMap

PATIENCE_S = 5.0
"""How long the daemon may take to follow its folder of drop-ins; usually some milliseconds."""

_HEAD = "Written by `runlist policy map set`; `runlist policy map unset` removes it."
_NOWHERE = Path("entry")
"""What errors in its text are told of; it is in no file yet."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,10}")


def checked_name(name: str) -> str:
    """A name that an entry can have. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{printable(name[:100])!r}: a name is up to 64 letters, digits, - and _")
    return name


class Wanted(msgspec.Struct, frozen=True):
    """What an entry is to say: the text of its file, and the rule in it."""

    text: str
    rule: Rule


def wanted(who: Mapping[str, str], settings: Mapping[str, str], refuse: Sequence[str]) -> Wanted:
    """An entry by which processes get settings and are refused things. `who` names them by cgroup, user or comm, and
    `refuse` has `slices`, `groups=N` and `gpus=N,N`. Raises UsageError.
    """
    if not who:
        raise UsageError("name whom it is for: --cgroup, --user, --comm")
    parse_settings(settings)
    conditions: dict[str, Value] = {**who}
    if _NUMBER.fullmatch(who.get("user", "")):
        conditions["user"] = int(who["user"])
    text = rule_text(_HEAD, conditions, {}, settings, _refused(refuse))
    try:
        (rule,) = read_drop_in(_NOWHERE, text.encode()).rules
    except UsageError as error:  # it tells the line of a file that nobody wrote
        raise UsageError(re.sub(rf"^{_NOWHERE}:[0-9]+: ", "", str(error))) from None
    if not rule.of_the_kernel or rule.like_patterns:
        raise UsageError("the policy map takes names in full, without *, ? or [")
    return Wanted(text, rule)


class Entry:
    """The entry of a name. Methods raise RunlistError or OSError, and then nothing has changed."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._folder = Folder(client.drop_ins)
        self._file = f"map-{name}.toml"
        self._path = client.drop_ins / self._file

    def set(self, entry: Wanted) -> PolicyMap:
        """Put it in force; returns what the map has of it."""
        words = (entry.rule.asks, entry.rule.settings, entry.rule.refuse.words)
        found = self._change(entry.text, lambda rules: any((one.asks, one.sets, one.refuses) == words for one in rules))
        known, rules = self._client.policy_map(), {rule.rule for rule in found}
        return msgspec.structs.replace(known, entries=[entry for entry in known.entries if entry.rule in rules])

    def unset(self) -> None:
        """Remove it. Its processes get what other rules say, or are put back."""
        self._change(None, lambda rules: not rules)

    def _change(self, text: str | None, holds: Callable[[list[RuleView]], bool]) -> list[RuleView]:
        """Write its file, or remove it; returns its rules once they are as wanted. Else all is as it was."""
        with self._folder as folder:
            before = folder.get(self._file)
            if text is None and before is None:
                raise NoTargetError(f"no entry {self._name} was set: see `runlist policy map show`")
            try:
                self._put(folder, text)
                return self._wait(holds)
            except BaseException:
                self._put(folder, before)
                raise

    def _put(self, folder: Folder, text: str | None) -> None:
        if text is None:
            folder.remove(self._file)
        else:
            folder.put(self._file, text)

    def _wait(self, holds: Callable[[list[RuleView]], bool]) -> list[RuleView]:
        """The rules of its file, once they are as wanted."""
        ends = time.monotonic() + PATIENCE_S
        while True:
            known = self._client.rules()
            found = [rule for rule in known.rules if Path(rule.file) == self._path]
            if holds(found):
                return found
            if time.monotonic() > ends:
                troubles = [each.trouble for each in known.files if Path(each.file) == self._path and each.trouble]
                raise RunlistError(
                    next(
                        iter(troubles), f"the daemon does not follow {self._path.parent}: see its log; nothing changed"
                    )
                )
            time.sleep(0.01)


def _refused(words: Sequence[str]) -> dict[str, Value]:
    """`refuse` as rules have it."""
    found: dict[str, Value] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in found:
            raise UsageError(f"--refuse {key} is given twice: give it once")
        numbers = [int(part) for part in value.split(",") if re.fullmatch("[0-9]{1,9}", part)]
        all_are_numbers = len(numbers) == value.count(",") + 1
        match key:
            case "slices" if word == "slices":
                found[key] = True
            case "groups" if all_are_numbers and len(numbers) == 1:
                found[key] = numbers[0]
            case "gpus" if all_are_numbers and max(numbers) < MOST_GPUS:
                found[key] = numbers
            case "gpus" if all_are_numbers:
                raise UsageError(f"--refuse {printable(word)}: take the numbers of GPUs, 0 to {MOST_GPUS - 1}")
            case _:
                raise UsageError(f"--refuse {printable(word)}: take slices, groups=N or gpus=N,N")
    return found
