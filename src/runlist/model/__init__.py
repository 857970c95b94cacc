"""What a policy sees: plain data about GPUs, tasks and shares, and nothing of drivers or processes."""

from runlist.model.share import DEFAULT_SHARE, Share
from runlist.model.task import Engine, Task, TaskClass, TaskKey

__all__ = ["DEFAULT_SHARE", "Engine", "Share", "Task", "TaskClass", "TaskKey"]
