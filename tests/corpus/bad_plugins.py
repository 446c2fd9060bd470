"""Plug-ins of one's own that do what they must not; each is named with its method and its line."""

DATA = """\
from dataclasses import dataclass

import torch

from decentnode.datasets import Dataset, LoadedDataset, Samples


@dataclass(kw_only=True)
class Mine(Dataset):
    defect: str = ""

    def read(self, seed):
        made = {"x": torch.randn(400, 6), "y": torch.arange(400) % 3, "classes": 3, "more": {}}
        exec(self.defect, {"torch": torch}, made)
        train = Samples(made["x"], made["y"], **made["more"])
        test = Samples(torch.zeros(9, 6), torch.zeros(9).long())
        return LoadedDataset(train, test, made["classes"], (6,))


@dataclass(kw_only=True)
class Fails(Dataset):
    def read(self, seed):
        return {}["x"]


@dataclass(kw_only=True)
class Nothing(Dataset):
    def read(self, seed):
        pass


@dataclass(kw_only=True)
class Tokens(Dataset):
    def read(self, seed):
        ids = torch.randint(12, (60, 5), generator=torch.Generator().manual_seed(seed))
        samples = Samples(ids, (ids + 1) % 4)
        return LoadedDataset(samples, samples, 4, (5,))


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 4)

    def forward(self, ids):
        return self.linear(self.embedding(ids)).movedim(-1, 1)


class Pooled(Tagger):
    def forward(self, ids):
        return super().forward(ids).mean(-1)
"""
DIGITS = "{name: digits, partition: {name: dirichlet, alpha: 0.5}}"
MODEL = "{name: mlp, hidden: [8]}"


def defect(code: str) -> str:
    """The data set with a line of code that spoils it."""
    return f'{{name: "corpus_data:Mine", defect: "{code}"}}'


LABEL = "8 dataset: the training label of sample"
DATASETS: dict[str, tuple[str, str, list[str]]] = {
    "a label too high": (DIGITS, defect("y[7] = 3"), [f"{LABEL} 7 is 3; it must be one of 0..2"]),
    "a negative label": (DIGITS, defect("y[7:] = -1"), [f"{LABEL} 7 is -1; it must be one of 0..2"]),
    "labels of the wrong type": (
        DIGITS,
        defect("y = y.float()"),
        ["8 dataset: the training labels are numbers, so num_classes must be 1, not 3"],
    ),
    "one input that is none": (
        DIGITS,
        defect("x[5, 2], x[9, 1] = float('nan'), float('inf')"),
        ["8 dataset: the training inputs of 2 samples are not finite, first those of sample 5"],
    ),
    "fewer labels than inputs": (
        DIGITS,
        defect("y = y[:300]"),
        ["8 dataset: the training set has 300 labels for 400 inputs; there must be one row for each"],
    ),
    "other groups than samples": (
        DIGITS,
        defect("more = dict(groups=torch.zeros(3))"),
        ["8 dataset: the training set has 3 groups for 400 samples; there must be one for each"],
    ),
    "an array of numpy": (
        DIGITS,
        defect("x = x.numpy()"),
        ["8 dataset: the training inputs are ndarray; they must be a torch.Tensor with one row ..."],
    ),
    "another shape than it says": (
        DIGITS,
        defect("x = x[:, :5]"),
        ["8 dataset: the training inputs have the shape (5,) each, the dataset has (6,)"],
    ),
    "no classes": (
        DIGITS,
        defect("classes = 0"),
        ["8 dataset: num_classes is 0; it must be a whole number from 1 on"],
    ),
    "several defects": (
        DIGITS,
        defect("y[7] = 3; x[:, 1] = float('inf')"),
        [f"{LABEL} 7 is 3; ...", "8 dataset: the training inputs of 400 samples are not finite, ..."],
    ),
    "ids that are normalized": (
        DIGITS,
        defect("x = x.int(); more = dict(std=torch.tensor(2.0))"),
        ["8 dataset: the training inputs are torch.int32, so ids, which are not normalized; leave out ..."],
    ),
    "an error in read": (
        DIGITS,
        "'corpus_data:Fails'",
        ["8 dataset: Fails.read raises KeyError: 'x' (...corpus_data.py:23, in Fails.read)"],
    ),
    "nothing read": (
        DIGITS,
        "'corpus_data:Nothing'",
        ["8 dataset: Nothing.read returns NoneType; it must return a LoadedDataset"],
    ),
    "one score for all tokens": (
        f"{DIGITS}\nmodel: {MODEL}",
        "'corpus_data:Tokens'\nmodel: 'corpus_data:Pooled'",
        ["9 model: Pooled gives (2, 4) for 2 samples; it must give (2, 4, 5)"],
    ),
    "tokens dealt by their label": (
        DIGITS,
        "{name: 'corpus_data:Tokens', partition: {name: shards}}",
        ["8 dataset.partition: deals samples by their label, and here each has several; use iid or natural"],
    ),
}
"""Of the configuration BASE: what to replace, by what, and the lines that follow `x.yaml:`."""

