"""Graph analytics: right answers, whatever stops them; and graphs from files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from bench.papers.gpreempt import graphs
from bench.papers.gpreempt.analytics import ALGORITHMS, ONE, Blocks, PageRank, Plain
from runlist import blocks
from runlist.blocks.host import Host
from runlist.errors import RunlistError, UsageError
from tests.fixtures import blocks_stopper
from tests.fixtures.effort import TIMES

STOPS = 2_500 if TIMES == 1 else 10_000

GRAPHS = {
    "drawn": graphs.rmat(9, 4, seed=5),
    "a path and two alone": graphs.Graph(np.array([0, 1, 2, 3, 3, 3, 3], np.int32), np.array([1, 2, 3], np.int32)),
    "no edges": graphs.Graph(np.zeros(4, np.int32), np.zeros(0, np.int32)),
}


def networkx(graph: graphs.Graph, weights: Any = None) -> nx.DiGraph:
    made = nx.DiGraph()
    made.add_nodes_from(range(graph.vertices))
    lengths = [1] * graph.edges if weights is None else weights.tolist()
    made.add_weighted_edges_from(zip(graph.sources.tolist(), graph.targets.tolist(), lengths, strict=True))
    return made


def answer(name: str, graph: graphs.Graph, way: Plain | Blocks, request: int) -> Any:
    work = ALGORITHMS[name](graph, way)
    work.begin(request)
    work.run()
    found = work.answer()
    assert work.right(request, found)
    return work, found


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("make", [Plain, Blocks])
def test_answers_are_those_of_networkx(host: Host, graph: graphs.Graph, make: type[Plain | Blocks]) -> None:
    way, everybody = make(host), range(graph.vertices)
    for request in (1, 2):
        work, levels = answer("bfs", graph, way, request)
        steps = nx.single_source_shortest_path_length(networkx(graph), work.source(request))
        assert levels.tolist() == [steps.get(each, -1) for each in everybody]
        work, distances = answer("sssp", graph, way, request)
        ways = nx.single_source_dijkstra_path_length(networkx(graph, work.lengths), work.source(request))
        assert distances.tolist() == [ways.get(each, 0xFFFFFFFF) for each in everybody]
    _, labels = answer("cc", graph.both_ways(), way, 0)
    smallest = {each: min(one) for one in nx.weakly_connected_components(networkx(graph)) for each in one}
    assert labels.tolist() == [smallest[each] for each in everybody]
    _, labels = answer("cc", graph, way, 0)  # an edge of one direction connects as well
    assert labels.tolist() == [smallest[each] for each in everybody]


def test_ranks_are_what_solves_the_equations(host: Host) -> None:
    """After enough iterations, the solution of r = 0.15 / n + 0.85 (A r + what vertices without edges hold / n)."""
    graph = GRAPHS["drawn"]

    class Long(PageRank):
        iterations = 160

    work = Long(graph, Plain(host))
    work.begin(3)
    work.run()
    count = graph.vertices
    degree = np.diff(graph.offsets)
    matrix = np.zeros((count, count))
    matrix[graph.targets, graph.sources] = 1 / degree[graph.sources]
    matrix[:, degree == 0] = 1 / count
    expected = np.linalg.solve(np.eye(count) - 0.85 * matrix, np.full(count, 0.15 / count))
    assert np.abs(work.answer() / ONE - expected).max() < 1e-9
    assert abs(int(work.answer().sum()) / ONE - 1) < 1e-8
    assert not work.right(3, work.answer() + np.uint64(1))


def test_what_is_no_answer_is_told_from_one(host: Host) -> None:
    graph = GRAPHS["drawn"]
    for name in ALGORITHMS:
        work, right = answer(name, graph, Plain(host), 1)
        for at, by in ((right.argmax(), -1), (right.argmin(), 1), (7, 1), (100, 3)):
            wrong = right.copy()
            wrong[at] = (int(wrong[at]) + by) % (1 << 31)
            assert not work.right(1, wrong)


def test_random_stops_leave_pagerank_bit_exact(host: Host) -> None:
    """Its kernels add in place, so that a block that ran twice, or not at all, is seen in the sums; a thread of this
    process stops them at random moments, with two to five physical blocks racing for the logical ones.
    """
    graph = graphs.rmat(11, 6, seed=9)
    way = Blocks(host)
    work = PageRank(graph, way)
    chance = random.Random(11)
    executor, stops, cut, rounds = way.executor, 0, 0, 0
    while stops < STOPS or cut < STOPS // 50:  # of them, in the middle of a kernel
        rounds += 1
        work.begin(rounds)
        way.add(work.launches(), graph.vertices)
        executor._ahead = chance.randint(1, 3)
        executor.start()
        left = True
        while left and stops < STOPS:
            moment = time.perf_counter() + chance.expovariate(1 / 60e-6)
            while time.perf_counter() < moment:
                pass
            left = executor.stop(60)
            stops += 1
            cut += executor.save().next > 0
            executor.resume(physical=chance.randint(2, 5))
        assert executor.wait(60)
        assert work.right(rounds, work.answer())
    executor.close()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_another_process_stops_them_and_answers_stay(host: Host, page_path: Path, name: str) -> None:
    graph = graphs.rmat(12, 8, seed=2).both_ways()
    work = ALGORITHMS[name](graph, Blocks(host, page_path, anew=ALGORITHMS[name].idempotent))
    stopper = subprocess.Popen([sys.executable, blocks_stopper.__file__, str(page_path), "4"], stdout=subprocess.PIPE)
    try:
        assert stopper.stdout is not None
        assert stopper.stdout.readline() == b"stopping\n"
        for request in range(4):
            work.begin(request)
            work.run()
            assert work.right(request, work.answer())
    finally:
        stopper.kill()
        stopper.wait()
    assert isinstance(work.way, Blocks)
    work.way.executor.close()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_program_answers_requests_in_lines_stopped_or_not(page_path: Path, built: Path, name: str) -> None:
    words = [sys.executable, "-m", "bench.papers.gpreempt.programs.graph", "--device", "host", "--algorithm", name]
    requests = "".join(json.dumps({"id": each, "due": None}) + "\n" for each in (1, 2, 1))
    found = []
    for more in ([], ["--blocks", str(page_path)]):
        with blocks.Stopper(page_path) as stopper:
            stopper.stop()
            process = subprocess.Popen(
                [*words, "--scale", "9", "--built", str(built), *more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            if more:  # warming up it waits for us
                page = blocks.Page(page_path)
                while not page.told():
                    time.sleep(0.01)
                page.close()
            stopper.resume()
            output, _ = process.communicate(requests, timeout=60)
        assert process.returncode == 0
        ready, *answers, end = map(json.loads, output.splitlines())
        assert ready["ready"]["vertices"] == 512
        assert ("reset" in ready["ready"]["ways"]) == ALGORITHMS[name].idempotent
        assert [each["id"] for each in answers] == [1, 2, 1]
        assert answers[0]["check"] == answers[2]["check"]
        assert (answers[0]["check"] != answers[1]["check"]) == (name != "cc")
        assert end == {"end": {"correct": True}}
        found.append([each["check"] for each in answers])
    assert found[0] == found[1]


HEAD = "%%MatrixMarket matrix coordinate pattern general\n% a comment\n"


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        (HEAD + "3 3 3\n1 2\n2 3\n\n3 1\n", {(0, 1), (1, 2), (2, 0)}),
        (HEAD + "3 3 3\n1 2\n1 2\n2 2\n", {(0, 1)}),  # twice the same, and one to itself
        (HEAD.replace("pattern general", "real symmetric") + "3 3 2\n2 1 0.5\n3 3 1e3\n", {(0, 1), (1, 0)}),
        (HEAD.replace("pattern", "integer").upper() + "2 2 0\n", set()),
        (HEAD.replace("pattern general", "complex hermitian") + "2 2 1\n2 1 0.5 1\n", {(0, 1), (1, 0)}),
    ],
)  # fmt: skip
def test_matrix_market_files_are_read(tmp_path: Path, text: str, edges: set[tuple[int, int]]) -> None:
    path = tmp_path / "a.mtx"
    path.write_text(text)
    graph = graphs.read(path)
    assert set(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)) == edges


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no Matrix Market file"),
        ("%%MatrixMarket matrix array real general\n", "line 1: array is not read"),
        ("%%MatrixMarket matrix coordinate quaternion general\n", "line 1: quaternion is none of real"),
        ("%%MatrixMarket matrix coordinate real lopsided\n", "line 1: lopsided is none of general"),
        (HEAD, "line 3: the file ends before its sizes"),
        (HEAD + "3 3\n", "line 3: no three sizes"),
        (HEAD + "3 4 1\n1 2\n", "line 3: 3 rows and 4 columns are no graph"),
        (HEAD + "0 0 0\n", "line 3: sizes below 1"),
        (HEAD + "3 3 99999999999999\n1 2\n", "line 3: sizes below 1, or above"),
        (HEAD + "3 3 1000000\n1 2\n", "ends after fewer than 1000000 entries"),
        (HEAD + "3 3 2\n1 2\n", "line 4: the file ends after 1 of 2 entries"),
        (HEAD + "3 3 1\n1 2\n2 3\n", "line 5: more than the 1 entries that it has by line 3"),
        (HEAD + "3 3 1\n\n% x\n1 4\n", "line 6: row 1, column 4 is not within 1 to 3"),
        (HEAD + "3 3 1\n0 1\n", "line 4: row 0, column 1 is not within"),
        (HEAD + "3 3 1\n1 2 0.5\n", "line 4: 3 numbers, not 2"),
        (HEAD + "3 3 1\n1 two\n", "line 4: no numbers"),
        (HEAD.replace("pattern", "real") + "3 3 1\n1 2 x\n", "line 4: no numbers"),
    ],
)  # fmt: skip
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.mtx"
    path.write_text(text)
    with pytest.raises(RunlistError) as told:
        graphs.read(path)
    assert str(told.value).startswith(f"{path}, ")
    assert said in str(told.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunlistError, match="No such file"):
        graphs.read(tmp_path / "none.mtx")


def test_a_drawn_graph_is_the_same_for_a_seed_and_skewed() -> None:
    one, same, other = (graphs.rmat(10, 8, seed) for seed in (1, 1, 2))
    assert (one.targets == same.targets).all()
    assert one.edges != other.edges or (one.targets != other.targets).any()
    degrees = np.sort(np.diff(one.offsets))[::-1]
    assert 0.5 * 8 * 1024 < one.edges <= 8 * 1024
    assert degrees[:102].sum() > one.edges / 3  # a tenth of the vertices
    assert one.both_ways().edges <= 2 * one.edges
    for wrong in ((0, 4), (27, 1), (4, 0), (4, 257), (26, 200)):
        with pytest.raises(UsageError, match="R-MAT"):
            graphs.rmat(*wrong, seed=1)
