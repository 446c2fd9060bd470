"""Passive attacks: their measures against closed forms, and that each one is alive."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from decentnode.attacks import PassiveAttack
from decentnode.attacks.attackers import attacked, passive, scene_of
from decentnode.attacks.passive.attacker import Attacker
from decentnode.attacks.passive.audit import CanaryAudit
from decentnode.attacks.passive.inversion import DeepLeakage, InvertingGradients, trained_on
from decentnode.attacks.passive.labels import AttributeInference, LabelDistribution, histogram
from decentnode.attacks.passive.linkability import ChunkArrival, Linkability, chunk_linkability
from decentnode.attacks.passive.measures import (
    auc,
    audit_p_value,
    audited_epsilon,
    psnr,
    ssim,
    tpr_at,
)  # fmt: skip
from decentnode.attacks.passive.membership import CalibratedLoss, Lira, LossThreshold, logit
from decentnode.attacks.passive.sight import Sight
from decentnode.core.registry import ATTACKS
from decentnode.errors import BadInput
from decentnode.formats.transcript import Transcript, cut_back
from decentnode.graph.families import FullyConnected, Ring
from decentnode.node.experiment import Experiment
from decentnode.results.attack_results import best, read_results, write_results
from decentnode.sharing import FedAvg, Gossip, SecureAggregation
from tests.node.test_configs import QUICKSTART
from tests.support.in_process import Nodes

SMALL = [
    "communication=inproc", "graph={name: ring, nodes: 4}", "dataset={name: digits, partition: iid}",
    "dataset.train_size=120", "training.optimizer.momentum=0", "evaluation.every=0",
]  # fmt: skip


def normal_cdf(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def test_curves_of_membership_have_their_closed_forms():
    rng = np.random.default_rng(1)
    apart = 1.5
    members, others = rng.normal(apart, 1, 200_000), rng.normal(0, 1, 200_000)
    assert math.isclose(auc(members, others), normal_cdf(apart / math.sqrt(2)), abs_tol=2e-3)
    # The 99th percentile of a normal is 2.3263.
    assert math.isclose(tpr_at(members, others), normal_cdf(apart - 2.3263), abs_tol=6e-3)
    assert auc(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == 7 / 8
    assert auc(others, others) == 0.5 and tpr_at(np.ones(5), np.ones(5)) == 0
    assert tpr_at(np.array([3.0, 1.0]), np.arange(200) / 100) == 0.5


def test_similarity_has_its_closed_forms():
    image = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(1))
    assert math.isclose(ssim(image, image), 1.0, abs_tol=1e-12) and psnr(image, image) == 100
    a, b, c1 = 0.25, 0.75, 0.01**2
    flat = [torch.full((1, 9, 9), value) for value in (a, b)]
    assert math.isclose(ssim(*flat), (2 * a * b + c1) / (a * a + b * b + c1), rel_tol=1e-6)
    assert math.isclose(psnr(*flat), -20 * math.log10(0.5), rel_tol=1e-6)
    # Without structure in common, contrasts cancel.
    assert abs(ssim(image, 1 - image)) < 1 and ssim(image, 1 - image) < 0


def test_bounds_of_epsilon():
    # With delta 0 it is a binomial tail; all right: (e^eps / (1 + e^eps))^r.
    assert math.isclose(audit_p_value(50, 50, 50, 1.0, 0.0), (1 + math.exp(-1)) ** -50)
    want = -math.log(0.05 ** (-1 / 50) - 1)
    assert math.isclose(audited_epsilon(50, 50, 50, 0.0), want, rel_tol=1e-9)
    # The value that Steinke et al. print in appendix D.
    assert math.isclose(audit_p_value(100, 100, 75, math.log(3), 0.0), 0.553, abs_tol=5e-4)
    assert 0 < audited_epsilon(50, 50, 50, 1e-3) < want and audited_epsilon(100, 50, 25, 0.0) == 0


@pytest.fixture(scope="module")
def memorized(tmp_path_factory):
    """A scene whose victim, rank 1, has memorized 30 images with random labels."""
    experiment = Experiment.from_yaml(QUICKSTART, [*SMALL, "training.optimizer.momentum=0.9"])
    scene = scene_of(experiment, tmp_path_factory.mktemp("scene"))
    train, rng = scene.dataset.train, np.random.default_rng(1)
    labels = torch.from_numpy(rng.integers(10, size=len(train)))
    scene = replace(scene, dataset=replace(scene.dataset, train=replace(train, labels=labels)), rounds=100)
    return scene, scene.trained(scene.shard_of(1), 100, 1)


@pytest.mark.parametrize(
    ("attack", "least"),
    [(LossThreshold(ranks=(0,)), 0.95), (CalibratedLoss(ranks=(0,), references=4), 0.65),
     (Lira(ranks=(0,), shadows=4), 0.95), (Lira(ranks=(0,), shadows=4, variant="offline"), 0.75)],
    ids=["loss", "calibrated", "lira", "offline"],
)  # fmt: skip
def test_membership_of_a_memorizing_model_is_found(memorized, attack, least):
    scene, model = memorized
    (result,) = attack.attack(scene, Sight(19, {1: model}))
    assert result.auc >= least
    (fresh,) = attack.attack(scene, Sight(19, {1: scene.initial}))
    assert abs(fresh.auc - 0.5) < 0.15


def test_the_label_of_a_member_is_known(memorized):
    scene, model = memorized
    (result,) = AttributeInference(ranks=(0,)).attack(scene, Sight(9, {1: model}))
    assert result.accuracy == 1 and result.chance < 0.4


def test_confidences():
    p = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    torch.testing.assert_close(logit(-p.log()), torch.log(p / (1 - p)))


def test_the_labels_of_one_full_gradient_are_exact():
    """From zeros, p is 1 / classes, and the last bias tells the shares."""
    overrides = [
        "dataset.partition={name: dirichlet, alpha: 0.5, min_size: 10}",
        "training.steps_per_round=1",
    ]
    experiment = Experiment.from_yaml(QUICKSTART, [*SMALL, *overrides])
    scene = scene_of(experiment, QUICKSTART.parent)
    start = torch.zeros_like(scene.initial)
    objective = scene.objective(start)
    objective(scene.shard_of(2).batch(torch.arange(len(scene.parts[2]))))[1].backward()
    tensors = dict(objective.module.named_parameters())
    step = torch.cat([tensors[entry.name].grad.flatten() for entry in scene.layout.entries])
    (result,) = LabelDistribution(links=((2, 3),)).attack(scene, Sight(0, {2: -0.1 * step}, {2: start}))
    assert result.l1_error < 1e-5 and result.accuracy == 1
    assert histogram(scene, 2).sum() == pytest.approx(1)


def test_digits_are_reconstructed_from_a_first_update(tmp_path):
    overrides = ["training.batch_size=1", "training.steps_per_round=1", "rounds=1"]
    adversaries = "adversaries=[{name: record, ranks: [0]}]"
    experiment = Experiment.from_yaml(QUICKSTART, [*SMALL, *overrides, adversaries])
    finish(Nodes(experiment, tmp_path / "records").begin().run(0, 1))
    attacks = [
        DeepLeakage(ranks=(0,), victims=(1,), iterations=60),
        InvertingGradients(ranks=(0,), iterations=300),
    ]
    results = [*attacked(experiment, tmp_path, attacks)]
    assert [(result.attack, result.victim) for result in results] == [
        ("dlg", 1), ("inverting_gradients", 1), ("inverting_gradients", 3)
    ]  # fmt: skip
    assert all(result.ssim > 0.5 and result.psnr > 15 for result in results)
    assert (tmp_path / results[0].picture).read_bytes().startswith(b"\x89PNG")


def finish(nodes: Nodes) -> None:
    for node in nodes.nodes:
        node.records.close()


@pytest.mark.parametrize("sharing", ["gossip", "choco", "secure_aggregation", "zip_dl"])
def test_a_transcript_has_what_neighbors_sent(tmp_path, sharing):
    """Models are read exactly, those under masks as their mean, and noisy ones with their noise."""
    adversaries = (
        "adversaries=[{name: record, ranks: [0], every: 1}, {name: record, links: [[1, 2]], every: 1}]"
    )
    options = ["sharing.generator=seeded", "sharing.sigma=0.1"] if sharing == "zip_dl" else []
    experiment = Experiment.from_yaml(
        QUICKSTART, [*SMALL, "rounds=2", f"sharing={sharing}", adversaries, *options]
    )
    nodes = Nodes(experiment, tmp_path / "records").begin()
    told = []

    class Recording(type(passive(experiment)[0])):
        def attack(self, scene, sight):
            told.append(sight)
            yield from ()

    nodes.run(0, 2)
    finish(nodes)
    assert [*attacked(experiment, tmp_path, [Recording(ranks=(0,), every=1)])] == []
    assert [(sight.round, list(sight.models)) for sight in told] == [(0, [1, 3]), (1, [1, 3])]
    scene = scene_of(experiment, tmp_path)
    for sight in told:
        assert all(model.isfinite().all() for model in sight.models.values())
    if sharing == "gossip":
        assert torch.equal(told[0].starts[1], scene.initial)
        # Of the models that node 1 mixes, rank 0 hears its own one alone.
        assert torch.equal(told[1].starts[1], told[0].models[1])
        assert not torch.equal(told[1].models[1], told[0].models[1])
    if sharing == "secure_aggregation":
        assert torch.equal(told[0].models[1], told[0].models[3])
    eavesdropped = Transcript(tmp_path, 2)
    eavesdropped.advance()
    assert {line.source for lines in eavesdropped.lines.values() for line in lines} == {1}
    assert eavesdropped.ended and eavesdropped.complete == 1
    cut_back(tmp_path, 2, 0)
    again = Transcript(tmp_path, 2)
    again.advance()
    assert list(again.lines) == [0] and again.complete == 0 and not again.ended


@pytest.mark.parametrize(
    ("sharing", "graph"),
    [("secure_aggregation", "{name: fully_connected, nodes: 4}"),
     ("{name: shatter, chunks: 2, per_neighbor: 2}", "{name: relayed, nodes: 4, degree: 3}")],
    ids=["secure_aggregation", "shatter"],
)  # fmt: skip
def test_hidden_payloads_reveal_only_the_mean(tmp_path, sharing, graph):
    options = [*SMALL, f"sharing={sharing}", f"graph={graph}", "rounds=1"]
    experiment = Experiment.from_yaml(QUICKSTART, [*options, "adversaries=[{name: record, ranks: [0]}]"])
    nodes = Nodes(experiment, tmp_path / "records").begin()
    for node in nodes.nodes[1:]:
        # The mean of the models that are sent is then known.
        node.training.settings = replace(node.training.settings, steps_per_round=0)
        node.training.vector.values.fill_(node.rank)
    finish(nodes.run(0, 1))
    attack = LossThreshold(ranks=(0,))
    attacker = Attacker(scene_of(experiment, tmp_path), attack, tmp_path)
    results = [*attacker.advance()]
    assert [result.victim for result in results] == [1, 2, 3, None]
    (model, *others) = attacker.last_sight.models.values()
    torch.testing.assert_close(model, torch.full_like(model, 2.0), rtol=0, atol=1e-4)
    assert all(torch.equal(model, other) for other in others)


def test_an_eavesdropper_of_encrypted_links_sees_sizes_and_times(tmp_path):
    attack = "name: linkability, method: timing, links: [[0, 1], [1, 2]], encrypted: true, every: 1"
    adversaries = f"adversaries=[{{{attack}}}]"
    experiment = Experiment.from_yaml(QUICKSTART, [*SMALL, "rounds=2", adversaries])
    finish(Nodes(experiment, tmp_path / "records").begin().run(0, 2))
    transcript = Transcript(tmp_path, 1)
    transcript.advance()
    lines = [line for lines in transcript.lines.values() for line in lines]
    assert len(lines) == 4 and all(line.offset == -1 and line.bytes and line.seconds for line in lines)
    (result,) = attacked(experiment, tmp_path, passive(experiment))
    assert result.attack == "linkability_timing" and result.chance == 1 / 3


def test_results_are_read_as_they_were_written(tmp_path, memorized):
    scene, model = memorized
    results = [*LossThreshold(ranks=(0,)).attack(scene, Sight(19, {1: model, 2: scene.initial}))]
    write_results(tmp_path, results)
    assert read_results(tmp_path) == results and read_results(tmp_path / "none") == []
    # The figure over all victims counts, where there is one.
    assert [result.victim for result in results] == [1, 2, None]
    assert best(results) == {
        "membership": {"auc": results[2].auc, "tpr_at_1_percent": results[2].tpr_at_1_percent}
    }


def test_canaries_prove_what_a_memorizing_node_reveals(tmp_path):
    audit = "adversaries=[{name: canary_audit, ranks: [0], victims: [1], canaries: 60, delta: 0}]"
    experiment = Experiment.from_yaml(QUICKSTART, [*SMALL, "dataset.train_size=400", audit])
    whole, kept = experiment.samples.assigned[1], experiment.samples.parts[1]
    assert len(whole) == 100 and 50 < len(kept) < 90 and len(experiment.samples.parts[2]) == 100
    scene = scene_of(experiment, tmp_path)
    (attack,) = passive(experiment)
    (result,) = attack.attack(scene, Sight(0, {1: scene.trained(scene.shard_of(1), 400, 1)}))
    assert result.accuracy > 0.9 and result.epsilon_lower > 1
    (fresh,) = attack.attack(scene, Sight(0, {1: scene.initial}))
    assert fresh.epsilon_lower < 0.5


def test_chunks_are_linked_by_their_differences():
    rng = np.random.default_rng(1)

    def chunk(round, origin, order, address, scale=1.0):
        content = torch.from_numpy(rng.normal(0, scale, 50))
        return ChunkArrival(round, float(order), order, 50, address, content, 0, origin)

    telling = [
        chunk(r, o, 4 * o + k, f"{o}-{k}", 10.0**o) for r in range(3) for o in range(5) for k in range(4)
    ]
    rates = chunk_linkability(telling)
    assert rates["time"] > 0.9 and rates["order"] > 0.9 and rates["content"] > 0.99 and rates["size"] == 0.5
    mixed = []
    for r in range(12):
        places = rng.permutation(20)
        mixed += [chunk(r, o, int(places[4 * o + k]), f"{r}-{o}-{k}") for o in range(5) for k in range(4)]
    assert all(abs(value - 0.5) < 0.08 for value in chunk_linkability(mixed).values())


def test_links_are_found_by_distance_and_loss(memorized):
    scene, model = memorized
    others = {rank: scene.trained(scene.shard_of(rank), 60, rank) for rank in (2, 3)}
    sight = Sight(3, {1: model, **others}, earlier={1: model + 0.01, **others})
    for attack in (Linkability(ranks=(0,)), Linkability(ranks=(0,), method="loss", knows_samples=True)):
        (result,) = attack.attack(scene, sight)
        assert result.accuracy == 1 and result.chance == pytest.approx(1 / 3)


def defects(attack: PassiveAttack, graph=None, sharing=None) -> list[str]:
    return [defect.what for defect in attack.defects(graph or Ring(6), sharing or Gossip())]


def test_what_cannot_be_attacked_is_refused():
    assert defects(LossThreshold(ranks=(0,), victims=(1, 5))) == []
    cases = [
        (LossThreshold(), "nobody listens"),
        (LossThreshold(ranks=(0,), victims=(2,)), "rank 2 is no neighbor of ranks 0; these are 1, 5"),
        (LossThreshold(ranks=(0,), victims=(9,)), "rank 9 does not exist; the graph has 0..5"),
        (LossThreshold(ranks=(0, 1), victims=(1,)), "rank 1 is the adversary itself"),
        (LossThreshold(links=((0, 3),)), "ranks 0 and 3 never exchange"),
        (Lira(links=((0, 1),)), "needs samples, and an eavesdropper has none"),
        (LossThreshold(links=((0, 1),), encrypted=True), "of encrypted links only sizes are seen"),
        (CanaryAudit(ranks=(0,)), "name the ranks that get canaries"),
    ]
    for attack, line in cases:
        lines = defects(attack)
        assert len(lines) == 1 and line in lines[0], lines
    (lines,) = defects(LossThreshold(links=((0, 1),)), FullyConnected(6), SecureAggregation())
    assert "hides each payload; name ranks" in lines
    (lines,) = defects(LossThreshold(ranks=(0,)), FullyConnected(6), FedAvg())
    assert "cannot read what fed_avg sends" in lines
    with pytest.raises(BadInput, match="which no party has"):
        Linkability(ranks=(0,), method="loss")
    named = [cls for cls in ATTACKS.classes().values() if issubclass(cls, PassiveAttack)]
    assert len(named) == 12 and all(cls.knowledge for cls in named)


@pytest.mark.parametrize("minibatches", ["epochs", "reshuffle"])
def test_the_samples_of_a_round_are_those_that_the_node_used(minibatches, tmp_path):
    kind = f"training.minibatches={minibatches}"
    experiment = Experiment.from_yaml(QUICKSTART, [*SMALL, "dataset.train_size=200", kind])
    scene, shard = scene_of(experiment, tmp_path), experiment.samples.shard(1)
    used = experiment.settings.training.make_minibatches(shard)
    for round in range(3):
        used.begin_round()
        steps = experiment.settings.training.steps(1, round, used.per_epoch)
        batches = [used.next().fields[0] for _ in range(steps)]
        batch = trained_on(scene, 1, round).batch(torch.arange(len(trained_on(scene, 1, round)))).fields[0]
        assert {*map(str, batch)} == {*map(str, torch.cat(batches))}
