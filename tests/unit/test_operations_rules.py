"""Rules of the scheduler of operations: found by name and in files, and p99's feedback on made-up GPUs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from runlist.cli import application
from runlist.errors import NoPermissionError, NotSupportedError, UsageError
from runlist.operations import ANY, CLOSED, COMPLEMENTS, OPEN, Admission, Counters, Model, Rule, load_rule
from runlist.operations.admission import AHEAD_NS, REST_NS
from runlist.operations.feedback import FALLBACK, Feedback
from runlist.operations.rules import builtin_rules
from runlist.operations.rules.p99 import P99, STEPS
from runlist.statistics import percentile
from tests.fixtures.daemon import wait_for

OWN = """
from runlist.operations import Admission, ALL, Model, Rule

class Mine(Rule):
    summary = "mine"

    def __init__(self, options):
        self.sms = int(options.get("sms", 7))

    def admission(self, model):
        return Admission(ALL, sms=self.sms)

RULE = Mine
"""


def counted(launched: int) -> Counters:
    return Counters(launched, 0, 0, 0, 0, 0, 0)


def model(latencies: Sequence[int] = (), now_s: float = 0.0, launched: int = 0, sms: int = 132) -> Model:
    return Model(now_s, (counted(launched), counted(0)), latencies, sms)


def is_closed(answer: Admission) -> bool:
    """Nothing goes beside client 0, and the others are bounded while it is idle."""
    return answer == replace(CLOSED, ahead_ns=AHEAD_NS, rest_ns=REST_NS)


# -- finding them -----------------------------------------------------------------------------------


def test_every_rule_is_found_by_its_name_and_said_in_a_line() -> None:
    assert list(builtin_rules()) == ["exclusive", "greedy", "orion", "p99"]
    for name, summary in builtin_rules().items():
        assert isinstance(load_rule(name), Rule)
        assert "\n" not in summary
    done = CliRunner().invoke(application(), ["policy", "rules"])
    assert [line[2:].split()[0] for line in done.stdout.splitlines()] == list(builtin_rules())
    assert [line[0] for line in done.stdout.splitlines()] == [" ", " ", "*", " "]


@pytest.mark.parametrize("name", list(builtin_rules()))
def test_what_is_listed_of_a_rule_has_its_options(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_rule(f"{name}(nothing=1)")
    if "takes no options" in str(caught.value):
        assert "option" not in builtin_rules()[name]
        return
    options = str(caught.value).partition(": take ")[2]
    assert options
    assert builtin_rules()[name].endswith(f"(options {options})")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine", "no rule 'mine': take exclusive, greedy, orion, p99 or the path"),
        ("", "no rule"),
        ("loader", "no rule 'loader'"),
        ("..", "no rule"),
        ("p99(", "write NAME or NAME"),
        ("p99(a=1)(b=2)", "write NAME or NAME"),
        ("p99(target_us)", "'target_us': write option=value"),
        ("p99(target_us=1, target_us=2)", "given twice"),
        ("p99(target_us=5, ratio=2)", "give one"),
        ("p99(target_us=nan)", "is not a number"),
        ("p99(ratio=1)", "not within 1.01"),
        ("p99(speed=1)", "no option speed: take target_us, ratio"),
        ("greedy(sms=1)", "takes no options"),
        ("orion(sms=1.5)", "no whole number"),
        ("orion(gate=-1)", "not within 0 to 100"),
        ("none.py", "rule file none.py does not exist"),
    ],
)
def test_what_is_no_rule_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_rule(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rule_of_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    path.chmod(0o600)
    assert load_rule(str(path)).admission(model()).sms == 7
    assert load_rule(f"{path}(sms=9)").admission(model()).sms == 9
    with pytest.raises(UsageError, match="invalid literal"):
        load_rule(f"{path}(sms=many)")
    path.chmod(0o666)
    with pytest.raises(NoPermissionError, match="is refused, since it is code"):
        load_rule(str(path))
    path.chmod(0o600)
    path.write_text("RULE = 3")
    with pytest.raises(UsageError, match="does not define RULE"):
        load_rule(str(path))


# -- orion ------------------------------------------------------------------------------------------


def test_the_gate_is_a_part_of_a_request_of_client_0() -> None:
    rule = load_rule("orion(sms=40)")
    assert rule.admission(model()) == Admission(COMPLEMENTS, sms=40)  # nothing was seen yet
    assert rule.admission(model([1_000_000] * 19)).gate_ns is None
    assert rule.admission(model([1_000_000])).gate_ns == 25_000
    assert rule.admission(model([1_050_000] * 100)).gate_ns == 25_000  # hardly another
    assert rule.admission(model([2_000_000] * 1000)).gate_ns == 50_000
    slow = load_rule("orion")
    assert slow.admission(model([1_000_000] * 30 + [9_000_000] * 70)).gate_ns == 25_000  # these had company


def test_orion_has_the_bounds_that_it_is_given() -> None:
    assert load_rule("orion(gate=off)").admission(model([1_000_000] * 100)).gate_ns is None
    given_length = load_rule("orion(latency_us=2000, gate=0.5)")
    assert given_length.admission(model([5] * 100)).gate_ns == 1_000_000


# -- p99 --------------------------------------------------------------------------------------------


@dataclass
class Plant:
    """A GPU on which client 0 makes so many requests a second, each of which takes `latency_us` of what is admitted
    beside it, as a part of everything; a few take twice as long for no reason.
    """

    latency_us: Callable[[float], float]
    rate: float = 200.0
    random: random.Random = field(default_factory=lambda: random.Random(3))
    now_s: float = 0.0
    launched: int = 0
    seen_us: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    stopped: bool = False
    odd: float = 0.002

    def run(self, rule: P99, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            answer = rule.admission(model(self.pending, self.now_s, self.launched))
            self.steps.append(rule.step)
            part = 0.0 if not answer.beside else min(1.0, answer.sms / 132)
            self.pending = []
            self.now_s += 0.25
            for _ in range(0 if self.stopped else round(self.rate / 4)):
                took_us = self.latency_us(part) * self.random.uniform(0.97, 1.03)
                took_us *= 2 if self.random.random() < self.odd else 1
                self.seen_us.append(took_us)
                self.pending.append(round(took_us * 1e3))
                self.launched += 10

    def run_until(self, rule: P99, there: Callable[[], bool]) -> None:
        """Until something is so, which must be within five minutes."""
        until_s = self.now_s + 300
        while not there():
            self.run(rule, 0.25)
            assert self.now_s < until_s

    def p99_us(self, newest: int) -> float:
        return percentile(sorted(self.seen_us[-newest:]), 99)

    def turns(self) -> int:
        """How often the way along the steps changed its direction."""
        moves = [after - before for before, after in pairwise(self.steps) if after != before]
        return sum(one * other < 0 for one, other in pairwise(moves))


def rule_p99(text: str) -> P99:
    rule = load_rule(text)
    assert isinstance(rule, P99)
    return rule


@pytest.mark.parametrize("seed", range(5))
def test_it_converges_below_the_target_with_as_much_beside_as_fits(seed: int) -> None:
    plant = Plant(lambda part: 1000 * (1 + 0.8 * part), random=random.Random(seed))  # 100 more a step
    rule = rule_p99("p99(target_us=1450)")
    plant.run(rule, 300)
    assert plant.p99_us(20_000) <= 1450
    assert set(plant.steps[-400:]) <= {2, 3, 4}
    assert max(set(plant.steps[-400:]), key=plant.steps[-400:].count) >= 3
    assert plant.turns() <= 6


@pytest.mark.parametrize("seed", range(5))
def test_where_nothing_fits_it_tries_ever_more_rarely(seed: int) -> None:
    plant = Plant(lambda part: 1000 if part == 0 else 3000, random=random.Random(seed))
    plant.run(rule_p99("p99(target_us=1500)"), 600)
    tried = sum(after > before for before, after in pairwise(plant.steps))
    assert 11 <= tried <= 18  # 2, 4, … 64 s apart, then each 64 s
    assert plant.p99_us(len(plant.seen_us)) <= 2 * 1030  # those that are late by trying are fewer than 1 %
    last_minutes = plant.steps[-480:]
    assert last_minutes.count(0) >= 0.97 * len(last_minutes)


def test_where_everything_fits_everything_goes() -> None:
    plant = Plant(lambda part: 1000 + 50 * part)
    rule = rule_p99("p99")
    plant.run(rule, 60)
    assert rule.step == STEPS
    assert rule.admission(model(now_s=plant.now_s, launched=plant.launched)) == OPEN
    assert plant.turns() == 0


def test_a_ratio_is_to_what_it_measured_with_nobody_beside() -> None:
    plant = Plant(lambda part: 4000 * (1 + part))
    rule = rule_p99("p99(ratio=1.5)")
    assert is_closed(rule.admission(model()))
    assert rule.why() == "measures client 0 alone"
    plant.run(rule, 200)
    alone_us = 4000 * 1.03
    assert plant.p99_us(10_000) <= 1.5 * alone_us * 1.01
    assert rule.step in (2, 3)


@pytest.mark.parametrize("pause_s", [0.0, 60.0])
def test_what_it_measured_alone_is_lower_once_requests_are_shorter(pause_s: float) -> None:
    """A service that had long prompts for a while was three times as slow as alone, for ever."""
    alone_us = [8000.0]
    plant = Plant(lambda part: alone_us[0] * (1 + 2 * part))
    rule = rule_p99("p99(ratio=1.5)")
    plant.run(rule, 60)
    plant.stopped = True
    plant.run(rule, pause_s)
    plant.stopped, alone_us[0] = False, 2000.0
    plant.run(rule, 120)
    assert plant.p99_us(8_000) <= 1.5 * 2000 * 1.03 * 1.01
    assert rule.step in (1, 2)


def test_it_closes_within_a_second_when_load_rises_and_opens_again_after() -> None:
    weight = [0.05]
    plant = Plant(lambda part: 1000 * (1 + weight[0] * part))
    rule = rule_p99("p99(target_us=1300)")
    plant.run(rule, 60)
    assert rule.step == STEPS
    weight[0] = 4.0
    plant.run(rule, 1.0)
    assert rule.step <= STEPS // 2
    plant.run(rule, 20.0)
    assert plant.p99_us(1000) <= 2 * 1030
    assert rule.step == 0
    weight[0] = 0.05
    plant.run(rule, 120.0)
    assert rule.step == STEPS


def test_a_client_that_stopped_is_tried_afresh_and_one_that_is_never_seen_holds_nobody() -> None:
    plant = Plant(lambda part: 1000 if part == 0 else 3000)
    rule = rule_p99("p99(target_us=1500)")
    plant.run(rule, 90)
    plant.run_until(rule, lambda: plant.steps[-2:] == [1, 0])  # just tried: the next time is far off
    plant.stopped = True
    plant.run(rule, 3)
    plant.stopped = False
    plant.latency_us = lambda part: 1000 + 100 * part
    plant.run(rule, 10)  # it does not wait for what the other work taught
    assert rule.step == STEPS
    blind = rule_p99("p99")
    answers = [blind.admission(model(now_s=0.25 * number, launched=number)) for number in range(20)]
    assert is_closed(answers[0])
    assert answers[-1] == OPEN
    assert "never synchronises" in blind.why()
    assert is_closed(blind.admission(model([1000], 6.0, 30)))


def test_a_step_that_has_held_is_soon_tried_again() -> None:
    plant = Plant(lambda part: 1000 if part == 0 else 3000)
    rule = rule_p99("p99(target_us=1500)")
    plant.run(rule, 200)  # it waits for a minute between
    plant.latency_us = lambda part: 1000 + 100 * part
    plant.run(rule, 200)
    assert rule.step == STEPS
    plant.latency_us = lambda part: 3000
    plant.run_until(rule, lambda: rule.step == 0)
    plant.latency_us = lambda part: 1000 + 100 * part
    plant.run(rule, 25)
    assert rule.step == STEPS


def test_requests_that_began_under_another_step_are_not_counted() -> None:
    rule = rule_p99("p99(target_us=1100)")
    rule.admission(model([9_000_000] * 3 + [700_000] * 100, 0.25))
    assert rule.step == 1
    rule.admission(model([9_000_000] * 3 + [700_000] * 20, 0.5))
    assert rule.step == 1
    rule.admission(model([9_000_000] * 3, 0.75))
    assert rule.step == 0


def test_there_is_always_some_slack() -> None:
    rule = rule_p99("p99(target_us=800)")
    assert rule.admission(model([800_000] * 110)).gate_ns == 5_000


def test_steps_are_parts_of_the_sms_and_of_the_slack() -> None:
    rule = rule_p99("p99(target_us=1100)")
    now_s = 0.0
    found: list[Admission] = []
    for _ in range(STEPS):
        now_s += 0.25
        found.append(rule.admission(model([700_000] * 110, now_s, sms=132)))
    assert [one.sms for one in found] == [16, 33, 49, 66, 82, 99, 115, ANY]
    assert [one.gate_ns for one in found[:-1]] == [50_000 * step for step in range(1, STEPS)]
    unknown = rule_p99("p99(target_us=1100)").admission(model([700_000] * 110, sms=0))
    assert (unknown.sms, unknown.gate_ns) == (ANY, 50_000)


@settings(max_examples=200, deadline=None)
@given(
    rounds=st.lists(
        st.tuples(
            st.floats(0, 100), st.integers(0, 1 << 63), st.lists(st.integers(0, 1 << 63), max_size=30),
            st.integers(1, 40), st.integers(0, 1 << 20),
        ),
        max_size=30,
    ),
    text=st.sampled_from(["p99", "p99(target_us=500)", "orion", "orion(gate=1)"]),
)  # fmt: skip
def test_whatever_is_seen_the_answer_is_an_admission(
    rounds: list[tuple[float, int, list[int], int, int]], text: str
) -> None:
    rule = load_rule(text)
    now_s, before = 0.0, 0
    for pause_s, launched, latencies, times, sms in rounds:
        now_s += pause_s
        answer = rule.admission(Model(now_s, (counted(launched),), latencies * times, sms))
        assert isinstance(answer, Admission)
        assert 0 <= answer.sms <= ANY
        assert answer.gate_ns is None or answer.gate_ns >= 0
        if isinstance(rule, P99):
            assert 0 <= rule.step <= STEPS
            assert rule.step - before <= 1
            before = rule.step


# -- the thread that asks -----------------------------------------------------------------------------


class Scripted(Rule):
    """Answers what a function does."""

    summary = "scripted"
    every_s = 0.01

    def __init__(self, answer: Callable[[], Admission]) -> None:
        super().__init__({})
        self.answer = answer
        self.times = 0

    def admission(self, model: Model) -> Admission:
        del model
        self.times += 1
        return self.answer()


def fails() -> Admission:
    raise KeyError("sms")


def test_an_answer_is_put_in_force_once_until_it_is_another() -> None:
    put: list[Admission] = []
    answers = iter([OPEN, OPEN, CLOSED, *[OPEN] * 100_000])
    rule = Scripted(lambda: next(answers))
    feedback = Feedback(rule, model, put.append)
    feedback.start()
    wait_for(lambda: len(put) == 3)
    feedback.stop()
    asked = rule.times
    time.sleep(0.05)
    assert rule.times == asked
    assert put == [OPEN, CLOSED, OPEN]


def test_others_are_bounded_while_client_0_is_idle() -> None:
    assert is_closed(load_rule("exclusive").admission(model()))
    own = load_rule("exclusive(rest_us=0, ahead_us=50)").admission(model())
    assert own == replace(CLOSED, ahead_ns=50_000)
    assert load_rule("exclusive(ahead_us=off, rest_us=0)").admission(model()) == CLOSED
    step = load_rule("p99(target_us=1000, ahead_us=20, rest_us=3)").admission(model())
    assert (step.ahead_ns, step.rest_ns) == (20_000, 3_000)
    for rule in ("greedy", "orion"):
        answer = load_rule(rule).admission(model())
        assert (answer.ahead_ns, answer.rest_ns) == (None, 0)
    for text, said in (("ahead_us=0", "1 to"), ("rest_us=2e6", "0 to"), ("ahead=1", "take ahead_us, rest_us")):
        with pytest.raises(UsageError, match=said):
            load_rule(f"exclusive({text})")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (fails, "KeyError"),
        (lambda: 3, "it answered int"),
        (lambda: Admission(frozenset(), sms=-1), "no admission has sms=-1"),
        (lambda: Admission(frozenset(), sms=1 << 40), "sms="),
        (lambda: Admission(frozenset({(7, 7)})), "pairs of Bound"),  # type: ignore[arg-type]
        (lambda: Admission(frozenset(), gate_ns=1 << 63), "gate_ns="),
        (lambda: Admission(frozenset(), ahead_ns=0), "ahead_ns=0"),
        (lambda: Admission(frozenset(), ahead_ns=1.5), "ahead_ns=1.5"),  # type: ignore[arg-type]
        (lambda: Admission(frozenset(), rest_ns=10**9 + 1), "rest_ns="),
        (lambda: Admission(frozenset(), rest_ns=None), "rest_ns=None"),  # type: ignore[arg-type]
        (lambda: Admission(frozenset(), copies="no"), "copies='no'"),  # type: ignore[arg-type]
        (lambda: Admission([(0, 1)]), "a frozenset of pairs of Bound"),  # type: ignore[arg-type]
        (lambda: time.sleep(0.3) or OPEN, "s for an answer"),  # type: ignore[func-returns-value]
    ],
)
def test_a_rule_that_fails_is_dropped_and_complements_go(
    answer: Callable[[], Admission], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put: list[Admission] = []
    threads = threading.active_count()
    feedback = Feedback(Scripted(answer), model, put.append)
    feedback.start()
    assert put == [FALLBACK]
    wait_for(lambda: threading.active_count() == threads)
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    feedback.stop()


def test_a_rule_that_fails_in_a_users_own_file_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN.replace("return ", "return {}['missing'] or "))
    path.chmod(0o600)
    Feedback(load_rule(str(path)), model, lambda answer: None).start()
    assert ": line 11: KeyError: 'missing'" in capsys.readouterr().err


def test_a_scheduler_that_others_stop_ends_the_thread_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = threading.Event()

    def look() -> Model:
        if stopped.is_set():
            raise NotSupportedError("no scheduler of operations was started in this process")
        return model()

    rule = Scripted(lambda: OPEN)
    rule.every_s = 0.05
    threads = threading.active_count()
    feedback = Feedback(rule, look, lambda _: None)
    feedback.start()
    assert threading.active_count() == threads + 2
    stopped.set()
    wait_for(lambda: threading.active_count() == threads)
    assert capsys.readouterr().err == ""
    feedback.stop()
