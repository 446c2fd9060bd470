"""Every configuration that ships trains: two rounds of all its nodes in this process."""

from functools import partial
from pathlib import Path

import pytest
import torch

from decentnode.core.registry import SHARINGS
from decentnode.node.experiment import Experiment
from tests.support.in_process import Nodes

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
QUICKSTART = next(path for path in CONFIGS if path.stem == "quickstart")
QUICK = ["communication=inproc", "evaluation.every=0"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_configuration_trains(path, tmp_path):
    experiment = Experiment.from_yaml(path, QUICK)
    nodes = Nodes(experiment, tmp_path / "nodes").begin()
    before = nodes.models
    after = nodes.run(0, 2).models
    assert after.isfinite().all()
    graph, parts = experiment.graph.graph, experiment.samples.parts
    trains = [
        rank
        for rank in range(len(parts))
        if len(parts[rank]) and any(map(partial(graph.trains, rank), (0, 1)))
    ]
    assert all(not torch.equal(before[rank], after[rank]) for rank in trains)
    assert all(not node.exchange.missing for node in nodes.nodes)


def test_every_family_of_schemes_has_a_configuration():
    """One for each family; the others of a family differ by the scheme's name alone."""
    shown = {Experiment.from_yaml(path, QUICK).settings.sharing.name for path in CONFIGS}
    relatives = {"all_reduce", "none", "d2", "decent_lam", "deep_squeeze", "moniqua"}
    relatives |= {"fed_adam", "fed_prox", "fed_stc", "fed_yogi", "parameter_server", "scaffold"}
    relatives |= {"balance", "choco_per_edge", "clipped_gossip", "geometric_median", "krum", "median"}
    relatives |= {"beer_per_edge", "consensus_control", "multi_gossip", "rfa", "ubar"}
    relatives |= {"divshare", "epidemic_push", "push_gossip", "swift"}
    assert shown | relatives == set(SHARINGS.classes())


def trained(tmp_path, *overrides, rounds=2):
    """The quickstart's nodes after some rounds, and the length of their vector."""
    experiment = Experiment.from_yaml(QUICKSTART, [*QUICK, *overrides])
    return Nodes(experiment, tmp_path / str(len(list(tmp_path.iterdir())))).begin().run(0, rounds), experiment


def test_another_seed_gives_other_models_and_the_same_one_the_same(tmp_path):
    first, second, again = (trained(tmp_path, f"seed={seed}", rounds=1)[0].models for seed in (1, 2, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


@pytest.mark.parametrize("sharing", ["none", "all_reduce"])
def test_baselines(tmp_path, sharing):
    graph = "graph={name: fully_connected, nodes: 6}"
    nodes, _ = trained(tmp_path, graph, f"sharing={sharing}", rounds=3)
    apart = (nodes.models - nodes.models.mean(0)).norm() / nodes.models.mean(0).norm()
    assert apart < 1e-6 if sharing == "all_reduce" else apart > 0.05
    assert (nodes.bytes_sent == 0) == (sharing == "none")


@pytest.mark.parametrize(("transforms", "size"), [("[]", 4), ("[{name: cast, dtype: fp16}]", 2)])
def test_half_precision_halves_the_bytes(tmp_path, transforms, size):
    nodes, experiment = trained(tmp_path, f"sharing.transforms={transforms}")
    assert nodes.bytes_sent == 16 * 4 * 2 * (size * experiment.layout.numel + 64)