CODE = """\
from dataclasses import dataclass
from typing import ClassVar

import torch

from decentnode.graph.base import StaticGraph
from decentnode.graph.mixing import Mixing
from decentnode.core.payload import Form, Payload
from decentnode.sharing import Gossip
from decentnode.transforms.base import Transform


@dataclass
class NoOut(Gossip):
    def mix(self, vector, incoming, view, out):
        out[1:] = vector[1:]


@dataclass
class InPlace(Gossip):
    def mix(self, vector, incoming, view, out):
        super().mix(vector, incoming, view, out)
        vector.copy_(out)


@dataclass
class Early(Gossip):
    def outgoing(self, vector, view):
        vector.mul_(2)
        return super().outgoing(vector, view)


@dataclass
class Fails(Gossip):
    def mix(self, vector, incoming, view, out):
        return incoming[99]


@dataclass
class Unlaid(Gossip):
    def payload_layout(self, phase=0):
        raise KeyError(phase)


@dataclass
class Astray(Gossip):
    def outgoing(self, vector, view):
        return {99: Payload.dense(vector)}


@dataclass
class Half(Gossip):
    def outgoing(self, vector, view):
        return {j: Payload.dense(vector[1:].clone()) for j in view.targets}


@dataclass
class Twice(Gossip):
    async def share(self, vector, view, exchange, out):
        for _ in range(2):
            self.mix(vector, await exchange(self.outgoing(vector, view), view.sources), view, out)


@dataclass
class Adjusts(Gossip):
    @property
    def adjust_gradient(self):
        return self._adjust

    def _adjust(self, gradient, vector, step):
        gradient.add_(torch.ones(3))


@dataclass
class Code(Transform):
    accepts: ClassVar = frozenset({Form.DENSE})
    emits: ClassVar = Form.DENSE

    def layout(self, input_layout):
        return input_layout

    def encode(self, payload, context):
        return Payload.dense(payload["vector"].clone())

    def decode(self, payload, context):
        return payload


@dataclass
class Greedy(Code):
    def encode(self, payload, context):
        payload["vector"].mul_(2)
        return Payload.dense(payload["vector"].clone())


@dataclass
class Other(Code):
    def encode(self, payload, context):
        return Payload.dense(payload["vector"].double())


@dataclass
class Short(Code):
    def decode(self, payload, context):
        return Payload.dense(payload["vector"][1:].clone())


@dataclass
class Undecided(Code):
    def decode(self, payload, context):
        return payload["values"]


class Shapes(Code):
    def layout(self, input_layout):
        return input_layout.shape


@dataclass
class Lonely(StaticGraph):
    @property
    def adjacency(self):
        return {}[0]


@dataclass
class Weights(Mixing):
    def incoming(self, graph, rank, round):
        return {}[rank]


class Stuck(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def forward(self, x):
        return super().forward(x).detach() if self.training else super().forward(x)


class Picky(Stuck):
    def forward(self, x):
        return torch.nn.Sequential.forward(self, x if not self.training else x[:, :, 1:])
"""
SHARING = "{name: gossip, weights: metropolis_hastings}"
GRAPH = "{name: file, path: ring.edges}"


