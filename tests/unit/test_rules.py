"""The rules file: what it says, and everything that can be wrong in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes import CDLL, c_char_p
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.daemon.kernel.policy import entries_of
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Facts, Limits, Over, Rules, facts_of
from runlist.errors import NoPermissionError, UsageError
from runlist.proc.cgroup import container_of
from runlist.protocol.kernel_autogen import MOST_GPUS
from tests.fixtures.daemon import wait_for

ID = "3f2a" + "0123456789abcdef" * 3 + "0" * 12
ALICE = Facts(1000, "/usr/bin/python train.py --lr 1", f"/docker/{ID}", ID, {"RUNLIST_CLASS": "batch", "A": "1 2"})
Load = Callable[[str], Rules]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Rules of a text."""

    def read(text: str) -> Rules:
        path = tmp_path / "rules.toml"
        path.write_text(text)
        return Rules.load(path)

    return read


def settings(rules: Rules, facts: Facts = ALICE) -> dict[str, str] | None:
    match = rules.match(facts)
    return None if match is None else match.settings


EXAMPLE = """\
[limits]               # per GPU
tasks = 16
memory = "120 GiB"
over = "batch"

[[rule]]
user = [4711, "root"]
set.class = "latency"

[[rule]]
user = 1000
command = ["*infer.py*", "*train.py*"]
cgroup = "/docker/*"
container = "3f2a*"
environment = { RUNLIST_CLASS = "ba*", A = ["0*", "1 ?"] }
[rule.set]
class = "batch"
weight = 50
cap = "30%"
group = "container"

[[rule]]
"""


def test_the_first_rule_that_matches_is_taken(load: Load) -> None:
    rules = load(EXAMPLE)
    assert rules
    assert rules.limits == Limits(16, 120 << 30, Over.BATCH, "rules.toml:1")
    match = rules.match(ALICE)
    assert match is not None
    assert match.where == "rules.toml:10"
    assert match.settings == {"class": "batch", "weight": "50", "cap": "30%", "group": f"container:{ID}"}
    assert settings(rules, Facts(0)) == {"class": "latency"}
    last = rules.match(Facts(1001))
    assert last is not None
    assert (last.settings, last.where) == ({}, "rules.toml:22")


@pytest.mark.parametrize(
    "facts",
    [
        Facts(1001, ALICE.command, ALICE.cgroup, ID, ALICE.environment),
        Facts(1000, "train.p", ALICE.cgroup, ID, ALICE.environment),
        Facts(1000, ALICE.command, "/x/docker/1", ID, ALICE.environment),
        Facts(1000, ALICE.command, ALICE.cgroup, "4f2a", ALICE.environment),
        Facts(1000, ALICE.command, ALICE.cgroup, ID, {"RUNLIST_CLASS": "batch"}),
        Facts(1000, ALICE.command, ALICE.cgroup, ID, {}),  # what may not be read
        Facts(1000),
    ],
)
def test_all_of_a_rule_must_match(load: Load, facts: Facts) -> None:
    assert settings(load(EXAMPLE), facts) == {}


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [("*", True), ("/usr/bin/python*", True), ("python*", False), ("*[tT]rain.py*", True), ("*[!t]rain.py*", False),
     ("*TRAIN*", False), ("*lr ?", True), ("*[[]*", False), ("*train.py", False)],
)  # fmt: skip
def test_globs_are_for_the_whole_text(load: Load, pattern: str, matches: bool) -> None:
    assert (load(f"[[rule]]\ncommand = '{pattern}'").match(ALICE) is not None) == matches


@pytest.mark.parametrize(
    ("user", "matches"), [("'1000'", True), ("'1001'", False), ("[7, '1000']", True), ("'0'", False)]
)
def test_a_user_that_this_machine_does_not_know_may_be_a_number_in_quotes(load: Load, user: str, matches: bool) -> None:
    assert bool(settings(load(f"[[rule]]\nuser = {user}\nset = {{ weight = 7 }}"))) is matches


@pytest.mark.parametrize("key", ["command", "cgroup", "container"])
def test_any_is_not_none(load: Load, key: str) -> None:
    rules = load(f"[[rule]]\n{key} = '*'")
    assert rules.match(ALICE) is not None
    assert rules.match(Facts(1000)) is None


