"""Which labels count: not -100, and not the one that the loss ignores, wherever labels are counted."""

import asyncio
import math

import numpy as np
import pytest
import torch
from torch import nn

from decentnode.config.loader import understand
from decentnode.config.python_source import document_of
from decentnode.datasets.base import IGNORED, Samples, counts
from decentnode.errors import BadInput
from decentnode.node.experiment import Experiment
from decentnode.training.evaluation import evaluate
from decentnode.training.objective import Objective, ignored_by
from decentnode.training.tasks import Classification, NextToken
from tests.support.in_process import Nodes
from tests.training.test_tasks import Given, drawn

CLASSES = 5


def labelled(*shape, ignored):
    """Labels of which about a third do not count, among them all of the first samples."""
    random = np.random.default_rng(2)
    labels = random.integers(CLASSES, size=shape)
    labels[random.random(shape) < 0.3] = ignored
    labels[:2] = ignored
    return torch.from_numpy(labels)


@pytest.mark.parametrize("weights", [None, torch.arange(1.0, CLASSES + 1)])
@pytest.mark.parametrize("ignored", [IGNORED, 255, -1, 3])
@pytest.mark.parametrize("shape", [(12,), (12, 3, 2)])
def test_metrics_are_those_of_the_labels_that_count_for_any_size_of_batches(shape, ignored, weights):
    labels = labelled(*shape, ignored=ignored)
    outputs = drawn(12, CLASSES, *shape[1:])
    expected_loss = nn.functional.cross_entropy(
        outputs, labels, weight=None if weights is None else weights.double(), ignore_index=ignored
    ).item()
    outputs = outputs.float()
    loss = nn.CrossEntropyLoss(weight=weights, ignore_index=ignored)
    samples = Samples(torch.arange(12)[:, None].int(), labels, ignored=ignored)
    counted = (labels != ignored).numpy()
    order = outputs.numpy().argsort(1)[:, ::-1]
    is_right = (order[:, 0] == labels.numpy())[counted]
    kept = labels.numpy()[counted]
    in_two = (order[:, :2] == labels.unsqueeze(1).numpy()).any(1)[counted]
    expected = {"accuracy": is_right.mean(), "top_2_accuracy": in_two.mean(), "loss": expected_loss} | {
        f"accuracy_of_{c}": is_right[kept == c].mean() if (kept == c).any() else math.nan
        for c in range(CLASSES)
    }
    task = Classification(top_k=(2,), per_class=True)
    for size in (1, 5, 12):
        metrics = evaluate(Objective(Given(outputs), loss, task), samples, size)
        assert metrics == pytest.approx(expected, rel=1e-5, nan_ok=True)
    of_tokens = evaluate(Objective(Given(outputs), loss, NextToken()), samples, 5)
    assert of_tokens["accuracy"] == pytest.approx(expected["accuracy"])
    assert of_tokens["loss"] == pytest.approx(expected_loss, rel=1e-5)


def test_of_samples_in_which_nothing_counts_nothing_is_known():
    outputs, labels = drawn(4, CLASSES), torch.full((4,), IGNORED)
    samples = Samples(torch.arange(4)[:, None].int(), labels)
    for task in (Classification(top_k=(2,), per_class=True), NextToken()):
        metrics = evaluate(Objective(Given(outputs), nn.CrossEntropyLoss(), task), samples, 3)
        assert metrics.keys() == {metric.name for metric in task.metrics(CLASSES)}
        assert all(map(math.isnan, metrics.values()))


