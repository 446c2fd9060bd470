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

DATASETS = r"""
= {name: digits, partition: {name: dirichlet, alpha: 0.5}}
{name: "corpus_data:Mine", defect: "y[7] = 3"}
    | 8 dataset | the training label of sample 7 is 3; it must be one of 0..2
{name: "corpus_data:Mine", defect: "y[7:] = -1"}
    | 8 dataset | the training label of sample 7 is -1; it must be one of 0..2
{name: "corpus_data:Mine", defect: "y = y.float()"}
    | 8 dataset | the training labels are numbers, so num_classes must be 1, not 3
{name: "corpus_data:Mine", defect: "x[5, 2], x[9, 1] = float('nan'), float('inf')"}
    | 8 dataset | the training inputs of 2 samples are not finite, first those of sample 5
{name: "corpus_data:Mine", defect: "y = y[:300]"}
    | 8 dataset | the training set has 300 labels for 400 inputs; there must be one row for each
{name: "corpus_data:Mine", defect: "more = dict(groups=torch.zeros(3))"}
    | 8 dataset | the training set has 3 groups for 400 samples; there must be one for each
{name: "corpus_data:Mine", defect: "x = x.numpy()"}
    | 8 dataset | the training inputs are ndarray; they must be a torch.Tensor with one row ...
{name: "corpus_data:Mine", defect: "x = x[:, :5]"}
    | 8 dataset | the training inputs have the shape (5,) each, the dataset has (6,)
{name: "corpus_data:Mine", defect: "classes = 0"}
    | 8 dataset | num_classes is 0; it must be a whole number from 1 on
{name: "corpus_data:Mine", defect: "y[7] = 3; x[:, 1] = float('inf')"}
    | 8 dataset | the training label of sample 7 is 3; ...
    | 8 dataset | the training inputs of 400 samples are not finite, ...
{name: "corpus_data:Mine", defect: "x = x.int(); more = dict(std=torch.tensor(2.0))"}
    | 8 dataset | the training inputs are torch.int32, so ids, which are not normalized; leave out ...
'corpus_data:Fails' | 8 dataset | Fails.read raises KeyError: 'x' (...corpus_data.py:23, in Fails.read)
'corpus_data:Nothing' | 8 dataset | Nothing.read returns NoneType; it must return a LoadedDataset
{name: 'corpus_data:Tokens', partition: {name: shards}}
    | 8 dataset.partition | deals samples by their label, and here each has several; use iid or natural

= {name: digits, partition: {name: dirichlet, alpha: 0.5}}\nmodel: {name: mlp, hidden: [8]}
'corpus_data:Tokens'\nmodel: 'corpus_data:Pooled'
    | 9 model | Pooled gives (2, 4) for 2 samples; it must give (2, 4, 5)
"""
"""Edits of the configuration BASE, and what follows `x.yaml:`."""

CODE = """\
from dataclasses import dataclass
from typing import ClassVar

import torch

from decentnode.graph.base import StaticGraph
from decentnode.graph.mixing import Mixing
from decentnode.core.payload import Form, Payload
from decentnode.errors import Defect, GraphError
from decentnode.sharing import Gossip
from decentnode.sharing.base import Sharing
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
class Defective(StaticGraph):
    nodes: int = 4

    @property
    def adjacency(self):
        raise GraphError("one thing", Defect(("nodes",), "another thing"))


@dataclass
class Unfinished(Sharing):
    pass


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

PLUGINS = r"""
= {name: file, path: ring.edges}
'corpus_code:Lonely' | graph | Lonely.adjacency raises KeyError: 0 (...corpus_code.py:...
{name: 'corpus_code:Defective', nodes: 4} | 4 graph | one thing
    | 4 graph.nodes | another thing

= {name: mlp, hidden: [8]}
'corpus_code:Net' | 9 model | module 'corpus_code' has no class 'Net'
'corpus_code:Stuck' | 9 model | the loss of Stuck in training mode has no gradient; detach nothing in it
'corpus_code:Picky' | 9 model | Picky.forward raises RuntimeError: ... (...corpus_code.py:...

= name: gossip
name: 'corpus_code:Defective'
    | 14 sharing.name | 'corpus_code:Defective' is no sharing; it must be a subclass of
    + decentnode.sharing.base.Sharing or decentnode.sharing.asynchronous.base.AsyncSharing

= {name: gossip, weights: metropolis_hastings}
'corpus_code:Unfinished'
    | 14 sharing | Unfinished: Can't instantiate abstract class Unfinished with abstract methods mix, outgoing
'corpus_code:NoOut'
    | 14 sharing | NoOut.mix leaves 1 of 610 elements of out unwritten, or makes them NaN; write the new ...
'corpus_code:InPlace' | 14 sharing | InPlace.mix writes to vector, which peers may still read; write to out
'corpus_code:Early' | 14 sharing | Early.outgoing writes to vector, which peers may still read; make a copy
'corpus_code:Fails' | 14 sharing | Fails.mix raises KeyError: 99 (...corpus_code.py:38, in Fails.mix)
'corpus_code:Unlaid' | 14 sharing | Unlaid.payload_layout raises KeyError: 0 (...corpus_code.py:44, ...)
'corpus_code:Astray' | 14 sharing | Astray.outgoing sends to rank 99, which is not in view.targets
'corpus_code:Half' | 14 sharing | Half.outgoing gives another payload than payload_layout(0) declares
'corpus_code:Twice' | 14 sharing | Twice exchanges more than 1 times; let its promises have phases=2
'corpus_code:Adjusts'
    | 14 sharing | Adjusts._adjust raises RuntimeError: ... (...corpus_code.py:73, in Adjusts._adjust)
{name: gossip, transforms: [{name: clip, norm: 9}, 'corpus_code:Greedy']}
    | 14 sharing.transforms[1] | Greedy.encode changes the memory that it was given; make a copy
{name: gossip, transforms: [{name: clip, norm: 9}, 'corpus_code:Other']}
    | 14 sharing.transforms[1] | Other.encode gives another payload than its layout() declares
{name: gossip, transforms: [{name: clip, norm: 9}, 'corpus_code:Short']}
    | 14 sharing.transforms | decode gives a vector of shape (609,); it must be (610,)
{name: gossip, transforms: [{name: clip, norm: 9}, 'corpus_code:Undecided']}
    | 14 sharing.transforms | Undecided.decode raises KeyError: 'values' (...corpus_code.py:...
{name: gossip, transforms: [{name: clip, norm: 9}, 'corpus_code:Shapes']}
    | sharing.transforms | Shapes.layout raises AttributeError: ... (...corpus_code.py:...
{name: gossip, weights: 'corpus_code:Weights'}
    | 14 sharing.weights | Weights.incoming raises KeyError: 0 (...corpus_code.py:...
"""
"""Edits of BASE; in front of a line that begins with a digit stands `x.yaml:`."""