@pytest.mark.parametrize(
    ("kind", "group"),
    [("user", "user:1000"), ("cgroup", f"cgroup:/docker/{ID}"), ("container", f"container:{ID}"), ("mine", "mine")],
)
def test_groups_are_named_by_what_matched(load: Load, kind: str, group: str) -> None:
    rules = load(f"[[rule]]\nset.group = '{kind}'")
    assert settings(rules) == {"group": group}
    odd = settings(rules, Facts(1, cgroup="/a b\n" + "c" * 5000))
    assert odd is not None
    assert len(odd.get("group", "")) <= 1024
    assert " " not in odd.get("group", "")
    assert odd.get("group", "").isprintable()
    nothing = settings(rules, Facts(1))
    assert nothing == ({"group": group.replace("1000", "1")} if kind in ("user", "mine") else {})


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("4000000", 4_000_000),
        ('"4000000 B"', 4_000_000),
        ('"12 G"', 12 << 30),
        ('"3000KB"', 3_000_000),
        ('"3000 KiB"', 3000 << 10),
        ('"1.5 GiB"', 3 << 29),
        ('"1TB"', 10**12),
    ],
)
def test_sizes(load: Load, text: str, memory: int) -> None:
    assert load(f"limits.memory = {text}").limits.memory == memory


def test_nothing_said_is_no_rules_and_no_limits(load: Load) -> None:
    for rules in (load(""), load("# nothing\n"), Rules.none()):
        assert not rules
        assert rules.limits == Limits()
        assert rules.match(ALICE) is None


def test_rules_may_be_written_in_every_way_of_toml(load: Load) -> None:
    assert settings(load("rule = [ { user = 1000, set = { weight = 7 } } ]")) == {"weight": "7"}
    assert settings(load('[[ rule ]]\r\nset . "weight" = 7\r\n')) == {"weight": "7"}
    assert settings(load("[[rule]]\ncommand = '''*train.py*'''\nset.deadline = \"\"\"1ms/10ms\"\"\"")) == {
        "deadline": "1ms/10ms"
    }


