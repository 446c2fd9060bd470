"""Every metric beside scikit-learn and torchmetrics on the whole data, in batches that do not divide it."""

import math
import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics.classification as of_classes
import torchmetrics.regression as of_numbers
from torch import nn

from decentnode.communication.launcher_link.reports import Evaluated, Published
from decentnode.config.loader import understand
from decentnode.config.python_source import document_of
from decentnode.core.registry import METRICS
from decentnode.datasets.base import IGNORED, Samples
from decentnode.errors import BadInput
from decentnode.launcher.state.evaluation_log import EvaluationLog
from decentnode.node.checkpoint.packed_state import packed, unpacked
from decentnode.node.experiment import Experiment
from decentnode.training.evaluation import evaluate, specs_of
from decentnode.training.metrics import Measure, Predictions
from decentnode.training.metrics.foreign import metric_of
from decentnode.training.objective import Objective
from decentnode.training.tasks import Binary, Classification, MultiLabel, Regression, Segmentation
from tests.support.in_process import Nodes
from tests.training.test_tasks import Given, drawn

SAMPLES, CLASSES = 101, 4
RANDOM = np.random.default_rng(3)


def rounded(scores):
    """Scores of which several are equal."""
    return (scores * 4).round() / 4


MULTICLASS = rounded(drawn(SAMPLES, CLASSES)), torch.from_numpy(RANDOM.integers(CLASSES, size=SAMPLES))
ONE_LOGIT = rounded(drawn(SAMPLES, 1)), torch.from_numpy(RANDOM.integers(2, size=SAMPLES))
SEVERAL = rounded(drawn(SAMPLES, 3)), torch.from_numpy(RANDOM.integers(2, size=(SAMPLES, 3)))
NUMBERS = drawn(SAMPLES, 3), drawn(SAMPLES, 3, seed=2) + torch.tensor([0.0, 1.0, 100.0])
TASKS = {
    "multiclass": (Classification(), *MULTICLASS),
    "binary": (Binary(), *ONE_LOGIT),
    "multilabel": (MultiLabel(), *SEVERAL),
    "regression": (Regression(), *NUMBERS),
}


def judged(name, kind, size=7, options=(), outputs=None, labels=None, cls=None):
    """What an evaluation in batches of this size gives for one metric."""
    task, usual_outputs, usual_labels = TASKS[kind]
    outputs = usual_outputs if outputs is None else outputs
    labels = usual_labels if labels is None else labels
    places = torch.arange(len(outputs))[:, None].int()
    loss = nn.CrossEntropyLoss() if kind == "multiclass" else nn.MSELoss()
    loss = nn.BCEWithLogitsLoss() if kind in ("binary", "multilabel") else loss
    make = lambda: metric_of(cls or METRICS.find(name), dict(options))
    found = evaluate(Objective(Given(outputs), loss, task), Samples(places, labels), size, metrics=[make])
    width = 2 if kind == "binary" else outputs.shape[1]
    assert list(found) == [spec.name for spec in specs_of(task, [make], CLASSES, width)]
    return found


def sides(kind):
    """Labels, values and guesses as arrays, as scikit-learn takes them."""
    _, outputs, labels = TASKS[kind]
    if kind == "multiclass":
        return labels.numpy(), outputs.softmax(1).numpy(), outputs.argmax(1).numpy()
    values = outputs if kind == "regression" else outputs.sigmoid()
    values = values.reshape(labels.shape).numpy()
    return labels.numpy(), values, values if kind == "regression" else (values > 0.5).astype(int)


def binned(labels, values, guesses, bins=15):
    """The calibration error by its definition."""
    right = labels if values.ndim == 1 else labels == guesses
    confidence = values if values.ndim == 1 else values.max(1)
    of = np.minimum((confidence * bins).astype(int), bins - 1)
    return sum(abs(right[of == b].sum() - confidence[of == b].sum()) for b in range(bins)) / len(labels)


def average(of, average_of="macro"):
    return lambda y, p, g: of(y, g, average=average_of, zero_division=0)


def by_class(of):
    """The mean of one class against the others."""
    return lambda y, p, g: np.mean([of(y == c, p[:, c]) for c in range(p.shape[1])])


