"""Metrics for Prometheus: what the daemon knows of workloads, GPUs and itself, over HTTP or in a file."""
