"""The main job, measured: a latency-critical and a batch program alone, by default sharing, and under Runlist."""

from __future__ import annotations

from runlist.demo.command import DemoOptions, run

__all__ = ["DemoOptions", "run"]