BOTH = ("multiclass", "binary", "multilabel")
ORACLES = {
    "accuracy": (BOTH, lambda y, p, g: (y == g).mean()),
    "f1_macro": (BOTH, average(sk.f1_score)),
    "f1_micro": (BOTH, average(sk.f1_score, "micro")),
    "precision_macro": (BOTH, average(sk.precision_score)),
    "precision_micro": (BOTH, average(sk.precision_score, "micro")),
    "recall_macro": (BOTH, average(sk.recall_score)),
    "recall_micro": (BOTH, average(sk.recall_score, "micro")),
    "f1": (("binary",), lambda y, p, g: sk.f1_score(y, g)),
    "precision": (("binary",), lambda y, p, g: sk.precision_score(y, g)),
    "recall": (("binary",), lambda y, p, g: sk.recall_score(y, g)),
    "balanced_accuracy": (("multiclass", "binary"), lambda y, p, g: sk.balanced_accuracy_score(y, g)),
    "mean_iou": (BOTH, average(sk.jaccard_score)),
    "auroc": (BOTH, lambda y, p, g: sk.roc_auc_score(y, p, multi_class="ovr")),
    "average_precision": (("binary", "multilabel"), lambda y, p, g: sk.average_precision_score(y, p)),
    "ece": (("multiclass", "binary"), binned),
    "perplexity": (("multiclass",), lambda y, p, g: math.exp(sk.log_loss(y, p))),
    "mse": (("regression",), lambda y, p, g: sk.mean_squared_error(y, p)),
    "rmse": (("regression",), lambda y, p, g: math.sqrt(sk.mean_squared_error(y, p))),
    "mae": (("regression",), lambda y, p, g: sk.mean_absolute_error(y, p)),
    "r2": (("regression",), lambda y, p, g: sk.r2_score(y, p)),
}
CASES = [(name, kind, oracle) for name, (kinds, oracle) in ORACLES.items() for kind in kinds]
CASES += [("average_precision", "multiclass", by_class(sk.average_precision_score))]


