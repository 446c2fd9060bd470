"""Mixed precision and compiled networks against loops of torch alone."""

import copy
import math

import pytest
import torch
from torch import nn

from decentnode.datasets.base import Samples
from decentnode.errors import RunFailed
from decentnode.models import LeNet, initial_model
from decentnode.node import dry_round
from decentnode.node.experiment import Experiment
from decentnode.training.augmentation import Crop, Mixup
from decentnode.training.computation import FIRST_SCALE, Computation, LossScaler
from decentnode.training.evaluation import evaluate
from decentnode.training.settings import Factory
from decentnode.training.training import Hooks
from tests.support.in_process import Nodes
from tests.training.test_training import (
    batches_of,
    dropout_net,
    resumed_like_straight,
    run,
    toy_net,
    toy_samples,
    training_of,
)

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("amp", TYPES)
def test_mixed_precision_is_torchs_autocast(amp):
    module, plain, samples = toy_net(), toy_net(), toy_samples()
    training = training_of(module, samples=samples, amp=amp, steps_per_round=2)
    if training.scaler:
        # Small enough for these gradients, so that no step is skipped.
        training.scaler.scale = 2.0**8
    run(training, range(2))
    optimizer, batches = torch.optim.SGD(plain.parameters(), lr=0.1), batches_of(samples, 4)
    for _ in range(4):
        inputs, labels = next(batches)
        optimizer.zero_grad()
        with torch.autocast("cpu", TYPES[amp]):
            loss = nn.functional.cross_entropy(plain(inputs).float(), labels)
        (loss * 2.0**8).backward() if amp == "float16" else loss.backward()
        if amp == "float16":
            for parameter in plain.parameters():
                parameter.grad /= 2.0**8
        optimizer.step()
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert a.dtype == a.grad.dtype == torch.float32
        assert torch.equal(a, b)
    with torch.no_grad(), torch.autocast("cpu", TYPES[amp]):
        loss = nn.functional.cross_entropy(plain(samples.inputs).float(), samples.labels).item()
    assert evaluate(training.objective, samples)["loss"] == loss
    exact = nn.functional.cross_entropy(plain(samples.inputs), samples.labels).item()
    assert loss != exact and loss == pytest.approx(exact, rel=1e-2)


def test_a_gradient_that_overflows_skips_the_step_and_halves_the_scale():
    seen = []
    hooks = Hooks(lambda gradient, vector, step: seen.append((step, gradient.norm().item())))
    samples = toy_samples()
    samples.inputs.mul_(50)
    settings = {"amp": "float16", "samples": samples, "hooks": hooks, "clip_norm": 0.5, "steps_per_round": 6}
    training = training_of(toy_net(), **settings)
    start = training.vector.values.clone()
    (report,) = run(training, [0])
    skipped = 6 - report.steps
    assert 0 < skipped < 6
    assert training.scaler.scale == FIRST_SCALE / 2**skipped
    # A scheme sees no gradient of a skipped step, and the others as they are without a scale.
    assert [step for step, _ in seen] == [*range(skipped, 6)]
    assert all(0.5 < norm < 1000 for _, norm in seen)
    assert training.vector.gradient.norm().item() == pytest.approx(0.5, rel=1e-3)
    assert not torch.equal(start, training.vector.values)


def test_the_scale_doubles_after_2000_finite_gradients_and_has_a_least_value():
    scaler, gradient = LossScaler(), torch.ones(2)
    for _ in range(1999):
        assert scaler.unscale(gradient)
    assert scaler.scale == FIRST_SCALE
    resumed = LossScaler()
    resumed.load_state_dict(copy.deepcopy(scaler.state_dict()))
    for state_ in (scaler, resumed):
        assert state_.unscale(gradient) and state_.scale == 2 * FIRST_SCALE
        assert not state_.unscale(torch.tensor([1.0, math.inf])) and state_.scale == FIRST_SCALE
    samples = toy_samples()
    samples.inputs.mul_(1e4)
    with pytest.raises(RunFailed) as caught:
        hopeless = training_of(toy_net(), amp="float16", samples=samples, steps_per_round=40)
        for parameter in hopeless.module.parameters():
            parameter.data.mul_(100)
        run(hopeless, [0])
    assert str(caught.value).startswith("rank 3, round 1, step ")


def test_all_random_state_resumes_bit_for_bit():
    def fresh():
        samples = toy_samples(11, (1, 8, 8))
        samples.inputs.mul_(30)
        return training_of(
            initial_model(LeNet(), (1, 8, 8), 3, seed=1), Factory(torch.optim.Adam, {"lr": 1e-3}), samples,
            amp="float16", accumulate=2, steps_per_round=3, schedule_step="step",
            scheduler=Factory(torch.optim.lr_scheduler.CosineAnnealingLR, {"T_max": 20}),
            augmentation=(Factory(Crop, {"padding": 2}), Factory(Mixup)),
        )  # fmt: skip

    straight, resumed = resumed_like_straight(fresh)
    assert straight.learning_rate == resumed.learning_rate
    assert straight.scaler.state_dict() == resumed.scaler.state_dict()
    assert straight.loss == resumed.loss


