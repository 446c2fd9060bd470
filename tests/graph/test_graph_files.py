"""Graph files: exact formats, round trips, and every defect word for word."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.errors import GraphError
from decentnode.graph.base import StaticGraph, neighbor_lists
from decentnode.graph.declared import notices
from decentnode.graph.families import Ring, Star
from decentnode.graph.files import GraphFile, read_graph, write_graph
from decentnode.graph.mixing import FromGraph, WeightedGraph, default_weights
from decentnode.graph.networkx_graph import from_networkx


class Listed(StaticGraph):
    def __init__(self, adjacency, directed=False):
        self._adjacency = adjacency
        self.directed = directed

    @property
    def adjacency(self):
        return self._adjacency


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a file and gives its relative name, so that messages are the same everywhere."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="g.edges"):
        (tmp_path / name).write_text(text)
        return name

    return write


def defects(path, **options):
    with pytest.raises(GraphError) as caught:
        read_graph(path, **options)
    return list(caught.value.lines)


def test_edges_are_written_in_both_directions(tmp_path):
    write_graph(Star(3), str(tmp_path / "star.edges"))
    assert (tmp_path / "star.edges").read_text() == "3\n0 1\n0 2\n1 0\n2 0\n"


def test_adjacency_is_written_one_line_a_node(tmp_path):
    write_graph(Ring(4), str(tmp_path / "ring"), "adjacency")
    assert (tmp_path / "ring").read_text() == "4\n1 3\n0 2\n1 3\n0 2\n"


def test_one_direction_is_enough_where_edges_have_none(written):
    assert read_graph(written("3\n0 1\n2 1\n")) == ((1,), (0, 2), (1,))


def test_directed_edges_point_from_sender_to_receiver(written):
    graph = GraphFile(written("3\n0 1\n1 2\n2 0\n"), directed=True)
    assert graph.targets(0, 5) == (1,)
    assert graph.sources(0, 5) == (2,)


def test_the_predecessor_adjacency_file_is_read(written):
    expected = ((1,), (0, 3, 4), (3, 5), (1, 2, 5), (1,), (2, 3))
    assert read_graph(written("6\n1\n0 3 4\n3 5\n1 2 5\n1\n2 3", "graph.adj")) == expected


def test_comments_and_blank_lines_mean_nothing_in_edges(written):
    assert read_graph(written("# two nodes\n\n 2 # n\n\n0 1 # the edge\n\n")) == ((1,), (0,))


def test_a_blank_line_in_adjacency_is_a_lonely_node_but_a_comment_is_not(written):
    name = written("\n3\n# node 0\n1\n0\n# node 2 has none\n\n\n\n", "g.adj")
    assert read_graph(name, allow_disconnected=True) == ((1,), (0,), ())


def test_one_node_alone_is_a_graph(written):
    assert read_graph(written("1\n")) == ((),)


@st.composite
def adjacencies(draw, directed):
    nodes = draw(st.integers(1, 9))
    rank = st.integers(0, nodes - 1)
    return neighbor_lists(nodes, draw(st.lists(st.tuples(rank, rank), max_size=20)), directed)


@pytest.mark.parametrize("type", ["edges", "adjacency"])
@pytest.mark.parametrize("directed", [False, True])
def test_what_is_written_is_read_back(tmp_path, type, directed):
    @given(adjacencies(directed))
    def round_trip(adjacency):
        path = str(tmp_path / "any")
        write_graph(Listed(adjacency, directed), path, type)
        assert read_graph(path, type, directed, allow_disconnected=True) == adjacency

    round_trip()


def test_auto_reads_the_content_where_the_suffix_is_unknown(written):
    assert read_graph(written("3\n0 1\n1 2\n", "a.txt")) == ((1,), (0, 2), (1,))
    assert read_graph(written("3\n1\n0 2\n1\n", "b.txt")) == ((1,), (0, 2), (1,))


def test_a_directed_graph_must_lead_everywhere_and_back(written):
    name = written("3\n0 1\n1 2\n2 1\n")
    assert defects(name, directed=True) == [
        "g.edges:1: the graph falls into 2 components, nodes 0 and 1 do not reach each other; "
        "add edges or set allow_disconnected"
    ]


@settings(max_examples=30)
@given(st.text(alphabet="0123 -x#,\n", max_size=60), st.sampled_from(["edges", "adjacency", "auto"]))
def test_any_text_gives_a_graph_or_a_graph_error(tmp_path_factory, text, type):
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_text(text)
    try:
        adjacency = read_graph(str(path), type)
    except GraphError as error:
        assert all(defect.startswith(str(path)) for defect in error.lines)
    else:
        assert all(i in adjacency[j] for i, targets in enumerate(adjacency) for j in targets)


NAMED = nx.Graph([("d", "b"), ("b", "a"), ("a", "c"), ("c", "d")])
WRITERS = {
    "gml": nx.write_gml, "graphml": nx.write_graphml, "edgelist": nx.write_edgelist,
    "adjlist": nx.write_adjlist,
}  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
def test_files_of_networkx_are_graphs_whose_nodes_get_ranks_in_a_said_order(tmp_path, suffix):
    path = str(tmp_path / f"g.{suffix}")
    WRITERS[suffix](nx.cycle_graph(5), path)
    graph = GraphFile(path)
    assert graph.adjacency == Ring(5).adjacency and graph.lists.notice == "" and not graph.has_weights
    WRITERS[suffix](nx.relabel_nodes(nx.cycle_graph(5), {0: 10, 1: 9, 2: 30, 3: 7, 4: 8}), path)
    # Ascending: 7 8 9 10 30, of which 10-9, 9-30, 30-7, 7-8 and 8-10 are edges.
    assert GraphFile(path).adjacency == ((1, 4), (0, 3), (3, 4), (1, 2), (0, 2))
    WRITERS[suffix](NAMED, path)
    graph = GraphFile(path)
    # Lists name a node first with its first neighbor.
    names, adjacency = "d, b, a, c", Ring(4).adjacency
    if suffix.endswith("list"):
        names, adjacency = "d, b, c, a", ((1, 2), (0, 3), (0, 3), (1, 2))
    assert graph.adjacency == adjacency
    assert notices(graph) == [f"graph: the nodes {names} are the ranks 0 to 3"]
    one_way = nx.DiGraph([("d", "b"), ("b", "a"), ("a", "d")])
    WRITERS[suffix](one_way, path)
    assert GraphFile(path, directed=True).adjacency == ((1,), (2,), (0,))
    if suffix in ("gml", "graphml"):
        with pytest.raises(GraphError, match=r"its edges have a direction; set directed$"):
            len(GraphFile(path).adjacency)
    (tmp_path / f"g.{suffix}").write_text("" if suffix.endswith("list") else "{1 [")
    with pytest.raises(GraphError, match=f"g.{suffix}: ") as raised:
        len(GraphFile(path).adjacency)
    assert len(raised.value.lines) == 1


@pytest.mark.parametrize("suffix", ["gml", "graphml", "edgelist"])
def test_edge_weights_of_networkx_are_those_of_mixing_or_refused(tmp_path, suffix):
    path = str(tmp_path / f"w.{suffix}")
    weighted = nx.Graph()
    weighted.add_weighted_edges_from([(0, 1, 0.25), (1, 2, 0.5), (2, 0, 0.125)])
    WRITERS[suffix](weighted, path)
    with pytest.raises(GraphError, match=r"have weights; say that mixing uses them \(edge_weights: mixing\)"):
        len(GraphFile(path).adjacency)
    graph = GraphFile(path, edge_weights="mixing")
    wanted = [[0.625, 0.25, 0.125], [0.25, 0.25, 0.5], [0.125, 0.5, 0.375]]
    assert default_weights(graph) == "from_graph"
    assert WeightedGraph(graph, FromGraph()).matrix().tolist() == wanted
    one_way = nx.DiGraph()
    one_way.add_weighted_edges_from([(0, 1, 0.5), (1, 2, 0.25), (2, 0, 1.0)])
    WRITERS[suffix](one_way, path)
    matrix = WeightedGraph(GraphFile(path, directed=True, edge_weights="mixing"), FromGraph()).matrix()
    assert matrix.tolist() == [[0, 0, 1], [0.5, 0.5, 0], [0, 0.25, 0.75]]
    weighted.edges[0, 1]["weight"] = 0.75
    WRITERS[suffix](weighted, path)
    with pytest.raises(GraphError, match=r"the weights that node 1 gives to others sum to 1\.25; at most 1"):
        len(GraphFile(path, edge_weights="mixing").adjacency)
    del weighted.edges[0, 1]["weight"]
    with pytest.raises(
        GraphError, match=r"^the edge 1 0 has no weight; for mixing it is a number from 0 to 1"
    ):
        from_networkx(weighted, "mixing")
    (tmp_path / "g.edges").write_text("2\n0 1\n")
    with pytest.raises(GraphError, match="has no weights; leave edge_weights out"):
        len(GraphFile(str(tmp_path / "g.edges"), edge_weights="mixing").adjacency)
