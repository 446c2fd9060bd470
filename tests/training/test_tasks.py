"""Tasks against closed forms in float64, and whole runs of their datasets in the real formats."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from decentnode.config.loader import understand
from decentnode.config.python_source import document_of
from decentnode.datasets import samples
from decentnode.datasets.base import IGNORED, Batch, LoadedDataset, Samples
from decentnode.errors import BadInput
from decentnode.node.experiment import Experiment, vector_test
from decentnode.training.evaluation import evaluate
from decentnode.training.objective import Objective
from decentnode.training.tasks import (
    Binary,
    Classification,
    MultiLabel,
    NextToken,
    Rating,
    Regression,
    Segmentation,
)
from tests.support.in_process import Nodes


class Given(nn.Module):
    """Gives what it is told, whatever it is asked."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, indices):
        return self.outputs[indices[:, 0].long()]


def measured(task, loss, outputs, labels, batch_size=3, weights=None):
    """The metrics of these outputs, in batches that do not divide the samples."""
    places = torch.arange(len(outputs))[:, None].int()
    samples = Samples(places, labels, weights=weights)
    return evaluate(Objective(Given(outputs.double()), loss, task), samples, batch_size)


def drawn(*shape, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_classification_is_numpys_for_any_size_of_batches():
    outputs, labels = drawn(10, 5), torch.arange(10) % 4
    task = Classification(top_k=(2, 5), per_class=True)
    scores = [measured(task, nn.CrossEntropyLoss(), outputs, labels, size) for size in (1, 3, 10)]
    order = outputs.numpy().argsort(1)[:, ::-1]
    is_right = order[:, 0] == labels.numpy()
    expected = {
        "accuracy": is_right.mean(),
        "loss": nn.functional.cross_entropy(outputs, labels).item(),
        "top_2_accuracy": np.mean(
            [label in row[:2] for row, label in zip(order, labels.tolist(), strict=True)]
        ),
        "top_5_accuracy": 1.0,
        **{f"accuracy_of_{c}": is_right[labels.numpy() == c].mean() for c in range(4)},
        "accuracy_of_4": math.nan,
    }
    for metrics in scores:
        assert list(metrics) == [metric.name for metric in task.metrics(5)]
        assert metrics == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_perplexity_is_of_the_tokens_that_count():
    outputs, labels = drawn(4, 6, 5), torch.randint(6, (4, 5), generator=torch.Generator().manual_seed(1))
    labels[1, 2:] = labels[3, :4] = IGNORED
    counts = labels != IGNORED
    logs = outputs.log_softmax(1).gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
    loss = -logs[counts].mean().item()
    right = (outputs.argmax(1) == labels)[counts].double().mean().item()
    scores = measured(NextToken(), nn.CrossEntropyLoss(), outputs, labels)
    assert scores == pytest.approx({"loss": loss, "accuracy": right, "perplexity": math.exp(loss)}, rel=1e-12)
    assert next(iter(scores)) == NextToken().metrics(6)[0].name == "loss"


def test_ratings_are_judged_by_their_distance():
    outputs = torch.tensor([[3.2], [4.0], [1.9], [0.4]], dtype=torch.float64)
    labels = torch.tensor([3.0, 4.5, 2.0, 0.5], dtype=torch.float64)
    errors = np.array([0.2, 0.5, 0.1, 0.1])
    expected = {
        "rmse": math.sqrt((errors**2).mean()), "mae": errors.mean(), "hits": 0.75,
        "loss": (errors**2).mean(),
    }  # fmt: skip
    assert measured(Rating(), nn.MSELoss(), outputs, labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weights_count_samples_several_times(reduction):
    """A weight of 2 is the sample twice."""
    outputs, labels = drawn(4, 3), torch.tensor([0, 2, 1, 1])
    objective = Objective(Given(outputs), nn.CrossEntropyLoss(reduction=reduction), Classification())
    places = torch.arange(4)[:, None]
    weighted = objective(Batch((places,), labels, torch.tensor([1.0, 2.0, 1.0, 3.0])))[1]
    often = torch.tensor([0, 1, 1, 2, 3, 3, 3])
    repeated = objective(Batch((places[often],), labels[often]))[1]
    assert weighted.item() == pytest.approx(repeated.item(), rel=1e-12)
    gradient = torch.autograd.grad(weighted, objective.module.outputs)[0]
    assert torch.allclose(gradient, torch.autograd.grad(repeated, objective.module.outputs)[0], rtol=1e-12)


def loaded(inputs, labels, classes):
    samples = Samples(inputs, labels)
    return LoadedDataset(samples, samples, classes, tuple(inputs.shape[1:]))


IDS, CLASSES = torch.zeros(3, 2, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("task", "loss", "dataset", "message"),
    [
        (Classification(), nn.CrossEntropyLoss, loaded(IDS, torch.zeros(3), 1),
         "task: classification needs labels that are classes, those of the dataset are numbers; "
         r"give labels\.long\(\), or use task: regression"),
        (Rating(), nn.MSELoss, loaded(IDS, CLASSES, 2),
         "task: rating needs labels that are numbers, those of the dataset are classes; use floats"),
        (Rating(), nn.MSELoss, loaded(IDS, torch.zeros(3, 2), 1),
         r"task: rating needs one label for each sample, not labels of shape \(2,\); use regression"),
        (NextToken(), nn.CrossEntropyLoss, loaded(torch.zeros(3, 2), CLASSES, 2),
         r"task: next_token needs samples of ids \(int16, int32, int64\), not of float32"),
        (MultiLabel(), nn.BCEWithLogitsLoss, loaded(IDS, CLASSES, 2),
         r"task: multi_label needs labels of shape \(n, labels\), not \(3,\); a 0 or 1 each"),
        (MultiLabel(), nn.BCEWithLogitsLoss, loaded(IDS, torch.full((3, 2), 2), 3),
         "task: multi_label needs labels that are 0 or 1, not 2; those that do not count are -100"),
        (Binary(), nn.BCEWithLogitsLoss, loaded(IDS, torch.tensor([0.0, 0.5, 1.0]), 1),
         r"task: binary needs labels that are 0 or 1, not 0\.5; those that do not count are -100"),
        (Binary(), nn.CrossEntropyLoss, loaded(IDS, CLASSES, 2),
         "training.loss: binary needs BCEWithLogitsLoss, not CrossEntropyLoss"),
        (Binary(), nn.BCELoss, loaded(IDS, CLASSES, 2),
         "training.loss: binary needs BCEWithLogitsLoss, not BCELoss"),
        (Regression(), nn.CrossEntropyLoss, loaded(IDS, torch.zeros(3, 2), 1),
         "training.loss: regression needs MSELoss or .* or HuberLoss, not CrossEntropyLoss"),
        (Segmentation(), nn.CrossEntropyLoss, loaded(IDS, CLASSES, 2),
         "task: segmentation needs a label for each pixel, not one for each sample"),
        (NextToken(), nn.MSELoss, loaded(IDS, CLASSES, 2),
         "training.loss: next_token needs CrossEntropyLoss or NLLLoss, not MSELoss"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_task_is_refused(task, loss, dataset, message):
    with pytest.raises(BadInput, match=f"^{message}$"):
        task.check(task.of(dataset), loss)


FEATURES = drawn(80, 6).float()
IMAGES = drawn(24, 3, 4, 4).float()
MASKS = (IMAGES[:, 0] > 0).long().masked_fill(IMAGES[:, 1] > 1, 255)
LOSSES = dict.fromkeys(("multi_label", "binary"), "BCEWithLogitsLoss")
LOSSES |= {"regression": "HuberLoss", "segmentation": "CrossEntropyLoss"}
IN_MEMORY = {
    "multi_label": (FEATURES, (FEATURES[:, :3] > 0.3), nn.Linear(6, 3), {"pos_weight": [1.0, 2.0, 3.0]},
                    ["f1_macro", "accuracy", "loss"]),
    "binary": (FEATURES, (FEATURES[:, 0] > 0.5).float(), {"name": "mlp", "hidden": [4]}, {"pos_weight": 2},
               ["accuracy", "loss"]),
    "regression": (FEATURES, FEATURES[:, :2] * 3, {"name": "mlp", "hidden": [4]}, {},
                   ["rmse", "mae", "r2", "loss"]),
    "segmentation": (IMAGES, MASKS, nn.Conv2d(3, 2, 1), {"ignore_index": 255, "weight": [1, 3]},
                     ["mean_iou", "pixel_accuracy", "loss"]),
}  # fmt: skip


@pytest.mark.parametrize("task", IN_MEMORY)
def test_a_task_trains_samples_from_python_alone_and_in_batches_of_nodes(task, tmp_path):
    inputs, labels, model, options, names = IN_MEMORY[task]
    half = len(inputs) // 2
    scores, models = [], []
    for execution in ("alone", {"batches": 3}):
        torch.manual_seed(1)
        loss = {"name": LOSSES[task], **options}
        values = {
            "graph": {"name": "ring", "nodes": 3}, "rounds": 2, "communication": "inproc", "task": task,
            "dataset": ((inputs[:half], labels[:half]), (inputs[half:], labels[half:])), "model": model,
            "training": {
                "optimizer": {"name": "SGD", "lr": 0.1}, "loss": loss, "batch_size": 4, "steps_per_round": 6,
                "execution": execution,
            },
        }  # fmt: skip
        experiment = Experiment.from_settings(understand(document_of(values)))
        test, plan = vector_test(experiment), experiment.plan
        assert [metric.name for metric in plan.metrics] == names
        before = test.run(plan.samples, plan.batch_size)
        nodes = Nodes(experiment, tmp_path / str(len(models))).begin().run(0, 2)
        scores.append([node.evaluation.scores for node in nodes.nodes])
        assert all(list(after) == names and after["loss"] < before["loss"] for after in scores[-1])
        models.append(nodes.models)
    assert torch.allclose(models[0], models[1], rtol=1e-4, atol=1e-6)


COMMON = "name: trial\nrounds: 2\ngraph: {name: ring, nodes: 2}\nsharing: gossip\ncommunication: inproc\n"
TEXT = "".join(f"Chapter {n}\n" + "the cat sat on the mat; " * (10 + n) + "\n" for n in range(4))
EXPERIMENTS = {
    "text": (
        "dataset: {name: text, path: book.txt, length: 16, document: '^Chapter', partition: natural}\n"
        "model: {name: gpt2, layers: 1, heads: 2, width: 8, context: 16}\n",
        ["loss", "accuracy", "perplexity"],
    ),
    "tokens": (
        "dataset: {name: tokens, path: ., length: 8, vocabulary: 65536}\n"
        "model: {name: gpt2, layers: 1, heads: 1, width: 2, context: 8}\n",
        ["loss", "accuracy", "perplexity"],
    ),
    "translation": (
        "dataset: {name: parallel, path: ., vocabulary: 280, documents: document, partition: natural}\n"
        "task: {name: translation, bleu: 4, beams: 2, longer: 3}\n"
        "model: {name: transformer, layers: 1, heads: 2, width: 8, hidden: 8, dropout: 0.0, padding: 0}\n",
        ["loss", "accuracy", "perplexity", "bleu"],
    ),
    "movielens": (
        "dataset: {name: movielens, path: ., partition: natural}\n"
        "model: {name: matrix_factorization, users: 4, items: 9, start: 0.5}\n",
        ["rmse", "mae", "hits", "loss"],
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "book.txt").write_text(TEXT, encoding="utf-8")
    for name, count in (("train.bin", 400), ("val.bin", 60)):
        (65532 + np.arange(count) % 4).astype("<u2").tofile(folder / name)
    samples.parallel(folder, pairs=16, words=3)
    rows = [
        f"{user},{film * 100},{(user + film) % 10 / 2 + 0.5},9" for user in (1, 2, 5, 9) for film in range(9)
    ]
    (folder / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows, ""]))
    return folder


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_task_trains_from_its_files(folder, name, tmp_path):
    config, metrics = EXPERIMENTS[name]
    path = folder / f"{name}.yaml"
    batches = "batch_tokens: 64" if name == "translation" else "batch_size: 4"
    training = f"training: {{optimizer: {{name: SGD, lr: 0.1}}, {batches}, steps_per_round: 12}}\n"
    path.write_text(COMMON + config + training)
    experiment = Experiment.from_yaml(path)
    assert [metric.name for metric in experiment.plan.metrics] == metrics
    test, plan = vector_test(experiment), experiment.plan
    before = test.run(plan.samples, plan.batch_size)
    nodes = Nodes(experiment, tmp_path / "run").begin()
    nodes.run(0, 2)
    tests = [node.evaluation.scores for node in nodes.nodes]
    assert all(list(after) == metrics and after["loss"] < before["loss"] for after in tests), (before, tests)