def test_a_captured_network_trains_as_the_plain_one_and_evaluates_as_it():
    """This holds where the slots of the vector take turns, and for several nodes in a process."""
    samples = toy_samples(10)
    assert Computation().compiled(len) is len
    plain = [dropout_net() for _ in range(2)]
    run(training_of(plain[0], samples=samples), range(3), flip=True)
    captured = [training_of(dropout_net(), samples=samples, compile="eager") for _ in range(2)]
    assert sorted(map(len, captured[0].minibatches.trials())) == [2, 4]
    values = captured[0].vector.values.clone()
    for training in captured:
        training.rehearse()
        assert torch.equal(training.vector.values, values)
    for round in range(3):
        for training in captured:
            run(training, [round], flip=True)
    for training in captured:
        pairs = zip(training.module.parameters(), plain[0].parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    scores = evaluate(captured[0].objective, samples)
    assert scores == evaluate(training_of(plain[0], samples=samples).objective, samples)


def test_labels_are_smoothed_by_torchs_loss():
    samples = Samples(torch.randn(6, 4), torch.arange(6) % 3)
    loss = Factory(nn.CrossEntropyLoss, {"label_smoothing": 0.1})
    training = training_of(toy_net(), samples=samples, loss=loss)
    scores = training.module(samples.inputs).log_softmax(1)
    own_losses = -scores.gather(1, samples.labels[:, None])[:, 0]
    wanted = (0.9 * own_losses - 0.1 * scores.mean(1)).mean().item()
    assert evaluate(training.objective, samples)["loss"] == pytest.approx(wanted, rel=1e-6)


# From YAML.

CONFIG = """
rounds: 4
graph: {name: ring, nodes: 3}
dataset: {name: digits, train_size: 60, test_size: 20}
model: lenet
training:
  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
  loss: {name: CrossEntropyLoss, label_smoothing: 0.1}
  scheduler: {name: WarmupCosine, warmup: 2, total: 12}
  schedule_step: step
  batch_size: 4
  accumulate: 2
  epochs_per_round: 1
  amp: float16
  augmentation: [{name: crop, padding: 1}, {name: flip, probability: 0.3}, {name: cutout, size: 2}, mixup]
communication: inproc
evaluation: {every: 0}
"""


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "features.yaml"
    path.write_text(CONFIG)
    return path


def test_an_experiment_with_all_of_it_resumes_bit_for_bit(written, tmp_path):
    experiment = Experiment.from_yaml(written)
    assert dry_round.is_needed(experiment.settings)
    assert [*dry_round.defects(experiment)] == []
    straight = Nodes(experiment, tmp_path / "straight").begin().run(0, 4)
    saved = Nodes(experiment, tmp_path / "first").begin().run(0, 2).saved()
    again = Nodes(experiment, tmp_path / "second").load(saved).run(2, 4)
    assert torch.equal(again.models, straight.models)
    # 20 samples a node: in each round 5 minibatches, in 3 steps.
    assert again.nodes[0].training.scheduler.last_epoch == 12
    plain = Experiment.from_yaml(written, ["training.augmentation=null", "training.amp=null"])
    assert not dry_round.is_needed(plain.settings)
    assert not torch.equal(Nodes(plain, tmp_path / "plain").begin().run(0, 4).models, straight.models)


def test_a_network_that_cannot_be_computed_so_is_refused_before_the_start(written, monkeypatch):
    experiment = Experiment.from_yaml(written, ["training.amp=null", "training.compile=eager"])

    def fails(*args, **kwargs):
        raise RuntimeError("no compiler\nwas found")

    assert dry_round.is_needed(experiment.settings)
    monkeypatch.setattr(dry_round.DryNodes, "__post_init__", _with_objective(fails))
    assert [*dry_round.defects(experiment)] == [
        "training.compile: torch.compile fails here: no compiler; leave it out"
    ]
    half = Experiment.from_yaml(written)

    def lacks(*args, **kwargs):
        raise RuntimeError("\"conv\" not implemented for 'Half'")

    monkeypatch.setattr(dry_round.DryNodes, "__post_init__", _with_objective(lacks))
    assert [*dry_round.defects(half)] == [
        "training.amp: float16 does not work on this CPU: \"conv\" not implemented for 'Half'; use bfloat16"
    ]


def _with_objective(objective, original=dry_round.DryNodes.__post_init__):
    def prepared(nodes):
        original(nodes)
        objective.module = nodes.objective.module
        nodes.objective = objective

    return prepared
