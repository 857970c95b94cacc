"""The tables of a public cluster trace: what they say, and what is wrong with bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.errors import UsageError
from runlist.model import Cap, TaskClass
from runlist.sim import load_trace
from tests.unit.test_sim_traces import outcome, refusal, tenants, write

TASKS = """\
j1,worker,2.0,Terminated,1000.0,4600.0,600.0,29.3,50.0,T4
j2,tensorflow,1.0,Running,1060.0,,600.0,29.3,100.0,V100
j3,ps,1.0,Terminated,1000.0,2000.0,600.0,29.3,,
j4,worker,1.0,Failed,,,600.0,29.3,25.0,MISC
j5,worker,,Terminated,1120.0,1180.0,600.0,29.3,250.0,P100
j6,worker,1.0,Terminated,90000.0,91000.0,600.0,29.3,10.0,T4
"""
HEADER = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"


@pytest.mark.parametrize("header", ["", HEADER])
def test_a_table_of_tasks(tmp_path: Path, header: str) -> None:
    trace = load_trace(write(tmp_path, "pai_task_table.csv", header + TASKS), 5.0)
    assert trace.seconds == 5.0
    one, two, alone, *parts = tenants(trace)
    for tenant in (one, two):
        assert tenant.name.startswith("j1/worker/")
        assert tenant.name.endswith("(T4)")
        assert (tenant.weight, tenant.cap, tenant.demand) == (50, Cap.of_percent(50), 0.5)
        assert (tenant.start_s, tenant.end_s, tenant.task_class) == (0.0, 60.0, TaskClass.BATCH)
    assert (alone.weight, alone.cap, alone.start_s, alone.end_s) == (100, None, 1.0, None)
    assert [part.weight for part in parts] == [83, 83, 83]  # 250 % is three GPUs
    assert [(part.start_s, part.end_s) for part in parts] == [(2.0, 3.0)] * 3
    assert "60 s of the trace in one" in trace.notes[0]
    assert "1 row left out" in trace.notes[1]


def test_another_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", TASKS)
    assert [tenant.name for tenant in load_trace(path, 10.0, compress=100, skip=88_500).tenants][-1].startswith("j6/")
    ended = write(tmp_path, "ended.csv", TASKS.replace("1060.0,,", "1060.0,1070.0,"))
    with pytest.raises(UsageError, match="nobody wants a GPU"):
        load_trace(ended, 1.0, compress=1, skip=1e6)


def test_a_table_of_instances(tmp_path: Path) -> None:
    rows = "j1,worker,i1,w1,x,Terminated,1000.0,1600.0,m1\nj9,worker,i2,w2,x,Terminated,1000.0,1600.0,m1\n"
    path = write(tmp_path, "pai_instance_table.csv", rows)
    with pytest.raises(UsageError, match=r"put pai_task_table\.csv beside it"):
        load_trace(path)
    write(tmp_path, "pai_task_table.csv", TASKS)
    (tenant,) = load_trace(path).tenants
    assert (tenant.weight, tenant.end_s) == (50, 10.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "the file is empty"),
        ("a,b,c\n", "line 1: 3 columns"),
        (TASKS + "j,w,1\n", "line 7: 3 columns, not 10"),
        (TASKS.replace("1060.0", "soon"), "line 2: start_time: 'soon' is not a number"),
        (TASKS.replace("1060.0", "nan"), "line 2: start_time"),
        (TASKS.replace(",50.0,", ",half,"), "line 1: plan_gpu: 'half'"),
        (TASKS.replace(",2.0,", ",1e9,"), "line 1: more than 100000 tenants"),
        (HEADER, "no row has a start_time"),
        ("j,w,1,T,,,1,1,50,T4\n", "no row has a start_time"),
        ("j,w,1,T,5,9,1,1,0,T4\n", "nobody wants a GPU"),
        (TASKS + '"' + "x" * 200_000, "line"),
    ],
)
def test_what_is_wrong_with_a_table(tmp_path: Path, text: str, named: str) -> None:
    assert named in refusal(tmp_path, "bad.csv", text)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_no_table_is_too_strange(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "strange.csv"
    path.write_bytes(TASKS.encode() + data)
    assert "\n" not in outcome(path)


@pytest.mark.parametrize("word", ["٣", "\uff11\uff12", "nan", "inf", "1e999", "0x10", "five"])
def test_what_is_no_number_in_a_table(tmp_path: Path, word: str) -> None:
    refusal(tmp_path, "a.csv", f"start_time,end_time,plan_gpu\n{word},5,100\n")
