"""Networks with several outputs: the main one is judged, others are trained by their weights."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decentnode.config.loader import understand
from decentnode.config.python_source import document_of
from decentnode.datasets.base import Samples
from decentnode.errors import BadInput
from decentnode.models.outputs import main_output, named_outputs
from decentnode.node.experiment import Experiment
from decentnode.training.evaluation import evaluate
from decentnode.training.objective import Objective
from decentnode.training.tasks import Classification
from tests.support.in_process import Nodes
from tests.training.test_tasks import drawn

InceptionOutputs = namedtuple("InceptionOutputs", ["logits", "aux_logits"])


class ModelOutput(OrderedDict):
    """Named as the class of transformers."""


FORMS = {
    "tuple": (lambda main, aux, own: (main, aux), (1.0, 0.4)),
    "list": (lambda main, aux, own: [main, aux], {"1": 0.4}),
    "named tuple": (lambda main, aux, own: InceptionOutputs(main, aux), {"aux_logits": 0.4}),
    "of segmentation": (lambda main, aux, own: {"aux": aux, "out": main}, {"aux": 0.4}),
    "of transformers": (
        lambda main, aux, own: ModelOutput(loss=own, logits=main, aux=aux, past=None),
        {"aux": 0.4, "loss": 0.0},
    ),
    "a loss of its own": (lambda main, aux, own: ModelOutput(loss=own, logits=main), {"loss": 2.0}),
    "its own alone": (lambda main, aux, own: {"loss": own, "logits": main}, {"logits": 0, "loss": 1}),
    "no weights": (lambda main, aux, own: {"loss": own, "logits": main, "hidden": aux}, None),
    "its own by labels": (
        lambda main, aux, own: ModelOutput(logits=main, loss=cross_entropy(main, own)),
        {"logits": 0, "loss": 1},
    ),
    "a tensor": (lambda main, aux, own: main, None),
}


OWN_BY_LABELS = FORMS["its own by labels"][0]


class Several(nn.Module):
    """A network with an auxiliary head, and a penalty as its own loss, or what it computes of labels."""

    def __init__(self, form=FORMS["tuple"][0], always=True):
        super().__init__()
        self.main, self.head = nn.Linear(4, 3), nn.Linear(4, 3)
        self.form, self.always = form, always

    def forward(self, inputs, labels=None):
        main = self.main(inputs)
        if not (self.training or (self.always and self.form is not OWN_BY_LABELS)):
            return main
        own = labels if self.form is OWN_BY_LABELS else self.main.weight.square().sum()
        return self.form(main, self.head(inputs), own)


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_auxiliary_outputs_have_their_weights_in_training_alone(name, always):
    form, weights = FORMS[name]
    torch.manual_seed(1)
    network = Several(form, always)
    samples = Samples(drawn(8, 4).float(), torch.arange(8) % 3)
    objective = Objective(network, nn.CrossEntropyLoss(), Classification(), weights=weights)
    batch = samples.batch(torch.arange(8))
    outputs, loss = objective(batch)
    main, aux = (cross_entropy(part(samples.inputs), samples.labels) for part in (network.main, network.head))
    own = network.main.weight.square().sum()
    expected = main + 0.4 * aux
    expected = {"a loss of its own": main + 2 * own, "its own alone": own, "its own by labels": main}.get(
        name, expected
    )
    expected = main if weights is None else expected
    assert torch.equal(outputs, network.main(samples.inputs))
    assert torch.allclose(loss, expected, rtol=1e-6)
    assert evaluate(objective, samples)["loss"] == pytest.approx(main.item(), rel=1e-6)


def test_scores_of_tokens_of_transformers_have_their_classes_first():
    logits = torch.zeros(2, 5, 7)
    assert main_output(ModelOutput(logits=logits)).shape == (2, 7, 5)
    assert main_output({"logits": logits}).shape == (2, 5, 7)
    assert list(named_outputs(ModelOutput(loss=None, logits=logits))) == ["logits", "loss"]


def experiment_of(**changes):
    inputs, labels = drawn(60, 4).float(), torch.arange(60) % 3
    values = {
        "graph": {"name": "ring", "nodes": 3},
        "rounds": 2,
        "dataset": ((inputs[:48], labels[:48]), (inputs[48:], labels[48:])),
        "model": Several(),
        "training": {"optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 4, "steps_per_round": 2},
        "communication": "inproc",
    }
    return Experiment.from_settings(understand(document_of(values | changes)))


def test_a_run_trains_them(tmp_path):
    torch.manual_seed(1)
    models = {}
    for name, weights in {"none": None, "equal": [1, 1], "batches": {"1": 1}}.items():
        torch.manual_seed(1)
        execution = {"batches": 3} if name == "batches" else "alone"
        training = {"training.loss_weights": weights, "training.execution": execution}
        experiment = experiment_of(model=Several(), **training)
        models[name] = Nodes(experiment, tmp_path / name).begin().run(0, 2).models
    head = slice(15, 27)
    assert torch.allclose(models["none"][:, head], experiment.network.head.weight.flatten(), atol=1e-6)
    assert not torch.allclose(models["none"][:, head], models["equal"][:, head])
    assert torch.allclose(models["equal"], models["batches"], rtol=1e-4, atol=1e-6)


def test_weights_of_outputs_that_there_are_not_are_refused():
    batch = Samples(drawn(4, 4).float(), torch.arange(4) % 3).batch(torch.arange(4))
    for weights, name in ({"aux_logits": 0.4}, ".aux_logits"), ((1.0, 0.5, 0.5), "[2]"):
        objective = Objective(Several(), nn.CrossEntropyLoss(), Classification(), weights=weights)
        with pytest.raises(BadInput) as error:
            objective(batch)
        what = "the model gives no such output in training (it gives 0, 1)"
        assert str(error.value) == f"training.loss_weights{name}: {what}"
