"""What becomes of what Slurm says, without Slurm: its words, the rules, faults. tests/node has the real one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from runlist.daemon.placement.facts import Facts
from runlist.daemon.placement.rules import Rules
from runlist.errors import NoPermissionError, UsageError
from runlist.integrations.slurm import hooks, queue
from runlist.integrations.slurm.drop_in import Jobs, Wishes, text_of
from runlist.integrations.slurm.job import Job, find_job, job_id, node_name
from runlist.integrations.slurm.queue import Gres, parse_gres, sum_gres
from runlist.proc import cgroup as cgroups
from tests.fixtures.daemon import PATIENCE_S, ROOT, Commands, commands, short_path, wait_for

__all__ = ["commands", "short_path"]

PLAIN = Wishes()
VARIABLES = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("gres:shard:1", Gres(0, 1)),
        ("gres/shard:3", Gres(0, 3)),
        ("gres/shard=3", Gres(0, 3)),
        ("gpu:1,shard:4", Gres(1, 4)),
        ("gpu:a100:2(S:0-1),shard:a100:8(S:0,1)", Gres(2, 8)),
        ("gres:gpu", Gres(1, 0)),
        ("gres/gpu:h100", Gres(1, 0)),
        ("gres:shard:1,gres:shard:2", Gres(0, 1)),
        ("gres:shard:0", Gres(0, 0)),
        ("craynetwork:4,bandwidth:lustre:no_consume:4G", Gres()),
        ("shard:99999999999999999999", Gres(0, 1)),
        ("shardy:4,xshard:4", Gres()),
        ("(null)", Gres()),
        ("N/A", Gres()),
        ("", Gres()),
    ],
)
def test_resources_as_slurm_writes_them(text: str, gres: Gres) -> None:
    assert parse_gres(text) == gres


def test_kinds_of_gpus_of_a_node_add_up() -> None:
    assert sum_gres("gpu:a100:2(S:0,1),gpu:l4:2,shard:a100:8(S:0-1),shard:l4:8") == Gres(4, 16)


def rules_of(text: str, tmp_path: Path) -> Rules:
    return Rules.of_drop_in(tmp_path / "slurm-7.toml", text.encode())


@pytest.mark.parametrize(
    "cgroup",
    [
        "/slurm/uid_1000/job_7/step_batch",
        "/slurm_n1/uid_1000/job_7/step_0/task_0",
        "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "/system.slice/n1_slurmstepd.scope/job_7/step_extern/user/task_special",
    ],
)
def test_a_rule_is_for_the_steps_of_its_job_alone(cgroup: str, tmp_path: Path) -> None:
    rules = rules_of(text_of(Job(7, 1000, "n1", 0.25), PLAIN), tmp_path)
    match = rules.match(Facts(1000, cgroup=cgroup))
    assert match is not None
    assert (match.settings, match.labels) == ({"group": "slurm-7", "weight": "25"}, {"job": "7"})
    assert rules.match(Facts(1000, cgroup=cgroup.replace("job_7", "job_71"))) is None
    assert rules.match(Facts(1000, cgroup=cgroup.replace("n1", "n2"))) is None or "n1" not in cgroup
    beneath = f"/user.slice/user-1000.slice/user@1000.service{cgroup}"
    assert rules.match(Facts(1000, cgroup=beneath)) is None


@pytest.mark.parametrize(
    ("part", "wishes", "settings"),
    [
        (0.25, PLAIN, {"weight": "25"}),
        (1.0, Wishes(cap=True, memory="80G"), {"weight": "100"}),
        (None, Wishes(cap=True, memory="80G"), {}),
        (1 / 3, Wishes(cap=True), {"weight": "33", "cap": "33.33"}),
        (0.0001, PLAIN, {"weight": "1"}),
        (0.5, Wishes("batch", memory="80GiB"), {"class": "batch", "weight": "50", "memory": str(40 << 30)}),
    ],
)
def test_what_a_part_of_a_gpu_becomes(
    part: float | None, wishes: Wishes, settings: dict[str, str], tmp_path: Path
) -> None:
    match = rules_of(text_of(Job(7, 1000, "", part), wishes), tmp_path).match(
        Facts(5, cgroup="/slurm/uid_1000/job_7/s")
    )
    assert match is not None
    assert match.settings == {"group": "slurm-7", **settings}


def test_by_environment_user_and_job_both_count(tmp_path: Path) -> None:
    rules = rules_of(text_of(Job(7, 1000, "n1", 0.5), Wishes(by_environment=True)), tmp_path)
    assert rules.match(Facts(1000, environment={"SLURM_JOB_ID": "7"})) is not None
    assert rules.match(Facts(1001, environment={"SLURM_JOB_ID": "7"})) is None
    assert rules.match(Facts(1000, environment={"SLURM_JOB_ID": "70"})) is None


@pytest.mark.parametrize("text", ["", "-1", "0", "7; rm -rf /", "../7", "7\n", "\u0667", "99999999999", "4294967296"])
def test_ids_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_ID"):
        job_id({"SLURM_JOB_ID": text})


@pytest.mark.parametrize("name", ["../../etc", "a/b", "*", "", "n1\n", "a" * 300])
def test_names_that_no_node_has_count_as_none(name: str) -> None:
    assert node_name({"SLURMD_NODENAME": name}) == ""


def test_newer_versions_tell_the_shards_themselves() -> None:
    job = find_job({**VARIABLES, "SLURM_SHARDS_ON_NODE": "3"}, 4)
    assert job == Job(7, 1000, "n1", 0.75)
    more = find_job({**VARIABLES, "SLURM_SHARDS_ON_NODE": "9"}, 4)  # of several GPUs
    assert more is not None
    assert more.weight == 100


# -- a controller that fails, in place of Slurm's own commands --------------------------------------


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, for the test to write."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(queue, "PAUSE_S", 0.01)
    monkeypatch.setattr(queue, "PATIENCE_S", 0.5)
    return folder / "squeue"


def writes(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run_prolog(folder: Path, variables: Mapping[str, str] = VARIABLES) -> list[str]:
    hooks.prolog(folder, variables, PLAIN, 4)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "exec sleep 5",
        "echo nonsense",
        "printf '\\377\\376|x'",
        "echo '8|gres:shard:4|N/A|N/A|N/A|'",
        "kill $$",
    ],
)
def test_a_controller_without_an_answer_is_one_line(
    squeue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    writes(squeue, script)
    assert run_prolog(tmp_path / "rules.d") == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("runlist slurm: squeue")


def test_a_controller_that_comes_back_is_asked_again(squeue: Path, tmp_path: Path) -> None:
    answer = "echo '7|gres:shard:2|N/A|N/A|N/A|'"
    writes(squeue, f"[ -e {tmp_path}/once ] && {answer} && exit 0; touch {tmp_path}/once; exit 1")
    assert run_prolog(tmp_path / "rules.d") == ["slurm-7.toml"]
    assert 'weight = "50"' in (tmp_path / "rules.d" / "slurm-7.toml").read_text()


@pytest.mark.parametrize(
    ("asked", "gres"),
    [("gres:shard:1|gres:shard:3", Gres(0, 3)), ("gres:gpu:2|gres:shard:3", Gres(2, 3)), ("N/A|", Gres())],
)
def test_what_a_job_asked_for_in_several_ways_is_the_most_of_each(squeue: Path, asked: str, gres: Gres) -> None:
    writes(squeue, f"echo '7|{asked}|N/A|N/A|'")
    assert queue.job_gres(7) == gres


def test_an_id_that_is_used_again_takes_nothing_over(squeue: Path, tmp_path: Path) -> None:
    writes(squeue, "echo '7|gres:shard:2|N/A|N/A|N/A|'")
    assert run_prolog(tmp_path / "rules.d") == ["slurm-7.toml"]
    writes(squeue, "echo '7|N/A|N/A|N/A|N/A|'")
    assert run_prolog(tmp_path / "rules.d") == []


def test_a_prolog_that_comes_too_late_takes_its_rule_back(squeue: Path, tmp_path: Path) -> None:
    """The epilog removed the mark while the prolog was still at work."""
    writes(squeue, "echo '7|gres:shard:2|N/A|N/A|N/A|'")
    folder = tmp_path / "rules.d"
    mark = folder / ".slurm-7"
    assert run_prolog(folder, {**VARIABLES, hooks.MARK: str(mark)}) == []
    mark.touch()
    assert run_prolog(folder, {**VARIABLES, hooks.MARK: str(mark)}) == [".slurm-7", "slurm-7.toml"]
    hooks.epilog(folder, VARIABLES)
    assert list(folder.iterdir()) == []


def test_a_folder_of_several_users_is_refused(squeue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writes(squeue, "echo '7|gres:shard:2|N/A|N/A|N/A|'")
    folder = tmp_path / "rules.d"
    folder.mkdir()
    folder.chmod(0o777)
    assert run_prolog(folder) == []
    assert "others can write there" in capsys.readouterr().err
    with pytest.raises(NoPermissionError):
        Jobs(folder).write(7, "")


def test_only_what_is_old_and_without_a_cgroup_is_doubted(
    squeue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes(squeue, f'echo "$@" >>{tmp_path}/asked; echo 12')
    folder = tmp_path / "rules.d"
    for job in (10, 11, 12, 13):
        Jobs(folder).write(job, "")
    tree = tmp_path / "cgroup"
    (tree / "freezer" / "slurm_n1" / "uid_5" / "job_11").mkdir(parents=True)
    monkeypatch.setattr("runlist.integrations.slurm.drop_in._CGROUPS", tree)
    hooks.clean(folder, VARIABLES)
    assert not (tmp_path / "asked").exists()  # all are young
    for job in (10, 11, 12):
        os.utime(folder / f"slurm-{job}.toml", (time.time() - 600,) * 2)
    hooks.clean(folder, VARIABLES)
    assert sorted(path.name for path in folder.iterdir()) == ["slurm-11.toml", "slurm-12.toml", "slurm-13.toml"]
    assert "-w n1" in (tmp_path / "asked").read_text()


def test_a_job_in_an_older_hierarchy_is_its_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "9:name=systemd:/system.slice/slurmd.service\n6:freezer:/slurm_n1/uid_5/job_3/step_0\n0::{}\n"
    for unified in ("/", "/system.slice/slurmd.service"):
        monkeypatch.setattr(cgroups, "read", lambda *_, unified=unified: lines.format(unified))
        assert cgroups.cgroup_of(1) == ("/slurm_n1/uid_5/job_3/step_0", "")
    nested = "6:freezer:/docker/x/slurm/uid_5/job_3/step_0\n0::/a\n"
    monkeypatch.setattr(cgroups, "read", lambda *_: nested)
    assert cgroups.cgroup_of(1) == ("/a", "")


# -- the commands ----------------------------------------------------------------------------------


def test_commands_write_and_remove_the_rule_beside_the_daemons_socket(commands: Commands, squeue: Path) -> None:
    writes(squeue, "echo '7|gres:shard:1|N/A|N/A|N/A|'")
    writes(squeue.with_name("sinfo"), "echo gpu:2,shard:8")
    commands.environment |= {**VARIABLES, "PATH": f"{squeue.parent}:{os.environ['PATH']}"}
    words = ("--cap", "--memory", "80G", "--class", "batch", "--by", "environment")
    assert commands.run("slurm", "prolog", *words).returncode == 0
    rules = commands.folder / "rules.d"
    assert [path.name for path in rules.iterdir()] == ["slurm-7.toml"]
    match = Rules.of_drop_in(rules / "slurm-7.toml", (rules / "slurm-7.toml").read_bytes()).match(
        Facts(1000, environment={"SLURM_JOB_ID": "7"})
    )
    assert match is not None
    assert match.settings == {
        "class": "batch", "group": "slurm-7", "weight": "25", "cap": "25", "memory": str(20 << 30),
    }  # fmt: skip
    os.utime(rules / "slurm-7.toml", (time.time() - 600,) * 2)
    writes(squeue, "echo 8; echo 7")
    assert commands.run("slurm", "clean").stderr == ""
    assert (rules / "slurm-7.toml").exists()
    writes(squeue, "echo 8")
    assert commands.run("slurm", "clean").stderr.startswith("runlist slurm: job 7 is gone")
    assert list(rules.iterdir()) == []
    assert commands.run("slurm", "prolog", "--shards", "2").returncode == 0
    assert commands.run("slurm", "epilog").returncode == 0
    assert list(rules.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("--by", "name"), ("--class", "urgent"), ("--class", "deadline"), ("--memory", "8Q")]
)
def test_words_of_an_administrator_that_cannot_be_meant_are_told(commands: Commands, words: tuple[str, ...]) -> None:
    done = commands.run("slurm", "prolog", *words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1  # which the script puts into the system's log
    assert words[1] in done.stderr.splitlines()[0]
    assert not (commands.folder / "rules.d").exists()


# -- the scripts -----------------------------------------------------------------------------------


class Script:
    """One of deploy/slurm, with a file of defaults and a Runlist of the test's own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.defaults, self.runlist, self.rules = folder / "defaults", folder / "runlist", folder / "rules.d"
        self._path = folder / name
        text = (ROOT / "deploy" / "slurm" / name).read_text()
        assert "/etc/default/runlist-slurm" in text
        writes(self._path, text.replace("/etc/default/runlist-slurm", str(self.defaults)))

    def run(self, job: str = "7") -> int:
        """As slurmd does: what is left of its process group is killed at its end."""
        variables = {"SLURM_JOB_ID": job, "RUNLIST": str(self.runlist), "RUNLIST_RULES": str(self.rules)}
        process = subprocess.Popen([str(self._path)], env=variables, start_new_session=True)
        code = process.wait(PATIENCE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return code


@pytest.fixture
def prolog(tmp_path: Path) -> Script:
    return Script("prolog", tmp_path)


def test_the_prolog_goes_on_when_slurmd_has_gone_on(prolog: Script, tmp_path: Path) -> None:
    said = tmp_path / "said"
    writes(prolog.runlist, f'sleep 0.5; echo "$@" "$RUNLIST_SLURM_MARK" >{said}.new; mv {said}.new {said}')
    prolog.defaults.write_text('RUNLIST_SLURM_OPTIONS="--cap --memory 80G"\n')
    assert prolog.run() == 0
    assert not said.exists()
    wait_for(said.exists, "the work goes on")
    assert said.read_text() == f"slurm prolog --cap --memory 80G {prolog.rules}/.slurm-7\n"
    assert (prolog.rules / ".slurm-7").stat().st_mode & 0o777 == 0o600
    assert prolog.rules.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("program", "defaults", "line"),
    [
        (None, "", "No such file or directory"),
        ("echo 'runlist: --shards many: take a whole number' >&2; exit 2", "", "--shards many: take a whole number"),
        ("echo first >&2; echo; echo last >&2; exit 1", "", "exit code 1: last"),
        ("exit 124", "", "exit code 124"),  # as of one that took too long
        ("exit 0", "RUNLIST_RULES=/proc/x", "/proc/x cannot be written"),
    ],
)
def test_what_keeps_the_prolog_from_its_work_is_one_line_in_the_systems_log(
    program: str | None, defaults: str, line: str, prolog: Script, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    writes(tmp_path / "bin" / "logger", f'echo "$@" >>{log}.new; mv {log}.new {log}')
    if program is not None:
        writes(prolog.runlist, program)
    prolog.defaults.write_text(f"PATH={tmp_path}/bin:$PATH\n{defaults}\n")
    assert prolog.run() == 0
    wait_for(log.exists, "the line")
    (said,) = log.read_text().splitlines()
    assert said.startswith("-t runlist-slurm -p daemon.warning -- job 7: ")
    assert line in said


@pytest.mark.parametrize("defaults", ["if (\n", "exit 3\n", "nonsense\n", "RUNLIST_RULES=/proc/x\n", "\0\xff"])
def test_no_defaults_make_a_script_fail(defaults: str, tmp_path: Path) -> None:
    for name in ("prolog", "epilog"):
        script = Script(name, tmp_path)
        script.defaults.write_text(defaults)
        assert script.run() == 0


@pytest.mark.parametrize("job", ["", "x", "7/../8", "-1", "7 8", "*", "$(touch x)"])
def test_scripts_do_nothing_for_what_is_no_job(job: str, tmp_path: Path) -> None:
    for name in ("prolog", "epilog"):
        script = Script(name, tmp_path)
        writes(script.runlist, f"touch {tmp_path}/ran")
        assert script.run(job) == 0
        assert not script.rules.exists()
    assert not (tmp_path / "ran").exists()


def test_the_epilog_removes_what_its_job_has_alone(tmp_path: Path) -> None:
    script = Script("epilog", tmp_path)
    script.rules.mkdir()
    for name in (".slurm-7", "slurm-7.toml", ".slurm-70", "slurm-70.toml", "other.toml"):
        (script.rules / name).touch()
    assert script.run() == 0
    assert sorted(path.name for path in script.rules.iterdir()) == [".slurm-70", "other.toml", "slurm-70.toml"]
