"""Runs of every scheme on every graph under every time model, in this process, each for three rounds.

The registries are walked, so a new plug-in takes part by itself; only options without a default need an entry
here.
"""

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from decentnode.config import loader
from decentnode.config.type_check import REQUIRED, parameters_of
from decentnode.config.yaml_source import Document
from decentnode.core.registry import GRAPHS, SHARINGS
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.files import write_graph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.spectrum import SparseWeights
from decentnode.node.experiment import Experiment
from decentnode.sharing import Beer
from decentnode.sharing.base import SharingBase
from tests.support.in_process import Nodes

NODES, ROUNDS, TIMEOUT = 8, 3, 30.0
"""The timeout of one run in seconds; it takes about a twentieth of a second."""
SETTINGS = {
    "rounds": ROUNDS,
    "dataset": {"name": "quadratic", "dimension": 40, "b": "normal", "partition": "natural"},
    "model": "quadratic",
    "training": {
        "optimizer": {"name": "SGD", "lr": 0.1}, "loss": "NLLLoss", "batch_size": 1, "steps_per_round": 1,
    },
    "communication": {"name": "inproc"},
    "evaluation": {"every": 0, "final": False, "average_model": False},
    "failures": {"deadline": 10.0},
}  # fmt: skip
FEW = {"name": "natural", "ranks": [0, 3, 6]}
"""Three of the eight nodes train, which is cheap, and enough to make the models differ."""
TIME_MODELS = {
    "synchronous": {},
    "overlapped": {"communication": {"name": "inproc", "overlap": True}},
    "asynchronous": {"time_model": {"name": "asynchronous", "seconds_per_round": 0.005}},
}
"""What each changes in the settings."""
OVERLAPPED = ("ring", "exponential", "one_peer_exponential", "epidemic_local", "partial_participation")
"""Graphs that are walked overlapped, too. `eval/graphs/product.py` walks all."""
KINDS = {
    "peers": (
        "regular", "star", "fully_connected", "binary_tree", "chain", "d_cliques", "empty", "erdos_renyi",
        "file", "grid", "hypercube", "similarity", "small_world", "torus",
    ),
    "changing": (
        "epidemic_oracle", "from_files", "by_rounds", "flipper", "alternating_ring", "base_k_plus_one",
        "contact_trace", "matcha", "mobility", "one_peer_hypercube", "peer_sampler", "random_matching",
    ),
    "directed": (
        "exponential", "one_peer_exponential", "epidemic_local", "alternating_exponential_ring",
        "equi_topo", "teleport",
    ),
    "with rests": ("churn", "partial_participation", "availability_trace", "token_walk"),
    "in parts": ("mosaic", "relayed"),
    "with servers": (
        "federated", "federated with clients by turns", "hierarchical", "hierarchical with servers",
    ),
}  # fmt: skip
"""Graphs that are alike to most schemes: each is walked on one. `eval/graphs/product.py` walks all."""
MATCHES = (("levels with servers", "hierarchical with servers"),)
"""A scheme and a graph that need each other."""
OF_ALL = "ring"
"""The graph on which all schemes are walked, also under time models that they refuse on every graph."""
DEFERRED = (Beer,)
"""Schemes that move a model in a round by what arrived in the round before, with the weights of that."""
MEAN_MOVES = 2e-3
"""How far the sum of models of about 1 may move in a mix: secure aggregation rounds to 2^-16."""


def ring(folder, n):
    """A graph file."""
    path = folder / "ring.edges"
    write_graph(Ring(n), str(path))
    return str(path)


def folder_of_files(folder, n):
    """A folder with a graph for each of two rounds."""
    files = folder / "files"
    files.mkdir(exist_ok=True)
    write_graph(Ring(n), str(files / "a.edges"))
    write_graph(Regular(n, 4), str(files / "b.edges"))
    return str(files)


def contacts(folder, n):
    """A trace of contacts that connect all nodes within three rounds."""
    path = folder / "contacts"
    lines = (f"{i} {(i + 1) % n} {i % 3} {i % 3 + 1}" for i in range(n))
    path.write_text("\n".join([str(n), *lines]))
    return str(path)


def availability(folder, n):
    """A trace in which each node is awake in two of three rounds."""
    path = folder / "awake.csv"
    spans = ((rank, (rank + k) % 3) for rank in range(n) for k in (0, 1))
    path.write_text("\n".join(f"{rank},{begin},{begin + 1}" for rank, begin in spans))
    return str(path)


