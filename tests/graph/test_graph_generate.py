"""generate_graph.py: the predecessor's flags and names, and one line for each mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import generate_graph
from decentnode.graph.families import Exponential, Grid, Hypercube, Ring
from decentnode.graph.files import read_graph
from decentnode.graph.random_graphs import Regular, SmallWorld


@pytest.fixture
def target(tmp_path):
    return str(tmp_path / "out.edges")


@pytest.mark.parametrize(
    ("line", "graph"),
    [
        ("-g Regular -n 16 -d 4 -s 1", Regular(16, 4, seed=1)),
        ("--graph regular --nodes 16 --degree 4 --seed 1", Regular(16, 4, seed=1)),
        ("-g SmallWorld -n 20 -k 2 -b 0.3", SmallWorld(20, 4, 0.3)),
        ("-g SmallWorld -n 20 --kover2 2 --beta 0.3 -s 5", SmallWorld(20, 4, 0.3, seed=5)),
        ("-g Ring -n 5 -s 1", Ring(5)),
        ("-g Grid -r 2 -c 3", Grid(2, 3)),
        ("-g hypercube -e 3", Hypercube(3)),
    ],
)
@pytest.mark.parametrize("form", ["edges", "adjacency"])
def test_writes_the_graph(target, line, graph, form):
    flags = [*line.split(), "-f", target, *(["-a"] if form == "adjacency" else [])]
    assert generate_graph.main(flags) == 0
    assert read_graph(target, form) == graph.adjacency


def test_writes_directed_edges_once(target):
    assert generate_graph.main(["-g", "Exponential", "-n", "8", "-f", target]) == 0
    assert read_graph(target, directed=True) == Exponential(8).adjacency


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-g Regular -n 5 -d 3", "regular: nodes * degree must be even, got 5 * 3"),
        ("-g OnePeerExponential -n 4",
         "OnePeerExponential changes from round to round, and a file holds one graph; "
         "name it in the configuration: graph: {name: one_peer_exponential, ...}"),
        ("-g Ring -n 4 -d 3", "Ring takes no --degree (takes: nodes)"),
        ("-g SmallWorld -n 8 -d 2 -k 2 -b 0",
         "--kover2 sets degree, which another flag sets, too; leave one out"),
        ("-g Ring", "Ring needs --nodes"),
        ("-g Ring -n -2", "Ring --nodes: input should be greater than 0, got '-2'"),
        ("-g Ring -n two",
         "Ring --nodes: input should be a valid integer, unable to parse string as an integer, got 'two'"),
        ("-g Rign -n 4",
         "unknown graph 'Rign'; did you mean 'Ring'? (known: BinaryTree, Chain, Empty, ErdosRenyi, "
         "Exponential, FullyConnected, Grid, Hypercube, Regular, Ring, SmallWorld, Star, Torus)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(target, capsys, line, message):
    assert generate_graph.main([*line.split(), "-f", target]) == 2
    assert capsys.readouterr().err == f"generate_graph.py: {message}\n"
    assert not Path(target).exists()


def test_runs_as_a_script_and_names_what_is_missing():
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "generate_graph.py", "-g", "Ring", "-n", "4"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2
    assert ran.stderr == "generate_graph.py: the following arguments are required: -f/--file\n"
