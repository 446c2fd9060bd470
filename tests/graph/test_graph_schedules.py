"""Graphs by files: one per round in turn, and the contacts of a trace.

`tests/corpus` has the messages about traces that are wrong.
"""

import pytest

from decentnode.errors import GraphError
from decentnode.graph.schedules import AvailabilityTrace, ContactTrace, FromFiles

FIRST, SECOND = "4\n0 1\n2 3\n", "4\n1 2\n"


def adjacency(graph, round):
    return [graph.targets(rank, round) for rank in range(graph.num_nodes)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "a.edges").write_text(FIRST)
    (tmp_path / "graphs" / "b.edges").write_text(SECOND)
    return tmp_path


PAIRS, MIDDLE = [(1,), (0,), (3,), (2,)], [(), (2,), (1,), ()]


def test_the_files_of_a_folder_hold_for_a_round_each(folder):
    graph = FromFiles(str(folder / "graphs"))
    assert (graph.num_nodes, graph.period, graph.static) == (4, 2, False)
    assert [adjacency(graph, round) for round in range(4)] == [PAIRS, MIDDLE, PAIRS, MIDDLE]


def test_a_schedule_declares_the_number_of_rounds(folder):
    (folder / "plan").write_text("# by day and by night\ngraphs/a.edges 3\n\ngraphs/b.edges 2\n")
    graph = FromFiles(str(folder / "plan"))
    assert [adjacency(graph, round) for round in range(6)] == [PAIRS] * 3 + [MIDDLE] * 2 + [PAIRS]


def test_directed_files_have_sources(folder):
    graph = FromFiles(str(folder / "graphs"), directed=True, allow_disconnected=True)
    assert graph.targets(0, 0) == (1,) and graph.sources(0, 0) == () and graph.sources(1, 0) == (0,)


def test_contacts_of_a_trace_are_edges_of_the_rounds_that_they_touch(tmp_path):
    path = tmp_path / "trace"
    path.write_text("4\n0 1 0 10\n1 2 10 25  # touches rounds 1 and 2\n2 3 29.5 29.5\n")
    graph = ContactTrace(str(path), seconds_per_round=10)
    edges = [
        {(i, j) for i, targets in enumerate(adjacency(graph, round)) for j in targets if i < j}
        for round in range(4)
    ]
    assert graph.period == 3
    assert edges == [{(0, 1)}, {(1, 2)}, {(1, 2), (2, 3)}, {(0, 1)}]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "run: the folder is empty; it holds one graph file for each round"),
        ({"a": FIRST}, "run: over all rounds "),
        ({"a.edges": FIRST, "b.edges": "3\n0 1\n"}, "b.edges: 3 nodes, but"),
    ],
)
def test_what_is_wrong_with_a_folder_is_reported_in_a_line(tmp_path, files, why):
    (tmp_path / "run").mkdir()
    for name, content in files.items():
        (tmp_path / "run" / name).write_text(content)
    with pytest.raises(GraphError) as refused:
        _ = FromFiles(str(tmp_path / "run"), type="edges").num_nodes
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_schedule_with_a_bad_line_names_it(folder):
    (folder / "plan").write_text("graphs/a.edges\ngraphs/b.edges 0\n")
    with pytest.raises(GraphError) as refused:
        _ = FromFiles(str(folder / "plan")).num_nodes
    assert len(refused.value.lines) == 2


def test_nodes_of_a_trace_are_awake_when_a_round_begins_in_their_time(folder):
    (folder / "ring.edges").write_text("4\n0 1\n1 2\n2 3\n0 3\n")
    (folder / "trace.csv").write_text("# rank,begin,end\n0,0,30\n1,0,10\n1,20,30\n2,5,30\n3,29,29.5\n3,0,1\n")
    graph = AvailabilityTrace(str(folder / "ring.edges"), str(folder / "trace.csv"), 10.0)
    awake = [[rank for rank in range(4) if graph.trains(rank, round)] for round in range(4)]
    assert awake == [[0, 1, 3], [0, 2], [0, 1, 2], [0, 1, 3]]
    assert adjacency(graph, 0) == [(1, 3), (0,), (), (0,)]
    assert adjacency(graph, 1) == [(), (), (), ()]
    assert adjacency(graph, 2) == [(1,), (0, 2), (1,), ()]