def own(name: str) -> str:
    """One of the classes above, as YAML names it."""
    return f"'corpus_code:{name}'"


def transform(name: str) -> str:
    """Gossip with a transform of its own behind another one."""
    return f"{{name: gossip, transforms: [{{name: clip, norm: 9}}, {own(name)}]}}"


PLUGINS: dict[str, tuple[str, str, list[str]]] = {
    "a mix that forgets to write out": (
        SHARING,
        own("NoOut"),
        [
            "14 sharing: NoOut.mix leaves 1 of 610 elements of out unwritten, or makes them NaN; write the "
            "new model into all of out"
        ],
    ),
    "a mix that writes vector": (
        SHARING,
        own("InPlace"),
        ["14 sharing: InPlace.mix writes to vector, which peers may still read; write to out"],
    ),
    "an outgoing that writes vector": (
        SHARING,
        own("Early"),
        ["14 sharing: Early.outgoing writes to vector, which peers may still read; make a copy"],
    ),
    "a mix that raises": (
        SHARING,
        own("Fails"),
        ["14 sharing: Fails.mix raises KeyError: 99 (...corpus_code.py:36, in Fails.mix)"],
    ),
    "a payload layout that raises": (
        SHARING,
        own("Unlaid"),
        ["14 sharing: Unlaid.payload_layout raises KeyError: 0 (...corpus_code.py:42, ...)"],
    ),
    "a payload for nobody": (
        SHARING,
        own("Astray"),
        ["14 sharing: Astray.outgoing sends to rank 99, which is not in view.targets"],
    ),
    "a payload of another layout": (
        SHARING,
        own("Half"),
        ["14 sharing: Half.outgoing gives another payload than payload_layout(0) declares"],
    ),
    "two exchanges in a round of one": (
        SHARING,
        own("Twice"),
        ["14 sharing: Twice exchanges more than 1 times; let its promises have phases=2"],
    ),
    "an adjusted gradient of another shape": (
        SHARING,
        own("Adjusts"),
        ["14 sharing: Adjusts._adjust raises RuntimeError: ... (...corpus_code.py:71, in Adjusts._adjust)"],
    ),
    "an encode that writes its input": (
        SHARING,
        transform("Greedy"),
        ["14 sharing.transforms[1]: Greedy.encode changes the memory that it was given; make a copy"],
    ),
    "an encode of another layout": (
        SHARING,
        transform("Other"),
        ["14 sharing.transforms[1]: Other.encode gives another payload than its layout() declares"],
    ),
    "a decode of another shape": (
        SHARING,
        transform("Short"),
        ["14 sharing.transforms: decode gives a vector of shape (609,); it must be (610,)"],
    ),
    "a decode that raises": (
        SHARING,
        transform("Undecided"),
        ["14 sharing.transforms: Undecided.decode raises KeyError: 'values' (...corpus_code.py:..."],
    ),
    "a layout that raises": (
        SHARING,
        transform("Shapes"),
        ["sharing.transforms: Shapes.layout raises AttributeError: ... (...corpus_code.py:..."],
    ),
    "a graph that raises": (
        GRAPH,
        own("Lonely"),
        ["graph: Lonely.adjacency raises KeyError: 0 (...corpus_code.py:..."],
    ),
    "weights that raise": (
        SHARING,
        f"{{name: gossip, weights: {own('Weights')}}}",
        ["14 sharing.weights: Weights.incoming raises KeyError: 0 (...corpus_code.py:..."],
    ),
    "a model without gradients": (
        MODEL,
        own("Stuck"),
        ["9 model: the loss of Stuck in training mode has no gradient; detach nothing in it"],
    ),
    "a model that fails in training alone": (
        MODEL,
        own("Picky"),
        ["9 model: Picky.forward raises RuntimeError: ... (...corpus_code.py:..."],
    ),
}