@pytest.mark.parametrize(
    ("text", "line", "source", "message"),
    [
        ("[[rule]]\nset.weight = 0", 2, "set.weight = 0", "weight=0: a weight is 1 to 10000, not 0"),
        ("[[rule]]\n[rule.set]\n\ncap = 101", 4, "cap = 101", "cap=101: a cap is 1 to 100 %"),
        ("[[rule]]\nset = { class = 'fast' }", 2, "set = { class = 'fast' }", "class=fast: take deadline, latency"),
        ("[[rule]]\nset = {\n}", 2, "set = {", ""),
        ("[[rule]]\n[[rule]]\nset.size = '1G'", 3, "set.size = '1G'", "no setting 'size': take class"),
        ("[[rule]]\nset.memory = 'much'", 2, "set.memory = 'much'", "memory=much: take a size"),
        ("[[rule]]\nset.interleave = 'most'", 2, "set.interleave = 'most'", "interleave=most: take low, medium, high"),
        ("[[rule]]\nset.timeslice = 1.5", 2, "set.timeslice = 1.5", "timeslice=1.5: take whole microseconds"),
        ("[[rule]]\nset.burst = '5ms'", 2, "set.burst = '5ms'", "burst=5ms: a burst goes with a cap"),
        ("[[rule]]\nset.weight = true", 2, "set.weight = true", "take a string or a number"),
        ("[[rule]]\nset.cap = nan", 2, "set.cap = nan", "cap=nan: take a percentage"),
        ("[[rule]]\nset = 5", 2, "set = 5", "take a table of settings"),
        (
            "[[rule]]\nset.deadline = '5ms/10ms'\n[[rule]]\nset.deadline = '6ms/10ms'",
            4, "set.deadline = '6ms/10ms'", "the deadlines up to here ask for 110% of a GPU together",
        ),
        ("[[rule]]\nuser = 1\ncommand = 'x'\nrefuse = { groups = 1 }", 4, "refuse =", "goes by cgroup, user, comm"),
        ("[[rule]]\nuser = 1\ncgroup = '/a*'\nrefuse = { groups = 1 }", 4, "refuse =", "each in full: ask for nothing"),
        ("[[rule]]\nrefuse = { slices = true }", 2, "refuse =", "what is refused goes by cgroup, user, comm alone"),
        ("[[rule]]\ncomand = 'x'", 2, "comand = 'x'", "no key 'comand' here: take user, command, comm, cgroup"),
        ("\n\nrules = 1", 3, "rules = 1", "no key 'rules' here: take limits, bound, rule"),
        ("[limits]\ntask = 1", 2, "task = 1", "no key 'task' here: take tasks, user_tasks, memory, over"),
        ("[limits]\ntasks = 0", 2, "tasks = 0", "take a whole number of 1 or more"),
        ("[limits]\ntasks = true", 2, "tasks = true", "take a whole number"),
        ("[limits]\nmemory = '12 X'", 2, "memory = '12 X'", "take a size with a unit"),
        ("[limits]\nmemory = 0", 2, "memory = 0", "take a size with a unit"),
        ("[limits]\nmemory = true", 2, "memory = true", "take a size with a unit"),
        ("[limits]\nmemory = 120", 2, "memory = 120", "120 bytes let nobody in: give the unit"),
        ("[limits]\nover = 'refuse'", 2, "over = 'refuse'", "nothing can be over: name tasks, user_tasks or memory"),
        ("[[rule]]\ncgroup = '/system.slice/'", 2, "cgroup = '/system.slice/'", "ends without /: this matches nothing"),
        ("[limits]\nover = 'wait'", 2, "over = 'wait'", "take queue, refuse, batch"),
        ("[limits]\nover = []", 2, "over = []", "take queue, refuse, batch"),
        ("limits = 5", 1, "limits = 5", "this is a table"),
        ("[rule]\nuser = 1", 1, "[rule]", "write [[rule]] with double brackets"),
        ("rule = [ {},\n 5 ]", 2, "5 ]", "this is a table"),
        ("[[rule]]\nuser = 'no such user'", 2, "user =", "no user 'no such user' on this machine"),
        ("[[rule]]\nuser = [0,\n -1]", 3, "-1]", "take a user's name or number, or a list of them"),
        ("[[rule]]\nuser = '9999999999'", 2, "user =", "no user '9999999999' on this machine"),
        ("[[rule]]\nuser = 4294967296", 2, "user = 4294967296", "take a user's name or number"),
        ("[[rule]]\nuser = true", 2, "user = true", "take a user's name or number"),
        ("[[rule]]\nuser = []", 2, "user = []", "an empty list matches nothing"),
        ("[[rule]]\ncommand = ''", 2, "command = ''", "take a pattern"),
        ("[[rule]]\ncommand = 5", 2, "command = 5", "take a pattern"),
        ("[[rule]]\ncommand = ['a',\n'*[ab']", 3, "'*[ab']", "a [ without its ]"),
        ("[[rule]]\ncomm = ''", 2, "comm = ''", "take a name as /proc/PID/comm has it, of up to 15 bytes"),
        ("[[rule]]\ncomm = 5", 2, "comm = 5", "take a name as /proc/PID/comm has it"),
        ("[[rule]]\ncomm = ['é1234567890123',\n'é12345678901234']", 3, "'é12345678901234']", "of up to 15 bytes"),
        ("[[rule]]\ncgroup = 'kubepods*'", 2, "cgroup = 'kubepods*'", "a cgroup path begins with /"),
        ("[[rule]]\nenvironment = 'X=1'", 2, "environment = 'X=1'", "take a table of variables and patterns"),
        ("[[rule]]\nenvironment = {}", 2, "environment = {}", "take a table of variables and patterns"),
        ("[[rule]]\nenvironment.X = 1", 2, "environment.X = 1", "take a pattern"),
        ("[[rule]]\nenvironment = { 'X=1' = '*' }", 2, "environment = {", "the name of a variable has no ="),
        ("[limits]\n\n[limits]", 3, "[limits]", "Cannot declare ('limits',) twice"),
        ("[[rule]]\nuser = 1\nuser = 2", 3, "user = 2", "Cannot overwrite a value"),
        ("a = \n\x01b", 1, "a =", "Invalid value"),
        ("[[rule]]\nuser = 'x", 2, "user = 'x", "Expected"),
        ("[[rule", 1, "[[rule", "Expected"),
        (f"[[rule]]\n{'x' * 300} = 1", 2, "x" * 77 + "...:", "no key"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line(
    load: Load, tmp_path: Path, text: str, line: int, source: str, message: str
) -> None:
    if text == "[[rule]]\nset = {\n}" and sys.version_info >= (3, 15):
        return  # TOML 1.1 allows it
    with pytest.raises(UsageError) as caught:
        load(text)
    refusal = str(caught.value)
    assert refusal.startswith(f"{tmp_path}/rules.toml:{line}: {source}"), refusal
    assert message in refusal
    assert refusal.isprintable()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\n\xff", ":2: not UTF-8 text"),
        (b"#" * (1 << 20) + b"\n", "more than 1 MiB of rules"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"x = " + b"9" * 5000, "rules.toml: a number in it is too long"),
    ],
)
def test_files_that_are_no_rules(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Rules.load(path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_just_fits_is_taken(load: Load) -> None:
    rules = load(
        "[[rule]]\nuser = 4294967295\nset.deadline = '4ms/10ms'\n"
        "[[rule]]\nuser = '4294967294'\nset.deadline = '6ms/10ms'\n"
    )
    assert [settings(rules, Facts(uid)) for uid in (4294967295, 4294967294)] == [
        {"deadline": "4ms/10ms"},
        {"deadline": "6ms/10ms"},
    ]


@pytest.mark.parametrize("pattern", ["/jobs*", "*", "?jobs", "[/]jobs"])
def test_a_cgroups_pattern_may_begin_like_a_path(load: Load, pattern: str) -> None:
    rules = load(f"[[rule]]\ncgroup = '{pattern}'\n")
    assert rules.match(Facts(1, cgroup="/jobs")) is not None
    assert rules.match(Facts(1, cgroup="")) is None
    command = load("[[rule]]\ncommand = 'jobs*'\n")  # other things need no slash
    assert command.match(Facts(1, "jobs one")) is not None


def test_the_mark_that_some_editors_put_first_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_bytes(b"\xef\xbb\xbf[[rule]]\nuser = 1\nweight = 5\n")
    with pytest.raises(UsageError, match=r"rules\.toml:3: weight = 5: no key"):
        Rules.load(tmp_path / "rules.toml")
    (tmp_path / "rules.toml").write_bytes(b"\xef\xbb\xbf[[rule]]\nuser = 1\n")
    assert len(Rules.load(tmp_path / "rules.toml").rules) == 1


def test_lines_are_counted_the_same_whatever_ends_them(load: Load) -> None:
    rules = load("\r\n\r\n[[rule]]\r\nuser = 1\r\n")
    match = rules.match(Facts(1))
    assert match is not None
    assert match.where == "rules.toml:3"


def test_a_comm_is_a_whole_name(load: Load) -> None:
    rules = load("[[rule]]\ncomm = ['trainer', 'é1234567890123']")
    matched = [rules.match(Facts(1, comm=name)) is not None for name in ("trainer", "é1234567890123", "train", "", "*")]
    assert matched == [True, True, False, False, False]


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """A daemon of root goes by it."""
    path = tmp_path / "rules.toml"
    path.write_text("[limits]\ntasks = 3\n")
    path.chmod(0o666)
    with pytest.raises(NoPermissionError) as caught:
        Rules.load(path)
    assert str(caught.value).startswith(f"{path}: the rules are refused: others can write to {path}")
    path.chmod(0o644)
    assert Rules.load(path).limits.tasks == 3


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, message in {
        "none": "the rules cannot be read: No such file",
        ".": "Is a directory",
        "fifo": "not a file",
        "\0": "no file has such a name",
        "x" * 5000: "File name too long",
    }.items():
        with pytest.raises(UsageError, match=message):
            Rules.load(tmp_path / name)


@given(
    st.text(alphabet=st.sampled_from("[]{}=.,#'\"\\ \n\trulesetimt0159%/*?abc_-"), max_size=60) | st.text(max_size=40)
)
def test_any_text_is_rules_or_refused(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            Rules.load(path).match(ALICE)
        except UsageError as error:
            refusal = str(error)
        else:
            return
        assert refusal.isprintable()


RULE_KEYS = st.sampled_from(
    ["user", "command", "cgroup", "container", "environment.A", "set.weight", "set.cap", "set.group", "set.deadline"]
)
RULE_VALUES = st.sampled_from(
    [
        "0",
        "1000",
        "'root'",
        "'*'",
        "'/x*'",
        "['a', 'b*']",
        "'30%'",
        "50",
        "'[a'",
        "'1ms/9ms'",
        "'user'",
        "{}",
        "[]",
        "1.5",
    ]
)


@given(st.lists(st.dictionaries(RULE_KEYS, RULE_VALUES, max_size=4), max_size=4))
def test_rules_of_right_words_are_rules_or_refused_with_a_line(tables: list[dict[str, str]]) -> None:
    text = "".join("[[rule]]\n" + "".join(f"{key} = {value}\n" for key, value in table.items()) for table in tables)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.toml"
        path.write_text(text)
        refusal = ""
        try:
            rules = Rules.load(path)
        except UsageError as error:
            refusal = str(error)
        else:
            match = rules.match(ALICE)
            assert match is None or match.where.startswith("rules.toml:")
            assert bool(rules) == bool(tables)
    if refusal:
        place, number, source, _ = refusal.split(":", 3)
        assert place == str(path)
        assert text.splitlines()[int(number) - 1] == source.strip()


# -- facts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{ID}",
        f"/system.slice/docker-{ID}.scope",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-{ID}.scope",
        f"/kubepods/besteffort/pod12-34/{ID}",
        f"/kubepods.slice/crio-{ID}.scope/container",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        f"/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}",
        f"/libpod_parent/libpod-{ID}",
        f"/libpod_parent/{'9' * 64}/libpod-{ID}/container",  # in a pod of podman's, which has an id, too
        f"/docker/{ID}/libpod_parent/{'9' * 64}/libpod-{'8' * 64}",
        f"/docker/{ID}/docker-{'9' * 64}.scope",  # what a process makes below its own cgroup is not believed
    ],
)
def test_containers_are_found_in_cgroup_paths(path: str) -> None:
    assert container_of(path) == ID


@pytest.mark.parametrize(
    "path", ["", "/", f"/x/{ID[:-1]}", f"/x/{ID}0", f"/a/libpod-conmon-{ID}.scope", f"/{ID.upper()}"]
)
def test_other_cgroups_are_no_containers(path: str) -> None:
    assert container_of(path) == ""


def test_facts_of_a_process() -> None:
    code = "print(flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "two words", "bell\a"],
        env={"LABEL": "x=y", "ODD": "\udcff", "PATH": ""},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    facts = facts_of(process.pid, {"LABEL", "ODD", "PATH", "ABEL", "NONE"})
    assert facts is not None
    assert facts.uid == os.getuid()
    assert facts.command == f"{sys.executable} -c {code} two words bell?"
    assert facts.environment == {"LABEL": "x=y", "ODD": "\ufffd", "PATH": ""}
    assert facts.cgroup.startswith("/")
    process.kill()
    wait_for(lambda: (facts := facts_of(process.pid)) is None or facts.command == "")  # a zombie, while nobody waits
    process.communicate()
    assert facts_of(process.pid) is None


def test_the_first_of_two_values_counts_as_in_the_c_library() -> None:
    child = os.fork()
    if child == 0:
        environment = (c_char_p * 3)(b"X=1", b"X=2", None)
        arguments = (c_char_p * 3)(b"sleep", b"20", None)
        CDLL(None).execve(b"/bin/sleep", arguments, environment)
        os._exit(1)
    try:
        wait_for(lambda: (facts := facts_of(child)) is not None and facts.command == "sleep 20")
        facts = facts_of(child, ["X"])
        assert facts is not None
        assert facts.environment == {"X": "1"}
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        ("groups = 0", {"groups": "beyond 0"}),
        ("groups = 4294967295", {"groups": "beyond 4294967295"}),
        ("groups = 4294967296", None),
        ("groups = -1", None),
        ("groups = true", None),
        ("gpus = [0, 31]", {"gpus": "all but 0, 31"}),
        ("gpus = []", {"gpus": "all but none"}),
        (f"gpus = [{MOST_GPUS}]", None),
        ("gpus = [-1]", None),
        ("gpus = 0", None),
        ("slices = true", {"slices": "own"}),
        ("slices = false", {}),
        ("slices = 1", None),
    ],
)
def test_what_a_rule_can_refuse(load: Load, refuse: str, words: dict[str, str] | None) -> None:
    """What the kernel's programs have room for, and no more."""
    text = f"[[rule]]\nuser = 7\nrefuse = {{ {refuse} }}\n"
    if words is None:
        with pytest.raises(UsageError, match=refuse.partition(" ")[0]):
            load(text)
    else:
        (entry,) = entries_of(RuleBook(load(text)))
        assert entry.rule.refuse.words == words
        assert entry.value()
