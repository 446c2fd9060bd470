"""Messages about wrong configurations that need code of a user; tests/corpus has all others."""

import sys
from pathlib import Path

import pytest

from decentnode.config import loader as config
from decentnode.errors import ConfigError
from tests.corpus.case import BASE

RING = "4\n0 1\n1 2\n2 3\n3 0\n"
OUTSIDE = '''\
"""Code of a user."""

from dataclasses import dataclass
from decentnode.errors import Defect, GraphError
from decentnode.graph import StaticGraph
from decentnode.sharing.base import Requirements, Sharing
from decentnode.sharing.gossip import Gossip


@dataclass
class Picky(StaticGraph):
    nodes: int = 4

    @property
    def adjacency(self):
        raise GraphError("one thing", Defect(("nodes",), "another thing"))


@dataclass
class Unfinished(Sharing):
    pass


@dataclass
class Still(Gossip):
    requirements = Requirements(static_graph=True)


@dataclass
class Moving(StaticGraph):
    static = False

    @property
    def adjacency(self):
        return ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2))
'''
# (what in BASE, is replaced by what, the lines of the error without "x.yaml:")
CASES: dict[str, tuple[str, str, list[str]]] = {
    "class that is not there": (
        "{name: mlp, hidden: [8]}",
        "outside:Net",
        ["9 model: module 'outside' has no class 'Net'"],
    ),
    "class of another kind": (
        "name: gossip",
        "name: 'outside:Picky'",
        [
            "14 sharing.name: 'outside:Picky' is no sharing; "
            "it must be a subclass of decentnode.sharing.base.Sharing or "
            "decentnode.sharing.asynchronous.base.AsyncSharing"
        ],
    ),
    "class without its methods": (
        "name: gossip",
        "name: 'outside:Unfinished'",
        [
            "14 sharing: Unfinished: Can't instantiate abstract class Unfinished "
            "with abstract methods mix, outgoing"
        ],
    ),
    "lines of its own": (
        "{name: file, path: ring.edges}",
        "{name: 'outside:Picky', nodes: 4}",
        ["4 graph: one thing", "4 graph.nodes: another thing"],
    ),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a graph, a graph file with defects, and code of a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("ring.edges").write_text(RING)
    Path("outside.py").write_text(OUTSIDE)
    yield tmp_path
    sys.modules.pop("outside", None)


def defects_of(text: str | bytes, *overrides: str) -> tuple[str, ...]:
    Path("x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        config.load("x.yaml", overrides)
    return error.value.lines


def test_base_is_right() -> None:
    Path("x.yaml").write_text(BASE)
    assert config.load("x.yaml").rounds == 3


@pytest.mark.parametrize("name", CASES)
def test_message(name, here) -> None:
    old, new, expected = CASES[name]
    assert old in BASE
    wanted = ["x.yaml:" + line.format(here=here) for line in expected]
    assert list(defects_of(BASE.replace(old, new, 1))) == wanted


TWO_MACHINES = "mapping.machines=[{address: 127.0.0.1, nodes: 3}, {address: 10.0.0.2, nodes: 1}]"


def test_all_nodes_in_one_process_on_two_machines() -> None:
    assert defects_of(BASE, TWO_MACHINES, "communication=inproc") == (
        "command line: communication: carries all nodes in one process, but there are 2 machines; use zeromq",
    )


def test_list_for_machines_or_ranks() -> None:
    assert defects_of(BASE, TWO_MACHINES, "training.steps_per_round=[1, 2, 3]") == (
        "command line: training.steps_per_round: must be one number, or one for each of the "
        "4 ranks or 2 machines, not a list of 3",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("base_port: 65534", "the ports 65534..65536 are needed, the last that exists is 65535"),
        ("base_port: 29498", "the ports 29498..29500 are needed, but 29500 is mapping.rendezvous_port"),
    ],
)
def test_ports(options, message) -> None:
    text = BASE.replace("zeromq", f"{{{options}}}")
    assert defects_of(text, TWO_MACHINES) == (f"x.yaml:15 communication.base_port: {message}",)
    # One process with all nodes of a machine needs one port; without other machines none is opened.
    Path("x.yaml").write_text(text)
    assert config.load("x.yaml", [TWO_MACHINES, "communication.nodes_per_process=3", "rounds=1"])
    assert config.load("x.yaml").communication.name == "zeromq"


def test_scheme_that_needs_a_static_graph() -> None:
    text = BASE.replace("{name: file, path: ring.edges}", "outside:Moving").replace(
        "gossip", "'outside:Still'"
    )
    assert defects_of(text) == (
        "x.yaml:14 sharing: Still needs a graph that is the same in every round; this one is not",
    )


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"^nowhere\.yaml: cannot be read: No such file or directory$"):
        config.load("nowhere.yaml")


def test_a_missing_file_names_the_one_beside_it(tmp_path) -> None:
    (tmp_path / "quickstart.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigError, match=r"No such file or directory; did you mean 'quickstart\.yaml'\?$"):
        config.load(tmp_path / "quickstart.yml")


def test_an_override_is_not_taken_for_the_file() -> None:
    with pytest.raises(ConfigError, match=r"; the configuration comes first, then what it changes$"):
        config.load("rounds=5")
