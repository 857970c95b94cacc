"""What the paper says (USENIX ATC'25): means, on an A100."""

from __future__ import annotations

GPU, STATISTIC = "A100", "mean"

LC_MS: dict[str, dict[str, float]] = {
    "A": {"NP": 2.38, "SEQ": 2.42, "WB": 2.62, "LC-only": 2.36, "GP": 2.38},
    "B": {"NP": 2.91, "SEQ": 9.00, "WB": 2.76, "LC-only": 2.38, "GP": 2.38},
    "C": {"NP": 3.98, "SEQ": 5.00, "WB": 3.20, "LC-only": 2.36, "GP": 2.38},
    "D": {"NP": 9.82, "SEQ": 7.24, "WB": 5.13, "LC-only": 4.62, "GP": 4.82},
    "E": {"NP": 8.76, "SEQ": 8.64, "WB": 5.76, "LC-only": 5.13, "GP": 5.78},
    "REAL": {"NP": 9.11, "SEQ": 7.51, "WB": 5.58, "LC-only": 4.76, "GP": 4.87},
    "Y": {"NP": 3.76, "SEQ": 5.36, "WB": 2.67, "LC-only": 2.36, "GP": 2.60},
    "Z": {"NP": 4.18, "SEQ": 4.93, "WB": 2.49, "LC-only": 2.36, "GP": 2.38},
}
"""Latency of the latency-critical requests, in ms."""

ADDED_US: dict[str, dict[str, float]] = {
    "A": {"WB": 261, "GP without hint": 151, "GP": 8},
    "B": {"WB": 383, "GP without hint": 174, "GP": 6},
    "C": {"WB": 854, "GP without hint": 205, "GP": 27},
    "D": {"WB": 510, "GP without hint": 342, "GP": 211},
    "E": {"WB": 632, "GP without hint": 819, "GP": 651},
    "REAL": {"WB": 829, "GP without hint": 282, "GP": 120},
    "Y": {"WB": 307, "GP without hint": 408, "GP": 232},
    "Z": {"WB": 114, "GP without hint": 184, "GP": 19},
}
"""What is added to the latency alone, in µs."""

BE_RATIO: dict[str, float] = {"GP": 0.886, "WB": 0.797, "SEQ": 0.66, "NP": 1.0}
"""Best-effort throughput over that of NP, all workloads together."""
