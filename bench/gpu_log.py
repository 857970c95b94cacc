"""The name by which tests/emulated/test_hostile.py knows bench.harness.gpu_log."""

from bench.harness.gpu_log import GpuLog, Span

__all__ = ["GpuLog", "Span"]
