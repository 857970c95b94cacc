"""Plain data about GPUs, tasks and shares, as policies see them: nothing of drivers or processes."""

from runlist.model.activity import Activity
from runlist.model.events import Announce, Appear, Busy, Event, Hint, Idle, Report, Segment, Tick, Used, Vanish
from runlist.model.giving_way import GivingWay
from runlist.model.gpu import SliceLimits
from runlist.model.limits import DEFAULT_WEIGHT, MAX_TIMESLICE_US, ROUNDING, Cap, Deadline, check_weight
from runlist.model.share import DEFAULT_SHARE, Share
from runlist.model.task import LATENCY_CRITICAL, Engine, Owner, Task, TaskClass, TaskKey
from runlist.model.usage import NO_USAGE, Usage

__all__ = [
    "DEFAULT_SHARE",
    "DEFAULT_WEIGHT",
    "LATENCY_CRITICAL",
    "MAX_TIMESLICE_US",
    "NO_USAGE",
    "ROUNDING",
    "Activity",
    "Announce",
    "Appear",
    "Busy",
    "Cap",
    "Deadline",
    "Engine",
    "Event",
    "GivingWay",
    "Hint",
    "Idle",
    "Owner",
    "Report",
    "Segment",
    "Share",
    "SliceLimits",
    "Task",
    "TaskClass",
    "TaskKey",
    "Tick",
    "Usage",
    "Used",
    "Vanish",
    "check_weight",
]