@pytest.mark.parametrize("shape", [(12,), (12, 3)])
def test_the_weight_of_a_sample_in_which_nothing_counts_does_not_count(shape):
    labels, outputs = labelled(*shape, ignored=IGNORED), drawn(12, CLASSES, *shape[1:]).float()
    weights = torch.arange(1.0, 13.0)
    kept = (labels != IGNORED).reshape(12, -1).any(1)
    each = nn.functional.cross_entropy(outputs, labels, reduction="none").reshape(12, -1).sum(1)
    mean = each[kept] / (labels[kept] != IGNORED).reshape(int(kept.sum()), -1).sum(1)
    expected = (weights[kept] * mean).sum() / weights[kept].sum()
    samples = Samples(torch.arange(12)[:, None].int(), labels, weights=weights)
    for size in (1, 5, 12):
        objective = Objective(Given(outputs), nn.CrossEntropyLoss(), Classification())
        assert evaluate(objective, samples, size)["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_the_label_that_a_loss_ignores_may_be_that_of_a_part_of_it():
    class Sum(nn.Module):
        def __init__(self, *ignored):
            super().__init__()
            self.parts = nn.ModuleList(nn.CrossEntropyLoss(ignore_index=label) for label in ignored)

    assert [ignored_by(nn.MSELoss()), ignored_by(Sum(IGNORED, 255, 255))] == [IGNORED, 255]
    with pytest.raises(BadInput, match="ignore several labels: 0 and 255"):
        ignored_by(Sum(255, 0))


def experiment_of(labels, **changes):
    """Of images whose masks are these labels."""
    images = torch.rand(len(labels), 3, *labels.shape[1:], generator=torch.Generator().manual_seed(1))
    half = len(labels) // 2
    torch.manual_seed(1)
    values = {
        "name": "masks",
        "rounds": 2,
        "graph": {"name": "ring", "nodes": 3},
        "dataset": ((images[:half], labels[:half]), (images[half:], labels[half:])),
        "model": nn.Conv2d(3, CLASSES, 1),
        "training": {"optimizer": {"name": "SGD", "lr": 0.5}, "batch_size": 1, "steps_per_round": 4},
        "communication": "inproc",
    }
    return Experiment.from_settings(understand(document_of(values | changes)))


@pytest.mark.parametrize("ignored", [IGNORED, 255])
def test_a_run_counts_no_class_for_it_and_trains_on_the_rest(ignored, tmp_path):
    labels = labelled(24, 4, 4, ignored=ignored)
    loss = {"training.loss": {"name": "CrossEntropyLoss", "ignore_index": ignored}}
    experiment = experiment_of(labels, **loss, **{"evaluation.node_test_split": True})
    assert experiment.samples.dataset.num_classes == CLASSES
    half = labels[:12].flatten()
    expected = torch.bincount(half[half != ignored], minlength=CLASSES).tolist()
    assert np.sum(experiment.samples.histograms, axis=0).tolist() == expected
    # Two images have no label that counts, and a minibatch of one of them no gradient.
    nodes = Nodes(experiment, tmp_path / "run").begin().run(0, 2)
    assert nodes.models.isfinite().all()
    same = experiment_of(
        torch.where(labels == ignored, IGNORED, labels), **{"evaluation.node_test_split": True}
    )
    assert torch.equal(Nodes(same, tmp_path / "same").begin().run(0, 2).models, nodes.models)
    assert all(0 < node.evaluation.scores["local_accuracy"] < 1 for node in nodes.nodes)


def test_a_minibatch_in_which_nothing_counts_changes_nothing(tmp_path):
    labels = torch.full((12, 2, 2), IGNORED)
    labels[0] = labels[6] = torch.tensor([[0, 1], [2, CLASSES - 1]])
    experiment = experiment_of(labels)
    nodes = Nodes(experiment, tmp_path / "run").begin()
    without = [rank for rank, part in enumerate(experiment.samples.parts) if 0 not in part.tolist()]
    before = nodes.models.clone()
    reports = {}
    for rank in without:
        tally = nodes.nodes[rank].training.begin(0)
        asyncio.run(nodes.nodes[rank].training.step(tally))
        reports[rank] = nodes.nodes[rank].training.finish(tally)
    assert without and torch.equal(nodes.models, before)
    assert all(report.loss is None and report.steps == 1 for report in reports.values())


def refused(labels, **changes):
    with pytest.raises(BadInput) as error:
        experiment_of(labels, **changes)
    return str(error.value)


def test_what_cannot_leave_labels_out_is_refused():
    masks, ignoring = labelled(12, 2, 2, ignored=255), {"name": "CrossEntropyLoss", "ignore_index": 255}
    assert "labels are all 255, so nothing counts" in refused(
        torch.full((12, 2, 2), 255), **{"training.loss": ignoring}
    )
    assert "it must give (2, 256, 2, 2)" in refused(masks)
    for loss in ("MSELoss", "MultiMarginLoss"):
        text = refused(torch.where(masks == 255, IGNORED, masks), **{"training.loss": loss})
        assert f"{loss} ignores no label, and some are -100" in text
    of_samples = labelled(12, ignored=255)
    samples = torch.rand(12, 4)
    of_classes = {
        "dataset": {
            "name": ((samples, of_samples), (samples, of_samples)),
            "partition": {"name": "dirichlet", "alpha": 1.0},
        },
        "model": nn.Linear(4, CLASSES),
    }
    assert "the loss ignores the label 255" in refused(masks, **of_classes, **{"training.loss": ignoring})


def test_noise_in_labels_gives_none_to_what_has_none():
    labels = labelled(40, ignored=-1)
    samples = torch.rand(40, 4)
    values = {
        "dataset": {
            "name": ((samples, labels), (samples, labels)),
            "skew": [{"name": "label_noise", "rate": 1.0}],
        },
        "model": nn.Linear(4, CLASSES),
        "training.loss": {"name": "CrossEntropyLoss", "ignore_index": -1},
    }
    changed = experiment_of(labelled(12, 2, 2, ignored=-1), **values).samples.dataset.train
    assert torch.equal(counts(changed.labels, -1), counts(labels, -1))
    assert not (changed.labels == labels)[counts(labels, -1)].any()
