"""What the samples of pairs come to, beside the targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from bench.harness.figures import AT_LEAST, AT_MOST, Figure, rounded, spread
from bench.harness.pair_programs import ALONE, DEFAULT, RUNLIST
from bench.harness.pair_run import Measured, Samples
from runlist.statistics import percentile

PERCENTS = (50, 99, 99.9)
NOISE = 0.02
"""What is worse by less is not called worse."""

P50, P99, P999 = (f"response p{percent:g} / alone" for percent in PERCENTS)
BATCH, IDEAL = "batch / alone", "batch / ideal"
P50_BETTER, P99_BETTER = (f"response p{percent:g} / the better of alone and default" for percent in PERCENTS[:2])
P99_DEFAULT = "response p99 / default"
ALWAYS = (P50, P99, P999, BATCH, IDEAL)

TARGETS: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "token-loop+matmul": {P50: (AT_MOST, 1.10), P99: (AT_MOST, 1.15), IDEAL: (AT_LEAST, 0.95)},
    "eager-llm+matmul": {BATCH: (AT_LEAST, 0.75), P50_BETTER: (AT_MOST, 1.05), P99_BETTER: (AT_MOST, 1.05)},
    "resnet+matmul": {BATCH: (AT_LEAST, 0.88), P99: (AT_MOST, 1.15)},
    "graph+matmul": {P99: (AT_MOST, 1.30)},
    "prepared-graph+matmul": {P99: (AT_MOST, 1.10)},
    "hinted-graph+matmul": {P99: (AT_MOST, 1.05)},
    "http+matmul": {P99: (AT_MOST, 1.15), IDEAL: (AT_LEAST, 0.8)},
    "kernel+matmul": {P99_DEFAULT: (AT_MOST, 0.14)},
    "token-loop+bert-large": {IDEAL: (AT_LEAST, 0.93)},
}
"""Of the configuration `runlist`."""


def tails(samples: Samples) -> dict[float, float]:
    """Percentiles of the response times of all rounds, µs."""
    ordered = sorted(samples.all_responses)
    return {percent: percentile(ordered, percent) for percent in PERCENTS}


def ideal(measured: Measured, samples: Samples) -> float:
    """The part of the GPU that the latency program leaves, when it answers so many requests as it did."""
    return 1 - samples.rate * measured.length.gpu_us / 1e6


def ratios(measured: Measured, name: str) -> dict[str, float]:
    """What a configuration gave beside `alone`, and beside `default` where that was measured, too. What cannot be said
    is left out.
    """
    alone, samples = measured.samples[ALONE], measured.samples[name]
    ours, base = tails(samples), tails(alone)
    found = {f"response p{percent:g} / alone": ours[percent] / base[percent] for percent in PERCENTS}
    if not alone.batch_rate:
        return found
    found[BATCH] = samples.batch_rate / alone.batch_rate
    if (left := ideal(measured, samples)) > 0:
        found[IDEAL] = found[BATCH] / left
    if DEFAULT in measured.samples:
        default = tails(measured.samples[DEFAULT])
        found[P99_DEFAULT] = ours[99] / default[99]
        found[P50_BETTER] = ours[50] / min(base[50], default[50])
        found[P99_BETTER] = ours[99] / min(base[99], default[99])
    return found


def worse_on_both_sides(measured: Measured) -> bool | None:
    """Whether Runlist's p99 is longer than by default and its batch rate lower; None where one was not measured."""
    if not {RUNLIST, DEFAULT} <= measured.samples.keys():
        return None
    ours, default = measured.samples[RUNLIST], measured.samples[DEFAULT]
    longer = tails(ours)[99] > (1 + NOISE) * tails(default)[99]
    return longer and ours.batch_rate < (1 - NOISE) * default.batch_rate


def figures(measured: Measured) -> list[Figure]:
    """Of every configuration of Runlist; the first has the details of the pair."""
    found: list[Figure] = []
    for name in measured.samples:
        if name.partition(":")[0] != RUNLIST:
            continue
        targets = TARGETS.get(str(measured.pair), {}) if name == RUNLIST else {}
        title = ", ".join(filter(None, (str(measured.pair), name.partition(":")[2])))
        got = ratios(measured, name)
        for what in [*ALWAYS, *(each for each in targets if each not in ALWAYS)]:
            if what in got:
                relation, target = targets.get(what, ("", None))
                given = {} if found else details(measured)
                found.append(Figure(f"{title}: {what}", got[what], relation, target, details=given))
        found.append(Figure(f"{title}: daemon", 100 * fmean(measured.samples[name].daemon), unit="% of a core"))
    return found


def details(measured: Measured) -> dict[str, Any]:
    """All that was measured of a pair. Response times are in whole µs, in a string a round: as a list each would have a
    line of the file.
    """
    return {
        "requests/s asked for": round(measured.length.rate, 3),
        "length of a request alone, ms": round(measured.length.mean_us / 1e3, 4),
        "GPU time of a request, ms": round(measured.length.gpu_us / 1e3, 4),
        "GPU time is": measured.length.gpu_by,
        "configurations": [
            {
                "configuration": name,
                "response, ms": spread([one / 1e3 for one in samples.all_responses]),
                "response p99.9, ms": round(tails(samples)[99.9] / 1e3, 4),
                "ratios": {what: round(value, 4) for what, value in ratios(measured, name).items()},
                "requests/s": round(samples.rate, 3),
                "batch, a second, by round": [rounded(each, 2) for each in samples.batch],
                "timer late, µs": spread(samples.wakes),
                "responses, µs, by round": _lines(samples.responses),
                "responses in the second before, µs, by round": _lines(samples.before),
            }
            for name, samples in measured.samples.items()
        ],
        "left out": measured.notes,
        "correct": measured.correct,
    }


def summary(all_measured: Sequence[Measured], left_out: Mapping[str, str]) -> list[Figure]:
    """What is said of all pairs together."""
    judged = {str(one.pair): worse_on_both_sides(one) for one in all_measured}
    worse = [name for name, whether in judged.items() if whether]
    given = {
        "worse": worse,
        "judged": [name for name, whether in judged.items() if whether is not None],
        "left out": dict(left_out),
    }
    wrong = sum(not one.correct for one in all_measured)
    found = [Figure("pairs with wrong results", wrong, AT_MOST, 0, details=given)]
    found += [
        Figure(f"{crowd.pair}: response p99 / with one", tail / tails(one.samples[RUNLIST])[99], AT_MOST, 1.15)
        for crowd in all_measured
        for one in all_measured
        if crowd.pair.count > 1 and one.pair == replace(crowd.pair, count=1)
        if RUNLIST in crowd.samples and RUNLIST in one.samples and (tail := tails(crowd.samples[RUNLIST])[99])
    ]
    if given["judged"]:
        name = "pairs worse than default time slicing on both sides"
        found.append(Figure(name, len(worse), AT_MOST, 0))
    return found


def _lines(rounds: Iterable[Iterable[float]]) -> list[str]:
    return [" ".join(f"{one:.0f}" for one in each) for each in rounds]
