"""What a task's `num_gpus` becomes: settings of the worker that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runlist.errors import UsageError
from runlist.integrations.parts import weight_of
from runlist.settings.table import parse_request

_WORDS = "cap, memory or class=CLASS"


@dataclass(frozen=True)
class Options:
    """What else a part of a GPU is to be: the most of its time, the most of its memory; and the class of all tasks."""

    cap: bool = False
    memory: bool = False
    task_class: str | None = None

    @classmethod
    def parse(cls, text: str) -> Options:
        """Of `cap,memory,class=batch`. Raises UsageError."""
        cap, memory, task_class = False, False, None
        for word in text.replace(",", " ").split():
            key, equals, value = word.lower().partition("=")
            if key == "class" and value:
                parse_request({"class": value})
                task_class = value
            elif key in ("cap", "memory") and not equals:
                cap, memory = cap or key == "cap", memory or key == "memory"
            else:
                raise UsageError(f"{word} is no option for Ray: take {_WORDS}")
        return cls(cap, memory, task_class)

    def words(self) -> str:
        """The text that `parse` reads."""
        named = [("cap", self.cap), ("memory", self.memory), (f"class={self.task_class}", self.task_class)]
        return ",".join(word for word, is_on in named if is_on)


def share_of(resources: Mapping[str, float], gpus: Iterable[object]) -> float:
    """The part of each of its GPUs that a task asked for: 0 to 1, and 0 where it asked for none."""
    amount = float(resources.get("GPU", 0) or 0)
    return max(0.0, min(1.0, amount / max(1, len(list(gpus)))))


def settings_of(share: float, options: Options, memory_bytes: int | None = None) -> dict[str, str]:
    """The settings for a part of each GPU, more than 0. `memory_bytes` is what the smallest of the GPUs has; without it
    no quota is asked for.
    """
    settings = {"weight": str(weight_of(share))}
    if options.task_class is not None:
        settings["class"] = options.task_class
    if options.cap:
        settings["cap"] = f"{max(1.0, share * 100):.4g}" if share < 1 else "max"
    if options.memory and memory_bytes is not None:
        settings["memory"] = str(int(share * memory_bytes)) if share < 1 else "max"
    return settings