GRAPH_OPTIONS: dict[str, Callable[[Path, int], dict]] = {
    "alternating_exponential_ring": lambda _, n: {"nodes": n, "per_machine": n // 4},
    "availability_trace": lambda folder, n: {
        "path": ring(folder, n), "trace_path": availability(folder, n), "seconds_per_round": 1.0,
    },
    "by_rounds": lambda _, n: {
        "schedule": [
            [0, {"name": "empty", "nodes": n}],
            [1, {"name": "epidemic_oracle", "nodes": n, "degree": 3}],
            [2, {"name": "fully_connected", "nodes": n}],
        ],
    },
    "churn": lambda _, n: {
        "graph": {"name": "regular", "nodes": n, "degree": 3}, "schedule": [[1, 1, None], [2, 0, 1]],
    },
    "contact_trace": lambda folder, n: {"path": contacts(folder, n), "seconds_per_round": 1.0},
    "d_cliques": lambda _, n: {"nodes": n, "clique_size": 4},
    "epidemic_local": lambda _, n: {"nodes": n, "degree": 3},
    "epidemic_oracle": lambda _, n: {"nodes": n, "degree": 3},
    "equi_topo": lambda _, n: {"nodes": n, "shifts": 3, "one_peer": True},
    "erdos_renyi": lambda _, n: {"nodes": n, "probability": 0.5},
    "federated with clients by turns": lambda _, n: {"nodes": n, "rate": 0.5},
    "file": lambda folder, n: {"path": ring(folder, n)},
    "flipper": lambda _, n: {"nodes": n, "degree": 3},
    "from_files": lambda folder, n: {"path": folder_of_files(folder, n)},
    "grid": lambda _, n: {"rows": 2, "columns": n // 2},
    "hierarchical": lambda _, n: {"nodes": n, "nodes_per_cluster": 4, "every": 2},
    "hierarchical with servers": lambda _, n: {
        "nodes": n,
        "nodes_per_cluster": 4, "inner": "federated", "outer": "federated", "every": 2,
    },
    "hypercube": lambda _, n: {"dimension": n.bit_length() - 1},
    "matcha": lambda folder, n: {"path": ring(folder, n), "budget": 0.5},
    "mobility": lambda _, n: {"nodes": n, "radius": 0.5, "speed": 0.1},
    "mosaic": lambda _, n: {"nodes": n, "degree": 3, "fragments": 3},
    "partial_participation": lambda _, n: {"nodes": n, "degree": 2, "probability": 0.7},
    "peer_sampler": lambda _, n: {"nodes": n, "degree": 3},
    "regular": lambda _, n: {"nodes": n, "degree": 3},
    "relayed": lambda _, n: {"nodes": n, "degree": 4},
    "similarity": lambda _, n: {"nodes": n, "neighbors": 2, "of": "model", "every": 2},
    "small_world": lambda _, n: {"nodes": n, "degree": 2, "rewire": 0.2},
    "teleport": lambda _, n: {"nodes": n, "active": n // 2},
    "token_walk": lambda _, n: {"nodes": n, "degree": 3, "tokens": 3},
    "torus": lambda _, n: {"rows": 2, "columns": n // 2},
}  # fmt: skip
"""By an id that begins with the name, given a folder for files and n; `nodes` alone needs no entry."""
CLASSES = {
    "dataset": {
        "name": "synthetic", "nodes": NODES, "samples_per_node": 5, "features": 9, "classes": 4,
        "partition": "iid",
    },
    "model": "logistic_regression",
    "training": SETTINGS["training"] | {"loss": "CrossEntropyLoss"},
}  # fmt: skip
SECTIONS = {"d_cliques": CLASSES}
"""By graph, what it needs of the other sections."""
SCHEME_OPTIONS: dict[str, dict] = {
    "cesar": {"transforms": ["random_k"]},
    "levels with servers": {"inner": "fed_avg", "outer": "fed_avg"},
    "muffliato": {"noise": 0.1},
    "shatter": {"chunks": 3},
    "zip_dl": {"sigma": 0.1},
}
"""By an id that begins with the name; a scheme whose options all have defaults needs no entry."""


def graph_cases():
    """The ids of all graphs with options."""
    return sorted({*GRAPHS.classes(), *GRAPH_OPTIONS})


def places(kind):
    """Pairs of each scheme and a graph of a kind, one after the other by turns."""
    graphs = KINDS.get(kind, (kind,))
    by_turns = [(scheme, graphs[i % len(graphs)]) for i, scheme in enumerate(scheme_cases())]
    return by_turns + [(scheme, graph) for scheme, graph in MATCHES if graph in graphs]


def graph_section(case, folder, nodes=NODES):
    """The graph, as in YAML; AssertionError where it needs an entry in GRAPH_OPTIONS."""
    name, make = case.split()[0], GRAPH_OPTIONS.get(case, lambda _, n: {"nodes": n})
    options = make(folder, nodes)
    needed(GRAPHS.find(name), options, f"graph {name}: add its options for n nodes to GRAPH_OPTIONS")
    return {"name": name} | options


def scheme_cases():
    """The ids of all schemes with options."""
    return sorted({*SHARINGS.classes(), *SCHEME_OPTIONS})


def scheme_section(case):
    """The scheme, as in YAML; AssertionError where it needs an entry in SCHEME_OPTIONS."""
    name, options = case.split()[0], SCHEME_OPTIONS.get(case, {})
    needed(SHARINGS.find(name), options, f"scheme {name}: add its options to SCHEME_OPTIONS")
    return {"name": name} | options


def needed(cls, options, remedy):
    parameters = parameters_of(cls)
    missing = {key for key, (_, default) in parameters.items() if default is REQUIRED} - options.keys()
    known = options.keys() <= {*parameters, "transforms"}
    assert not missing and known, f"{remedy} (tests/support/product.py)"


def time_models(scheme, graph, all_overlapped=False):
    """The time models under which a combination is walked."""
    if graph == OF_ALL:
        return tuple(TIME_MODELS)
    cls = SHARINGS.find(scheme.split()[0])
    if cls.asynchronous:
        return ("asynchronous",)
    overlaps = cls.promises.overlaps and (all_overlapped or graph in OVERLAPPED)
    return ("synchronous", "overlapped") if overlaps else ("synchronous",)


def sections_of(scheme, graph, time_model="synchronous", nodes=NODES):
    """A combination, as in YAML."""
    sections = SECTIONS.get(graph["name"], {})
    content = copy.deepcopy(SETTINGS | {"sharing": scheme, "graph": graph} | sections)
    content["dataset"]["nodes"] = nodes
    cls = SHARINGS.find(scheme["name"])
    # A scheme that follows gradients makes steps of its own where a node has no samples.
    if (
        not sections
        and not cls.requirements.local_loss
        and cls.adjust_gradient is SharingBase.adjust_gradient
    ):
        # A server of an asynchronous scheme may have none.
        served = cls.asynchronous and cls.requirements.server
        content["dataset"] |= {"partition": FEW | {"ranks": [1, 3, 6]} if served else FEW}
    return content | copy.deepcopy(TIME_MODELS[time_model])


def dataset():
    """All samples that SETTINGS name."""
    settings = settings_of(sections_of({"name": "gossip"}, {"name": "ring", "nodes": NODES}))
    return settings.dataset.make().whole(settings.seed)


def settings_of(sections):
    """The checked settings; raises BadInput."""
    return loader.understand(Document("x.yaml", sections))


def walk(sections, folder, samples=None):
    """Runs one combination in a new `folder`, or returns why it was refused, one line each.

    AssertionError if it does not reach its end, or moves the mean that it keeps. `samples`: those of
    SETTINGS, where they are loaded.
    """
    shared = samples if sections["dataset"]["name"] == SETTINGS["dataset"]["name"] else None
    try:
        experiment = Experiment.from_settings(settings_of(sections), shared)
    except BadInput as refused:
        assert refused.lines and not any("\n" in defect for defect in refused.lines)
        return refused.lines
    team = Nodes(experiment, folder)
    moves = Moves(team.nodes)
    asyncio.run(asyncio.wait_for(to_the_end(team.nodes), TIMEOUT))
    for node in team.nodes:
        node.records.close()
        assert node.round == ROUNDS - 1, f"rank {node.rank} ended after round {node.round}"
        assert not node.exchange.missing and not node.exchange.refused, f"rank {node.rank} missed payloads"
    assert team.models.isfinite().all()
    moves.check(experiment)
    return ()


async def to_the_end(nodes):
    """Runs all nodes; the first that fails ends all."""
    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(node.run())


class Moves:
    """By how much each mix moves the sum of all models, as the nodes accept them."""

    def __init__(self, nodes):
        self.sums = {}
        for node in nodes:
            node.sharing = Watched(node.sharing, self.sums)

    def check(self, experiment):
        """AssertionError where a scheme moves the mean although it and W promise to keep it."""
        scheme = experiment.schemes.plain()
        if not scheme.preserves_mean(scheme.chain):
            return
        for round, (nodes, moved) in self.sums.items():
            graph = experiment.graph
            used = (round - 1, round) if isinstance(scheme, DEFERRED) and round else (round,)
            # With fewer senders than `least_senders` a node keeps its own model.
            fewest = min(filter(None, (len(graph.graph.sources(i, round)) for i in range(nodes))), default=0)
            promised = nodes == graph.num_nodes and fewest >= getattr(scheme, "least_senders", 0)
            promised &= all(SparseWeights(graph, setting).doubly_stochastic for setting in used)
            assert not promised or moved.abs().max() < MEAN_MOVES, f"the mean moves in round {round}"


class Watched(SimpleNamespace):
    """A scheme, and the sum over nodes of what each mix changes."""

    def __init__(self, scheme, sums):
        super().__init__(scheme=scheme, sums=sums)

    def __getattr__(self, name):
        return getattr(self.scheme, name)

    def accept(self, vector, view, mixed):
        """Adds one node's mix."""
        rests = not (view.learning_rate or view.sources or view.targets)
        if rests and not isinstance(self.scheme, DEFERRED):
            moves = f"rank {view.rank} rests in round {view.round}, and moves"
            assert torch.allclose(vector, mixed, atol=1e-5), moves
        nodes, moved = self.sums.get(view.round, (0, torch.zeros_like(vector)))
        self.sums[view.round] = (nodes + 1, moved + mixed - vector)
        self.scheme.accept(vector, view, mixed)
