"""The dry round: right for all that is shipped, and without a trace in the process that asks for it."""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.graph.mixing import MetropolisHastings, WeightedGraph
from decentnode.graph.random_graphs import Regular
from decentnode.node import child_answers, dry_round
from decentnode.node.experiment import Experiment
from decentnode.sharing import Gossip
from decentnode.testing import Lockstep
from decentnode.testing.problems import random_models
from decentnode.transforms import GaussianNoise, RandomK
from tests.support.pages import blocks

CONFIGS = Path(__file__).parents[2] / "configs"
CONFIG = """
rounds: 2
graph: {name: ring, nodes: 4}
dataset: digits
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}
sharing: SHARING
"""


@dataclass
class Traced(Gossip):
    """Draws from every global generator, and counts."""

    mixes: ClassVar[list[int]] = []

    def mix(self, vector, incoming, view, out):
        super().mix(vector, incoming, view, out)
        self.mixes.append(view.round)
        torch.rand(3), np.random.rand(3), random.random()


@dataclass
class Ends(Gossip):
    def mix(self, vector, incoming, view, out):
        os._exit(3)


@dataclass
class Hangs(Gossip):
    def mix(self, vector, incoming, view, out):
        time.sleep(60)


def experiment(folder, sharing, *overrides):
    path = folder / "x.yaml"
    path.write_text(CONFIG.replace("SHARING", sharing))
    return Experiment.from_yaml(path, overrides)


def own(cls):
    return f"'{cls.__module__}:{cls.__name__}'"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_nothing_is_wrong_with_what_is_shipped(path):
    overrides = ["mapping={machines: [{address: 127.0.0.1, nodes: 8}]}"] if path.stem == "torchrun" else []
    shipped = Experiment.from_yaml(path, overrides)
    assert list(dry_round.defects(shipped)) == []
    assert not shipped.settings.has_foreign_plugins


def test_it_changes_nothing_in_the_process_that_asks(tmp_path):
    asked = experiment(tmp_path, own(Traced))
    assert asked.settings.has_foreign_plugins

    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before, weights = states(), [p.clone() for p in asked.network.parameters()]
    dry_round.check(asked)
    assert states() == before and Traced.mixes == []
    assert all(map(torch.equal, weights, asked.network.parameters()))
    assert list(dry_round.defects(asked)) == [] and Traced.mixes == [0, 0, 0]


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        (Ends, "did not end: its process ended with exit code 3"),
        (
            Hangs,
            "a dry round of one batch did not end within 0.5 s; take a smaller model, or give it more time",
        ),
    ],
)
def test_a_plugin_that_ends_or_hangs_is_no_end_of_the_command(tmp_path, scheme, words, monkeypatch):
    monkeypatch.setattr(child_answers, "_waited", lambda pid: 0.0)
    with pytest.raises(BadInput, match=words):
        dry_round.check(experiment(tmp_path, own(scheme), "failures.start_deadline=0.5"))


@dataclass
class Bare(Gossip):
    """Sends what is no payload."""

    def outgoing(self, vector, view):
        return vector


def test_what_is_no_payload_is_told(tmp_path):
    line = r"sharing: Bare.outgoing returns Tensor; it must return a payload for each target, for instance"
    with pytest.raises(BadInput, match=line):
        dry_round.check(experiment(tmp_path, own(Bare)))


@dataclass
class OneForAll(Gossip):
    """Encodes once, whatever the chain needs."""

    def outgoing(self, vector, view):
        payload = self.chain.encode(vector, view.context(view.rank))
        return dict.fromkeys(view.targets, payload)


NOISE = "sharing.transforms=[{name: gaussian_noise, sigma: 0.1, scope: SCOPE}]"


def test_a_scheme_that_gives_no_receiver_to_a_transform_that_needs_one_is_refused(tmp_path):
    shared, each = NOISE.replace("SCOPE", "shared"), NOISE.replace("SCOPE", "neighbor")
    assert list(dry_round.defects(experiment(tmp_path, own(OneForAll), shared))) == []
    assert list(dry_round.defects(experiment(tmp_path, own(OneForAll), each))) == [
        "sharing: one payload is encoded for all neighbors, but gaussian_noise sends each another one; "
        "return self.encode(vector, view) in outgoing, or encode for each with it as the receiver"
    ]


def test_the_scheme_of_the_readme_is_right_for_every_chain(tmp_path, monkeypatch):
    (tmp_path / "readme_scheme.py").write_text(blocks("README.md", "python")[-1])
    monkeypatch.syspath_prepend(tmp_path)
    noise = NOISE.replace("SCOPE", "neighbor")
    tried = experiment(tmp_path, "'readme_scheme:Cautious'", noise)
    assert list(dry_round.defects(tried)) == []
    cautious = type(tried.schemes.plain())
    models, graph = random_models(4, 50), Ring(4)
    network = Lockstep(cautious, graph, models, lambda: (GaussianNoise(0.1, scope="neighbor"),))
    network.mix()
    assert len({bytes(payload.buffer.numpy()) for payload in network.payloads}) == 8, "two neighbors each"
    # Where nothing was sent, nothing moves: a tenth of all values, not a step towards 0.
    network = Lockstep(cautious, graph, models, lambda: (RandomK(0.1, shared_mask=True),))
    assert (network.mix() != models).any(0).sum() == 5


def test_a_few_neighbors_have_weights_of_their_own():
    graph = WeightedGraph(Regular(12, 4, seed=3), MetropolisHastings())
    ranks = dry_round.members_of(graph)
    views = [dry_round.within(graph.view(rank, 0), ranks) for rank in ranks]
    assert len(ranks) == 3 and 0 in ranks
    for view in views:
        assert {*view.targets, *view.sources, *view.weights} <= set(ranks)
        assert sum(view.weights.values()) == pytest.approx(1) == sum(view.outgoing_weights.values())