@pytest.mark.parametrize(
    ("name", "kind", "oracle"), CASES, ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_metric_is_scikit_learns_for_any_size_of_batches(name, kind, oracle):
    expected = float(oracle(*sides(kind)))
    for size in (1, 7, SAMPLES):
        found = judged(name, kind, size)
        assert found[name] == pytest.approx(expected, abs=1e-9) and next(iter(found)) == name


def test_every_metric_has_an_oracle_and_cites_its_source():
    classes = METRICS.classes()
    assert classes.keys() == ORACLES.keys()
    for name, cls in classes.items():
        made = cls()
        assert made.label == name and made.specs(2)[0].higher_is_better == (
            name not in ("ece", "perplexity", "mse", "rmse", "mae")
        )


OF_TORCHMETRICS = [
    ("f1_macro", "multiclass", of_classes.MulticlassF1Score, {"num_classes": CLASSES}),
    ("auroc", "multiclass", of_classes.MulticlassAUROC, {"num_classes": CLASSES}),
    ("average_precision", "multiclass", of_classes.MulticlassAveragePrecision, {"num_classes": CLASSES}),
    ("ece", "multiclass", of_classes.MulticlassCalibrationError, {"num_classes": CLASSES}),
    ("mean_iou", "multiclass", of_classes.MulticlassJaccardIndex, {"num_classes": CLASSES}),
    ("auroc", "binary", of_classes.BinaryAUROC, {}),
    ("ece", "binary", of_classes.BinaryCalibrationError, {}),
    ("f1_macro", "multilabel", of_classes.MultilabelF1Score, {"num_labels": 3}),
    ("auroc", "multilabel", of_classes.MultilabelAUROC, {"num_labels": 3}),
    ("r2", "regression", of_numbers.R2Score, {}),
    ("mae", "regression", of_numbers.MeanAbsoluteError, {}),
]


@pytest.mark.parametrize(("name", "kind", "cls", "options"), OF_TORCHMETRICS)
def test_a_class_of_torchmetrics_joins_batches_by_its_own_rules(name, kind, cls, options):
    """It is told the number of classes or labels. Some of its ratios are in 32 bits, so ours are nearer."""
    labels, values, _ = map(torch.from_numpy, sides(kind))
    expected = float(cls(**options).set_dtype(torch.float64)(values, labels))
    for size in (7, SAMPLES):
        label, found = next(iter(judged(name, kind, size, cls=cls).items()))
        assert found == pytest.approx(expected, rel=1e-9)
        assert label == re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    assert judged(name, kind)[name] == pytest.approx(expected, rel=1e-6)


POOLED = [(name, kind, METRICS.find(name), {}) for name, kind, _ in CASES]
POOLED += [
    *OF_TORCHMETRICS,
    ("kappa", "multiclass", of_classes.MulticlassCohenKappa, {"num_classes": CLASSES}),
    ("mape", "regression", of_numbers.MeanAbsolutePercentageError, {}),
    ("spearman", "one number", of_numbers.SpearmanCorrCoef, {}),
    ("pearson", "one number", of_numbers.PearsonCorrCoef, {}),
]


@pytest.mark.parametrize(("name", "kind", "cls", "options"), POOLED)
def test_nodes_with_uneven_samples_have_the_number_of_all_samples(name, kind, cls, options):
    """Each node has samples of another size, one of them a single sample, and batches of another size."""
    (_, outputs, labels), kind = TASKS[kind.replace("one number", "regression")], kind
    if kind == "one number":
        outputs, labels, kind = outputs[:, 0], labels[:, 0], "regression"
    outputs = outputs[:, 0] if kind == "binary" else outputs
    whole, pool = (metric_of(cls, {}) for _ in range(2))
    whole.add(Predictions(kind, outputs, labels))
    starts = 0, 1, 4, 44, SAMPLES
    for size, (start, end) in enumerate(pairwise(starts), 3):
        of_node = metric_of(cls, {})
        for at in range(start, end, size):
            rows = slice(at, min(at + size, end))
            of_node.add(Predictions(kind, outputs[rows], labels[rows]))
        pool.join(unpacked(packed(of_node.state_dict())))
    expected = whole.values()
    assert pool.values() == pytest.approx(expected, abs=1e-9) and all(map(math.isfinite, expected.values()))
    nothing = metric_of(cls, {})
    nothing.join(unpacked(packed(metric_of(cls, {}).state_dict())))
    assert all(map(math.isnan, nothing.values().values()))


def near(values, labels, distance=1):
    """How many guesses are at most one class off."""
    return ((values.argmax(1) - labels).abs() <= distance).double().mean()


def failing(values, labels):
    raise ArithmeticError("no number today")


def test_a_function_gets_all_samples_at_once():
    labels, _, guesses = sides("multiclass")
    expected = (abs(guesses - labels) <= 1).mean()
    assert judged(None, "multiclass", cls=near)["near"] == pytest.approx(expected, abs=1e-12)
    options = {"distance": 0, "label": "exact", "higher_is_better": False, "is_fraction": True}
    assert judged(None, "multiclass", options=options, cls=near)["exact"] == (guesses == labels).mean()
    assert metric_of(near, options).specs(4) == (("exact", False, True),)
    with pytest.raises(BadInput, match=r"^metric failing raises ArithmeticError: no number today"):
        judged(None, "multiclass", cls=failing)


@dataclass(kw_only=True)
class Wrong(Measure):
    """How many guesses are wrong."""

    higher_is_better: bool | None = False

    def state(self, predictions):
        return (predictions.classes != predictions.labels).sum()

    def value(self, state):
        return state


PER_CLASS = {"per_class": True}


def test_a_class_without_samples_has_no_number_and_is_no_part_of_a_mean():
    outputs, labels = MULTICLASS
    few = labels.clamp(max=CLASSES - 2)
    never = outputs.clone()
    never[:, CLASSES - 1] = -9.0
    found = judged("f1_macro", "multiclass", options=PER_CLASS, outputs=never, labels=few)
    each = sk.f1_score(few, never.argmax(1), average=None)
    assert [found[f"f1_of_{c}"] for c in range(CLASSES - 1)] == pytest.approx(each, abs=1e-9)
    assert math.isnan(found["f1_of_3"]) and found["f1_macro"] == pytest.approx(each.mean(), abs=1e-9)
    # Where it is predicted, it counts.
    found = judged("f1_macro", "multiclass", options=PER_CLASS, labels=few)
    assert found["f1_of_3"] == 0.0
    assert found["f1_macro"] == pytest.approx(sk.f1_score(few, outputs.argmax(1), average="macro"), abs=1e-9)
    found = judged("auroc", "multiclass", options=PER_CLASS, labels=few)
    each = [sk.roc_auc_score(few == c, outputs.softmax(1)[:, c]) for c in range(CLASSES - 1)]
    assert math.isnan(found["auroc_of_3"]) and found["auroc"] == pytest.approx(np.mean(each), abs=1e-9)
    assert all(math.isnan(judged("auroc", "binary", labels=ONE_LOGIT[1] * 0)[name]) for name in ("auroc",))


def test_outputs_of_several_numbers_have_one_each():
    outputs, labels = (part.numpy() for part in NUMBERS)
    pairs = ("rmse", sk.mean_squared_error), ("mae", sk.mean_absolute_error), ("r2", sk.r2_score)
    for name, of in pairs:
        each = of(labels, outputs, multioutput="raw_values")
        each = np.sqrt(each) if name == "rmse" else each
        found = judged(name, "regression", options=PER_CLASS)
        assert [found[f"{name}_of_{c}"] for c in range(3)] == pytest.approx(each, rel=1e-9)


def test_a_listed_metric_is_as_detailed_as_the_task_has_it():
    names = [spec.name for spec in specs_of(Regression(per_output=True), [METRICS.find("mae")], 0, 2)]
    assert names == ["mae", "mae_of_0", "mae_of_1", "rmse", "rmse_of_0", "rmse_of_1", "r2", *names[7:]]


@pytest.mark.parametrize("name", ["f1_macro", "accuracy", "auroc"])
def test_labels_that_do_not_count_are_in_no_metric_and_no_loss(name):
    outputs, labels = SEVERAL
    some = labels.clone()
    some[::3, 1], some[5] = IGNORED, IGNORED
    found = judged(name, "multilabel", options=PER_CLASS if name != "accuracy" else (), labels=some)
    counted = (some != IGNORED).numpy()
    if name == "accuracy":
        expected = ((outputs > 0) == some)[counted].double().mean().item()
        assert found["accuracy"] == pytest.approx(expected, abs=1e-12)
    else:
        of = sk.f1_score if name == "f1_macro" else sk.roc_auc_score
        values = (outputs > 0).numpy() if name == "f1_macro" else outputs.numpy()
        each = [of(some[counted[:, c], c], values[counted[:, c], c]) for c in range(3)]
        assert found[name] == pytest.approx(np.mean(each), abs=1e-9)
    loss = nn.functional.binary_cross_entropy_with_logits(outputs[counted], some[counted].double())
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-9)
    pixels = drawn(6, CLASSES, 5, 5), torch.from_numpy(RANDOM.integers(CLASSES, size=(6, 5, 5)))
    masks = pixels[1].masked_fill(torch.rand(6, 5, 5) < 0.3, IGNORED)
    masks[2] = IGNORED
    samples = Samples(torch.arange(6)[:, None].int(), masks)
    objective = Objective(Given(pixels[0]), nn.CrossEntropyLoss(), Segmentation(per_class=True))
    kept, guesses = masks != IGNORED, pixels[0].argmax(1)
    found = evaluate(objective, samples, 2)
    each = sk.jaccard_score(masks[kept], guesses[kept], average=None)
    assert list(found.values())[:-1] == pytest.approx(
        [each.mean(), *each, (masks == guesses)[kept].double().mean().item()], abs=1e-9
    )
    assert list(found) == ["mean_iou", *(f"iou_of_{c}" for c in range(CLASSES)), "pixel_accuracy", "loss"]


def test_outputs_that_are_not_finite_and_no_samples_have_no_numbers():
    for kind, (_, outputs, labels) in TASKS.items():
        broken = outputs.clone()
        broken[50, 0] = math.inf if kind == "binary" else math.nan
        for name, (kinds, _) in ORACLES.items():
            if kind in kinds and (name, kind) != ("accuracy", "multiclass"):  # that of the task
                assert math.isnan(judged(name, kind, outputs=broken)[name])
        if kind != "regression":
            nothing = torch.full_like(labels, IGNORED)
            assert all(math.isnan(value) for value in judged("accuracy", kind, labels=nothing).values())


def run_of(**changes):
    inputs, labels = MULTICLASS[0].float(), MULTICLASS[1]
    values = {
        "graph": {"name": "ring", "nodes": 3},
        "rounds": 1,
        "communication": "inproc",
        "dataset": ((inputs, labels), (inputs, labels)),
        "model": nn.Linear(inputs.shape[1], CLASSES),
        "training": {"optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 4, "steps_per_round": 2},
    }
    return Experiment.from_settings(understand(document_of(values | changes)))


def test_a_run_has_named_metrics_functions_and_objects_of_torchmetrics(tmp_path):
    listed = [
        {"name": "f1_macro", "per_class": True},
        near,
        {
            "name": "tests.training.test_metrics:near", "distance": 0, "label": "exactly", "is_fraction": True
        },
        of_classes.MulticlassCohenKappa(CLASSES),
        {"name": "torchmetrics.classification:MulticlassF1Score", "average": "micro", "label": "micro"},
        "tests.training.test_metrics:Wrong",
        "accuracy",
    ]  # fmt: skip
    experiment = run_of(**{"evaluation.metrics": listed, "evaluation.target": {"exactly": 0.9}})
    each = [f"f1_of_{c}" for c in range(CLASSES)]
    names = ["f1_macro", *each, "near", "exactly", "multiclass_cohen_kappa", "micro"]
    names += ["Wrong", "accuracy", "loss"]
    assert [metric.name for metric in experiment.plan.metrics] == names
    assert [metric.name for metric in experiment.plan.metrics if metric.is_fraction] == [
        "f1_macro", *each, "exactly", "multiclass_cohen_kappa", "micro", "accuracy"
    ]  # fmt: skip
    nodes = Nodes(experiment, tmp_path / "run").begin().run(0, 1)
    for node in nodes.nodes:
        scores = node.evaluation.scores
        assert list(scores) == names
        assert scores["micro"] == pytest.approx(scores["accuracy"], abs=1e-12)
        assert scores["Wrong"] == pytest.approx(SAMPLES * (1 - scores["accuracy"]), abs=1e-9)
        assert scores["exactly"] == pytest.approx(scores["accuracy"], abs=1e-12)


def test_own_test_samples_of_all_nodes_are_judged_together(tmp_path):
    """Each by its own node; a piece that is lost leaves no number."""
    names = ["f1_macro", "near", "auroc", "multiclass_cohen_kappa"]
    listed = ["f1_macro", near, "auroc", of_classes.MulticlassCohenKappa(10)]
    partition = {"name": "sizes", "sizes": [0.6, 0.3, 0.1]}
    dataset = {"name": "digits", "train_size": 200, "test_size": 300, "partition": partition}
    tests = {"evaluation.metrics": listed, "evaluation.node_test_split": True}
    experiment = run_of(dataset=dataset, model={"name": "mlp", "hidden": []}, **tests)
    plan, seen = experiment.plan, []
    assert [metric.name for metric in plan.metrics][-4:] == [f"local_pooled_{name}" for name in names]
    log = EvaluationLog(tmp_path / "evaluations.jsonl", plan.pool)
    for node in Nodes(experiment, tmp_path / "run").begin().run(0, 1).nodes:
        objective, own = node.training.objective, plan.local[node.rank]
        scores = plan.measured(
            0, partial(evaluate, objective, batch_size=7, metrics=plan.listed), rank=node.rank
        )
        pieces = [*plan.pieces(node.rank, 0, scores)]
        assert len(pieces) > 1
        for round, kept in enumerate((pieces[::-1], pieces[1:])):
            log.add(Published(node.rank, round, 0.0, 0, 0.0, published=False))
            for piece in kept:
                log.add(msgspec.structs.replace(piece, round=round))
            log.add(Evaluated(node.rank, round, dict(scores)))
        batch = own.batch(torch.arange(len(own)))
        seen.append(objective.predictions(objective(batch)[0].detach(), batch))
    sizes = [len(part.labels) for part in seen]
    assert sorted(sizes) != sizes and sum(sizes) == 300
    whole = Predictions.joined(seen)
    y, p, g = whole.labels.numpy(), whole.values.numpy(), whole.classes.numpy()
    expected = (
        sk.f1_score(y, g, average="macro"),
        (abs(y - g) <= 1).mean(),
        sk.roc_auc_score(y, p, multi_class="ovr"),
    )
    rows = log.complete({0: 1, 1: 1, 2: 1}, observed=False)
    for name, number in zip(names, (*expected, sk.cohen_kappa_score(y, g)), strict=True):
        assert rows[0].values(f"local_pooled_{name}") == pytest.approx([number] * 3, abs=1e-9)
        assert rows[1].values(f"local_pooled_{name}") == [None] * 3


def test_what_does_not_fit_the_samples_is_refused_before_the_start(monkeypatch):
    for listed, message in {
        "f1": "f1 is of one class of two; use f1_macro or f1_micro",
        "tests.training.test_metrics:failing": "metric failing raises ArithmeticError: no number today",
        "torchmetrics.classification:MultilabelF1Score": "metric multilabel_f1_score raises ",
    }.items():
        with pytest.raises(BadInput) as error:
            run_of(**{"evaluation.metrics": [listed]})
        assert str(error.value).startswith(f"evaluation.metrics[0]: {message}")
    of_classes_each = {"name": "torchmetrics.classification:MulticlassF1Score", "average": "none"}
    with pytest.raises(BadInput, match=r"gives 4 numbers; it must give one, such as with average: macro$"):
        run_of(**{"evaluation.metrics": [of_classes_each]})
    monkeypatch.setattr("decentnode.node.evaluation.MOST_KEPT", SAMPLES * CLASSES - 1)
    with pytest.raises(BadInput, match="near would keep 404 predicted numbers until the end"):
        run_of(**{"evaluation.metrics": ["f1_macro", near]})
