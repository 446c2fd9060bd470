"""Small networks with what torch allows in a module, for images of 8 x 8 and ten classes (`matrix.py`)."""

import random
import threading
import warnings
import weakref
from types import MethodType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

WIDTH = 8


class Base(nn.Module):
    """Two linear layers, and what a subclass does between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)

    def between(self, h: Tensor) -> Tensor:
        """What happens to the hidden values, shape (batch, WIDTH)."""
        return h

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.last(self.between(self.first(images.flatten(1))).relu())
        return scores


class Plain(Base):
    """Nothing else."""


class HookedWeightNorm(Base):
    """The older weight norm, which keeps a computed tensor as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(self.first)


class WeightNorm(Base):
    """Weight norm as a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.first)


class HookedSpectralNorm(Base):
    """The older spectral norm, with a vector that each forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.spectral_norm(self.first)


class SpectralNorm(Base):
    """Spectral norm as a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.first)


class Orthogonal(Base):
    """An orthogonal weight."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.orthogonal(self.last)


class Pruned(Base):
    """Three tenths of the weights are masked."""

    def __init__(self) -> None:
        super().__init__()
        prune.random_unstructured(self.first, "weight", 0.3)


class Lazy(nn.Module):
    """Layers that learn their sizes from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.layers(images)
        return scores


class Tied(Base):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.other.weight = self.one.weight

    def between(self, h: Tensor) -> Tensor:
        other: Tensor = self.other(self.one(h))
        return other


class Frozen(Base):
    """A layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class Teacher(Base):
    """A frozen layer that follows another one."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(64, WIDTH).requires_grad_(False)
        self.teacher.load_state_dict(self.first.state_dict())

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            for slow, fast in zip(self.teacher.parameters(), self.first.parameters(), strict=True):
                slow.data.mul_(0.5).add_(fast.data, alpha=0.5)
        return super().forward(images) + 0.1 * self.last(self.teacher(images.flatten(1)))


class Unused(Base):
    """A layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)


class Scalar(Base):
    """A parameter without dimensions, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.nothing = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))

    def between(self, h: Tensor) -> Tensor:
        return h * self.scale + self.nothing.sum()


class Complex(Base):
    """Complex weights, and a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.cfloat))
        self.register_buffer("phase", torch.ones(1, dtype=torch.cfloat))

    def between(self, h: Tensor) -> Tensor:
        return (
            torch.fft.irfft(torch.fft.rfft(h.float()) * self.filter * self.phase, n=WIDTH) + self.bias.sum()
        )


class SparseEmbedding(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(17, 4, sparse=True), nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        levels = (images.flatten(1).clamp(0, 1) * 16).long()
        scores: Tensor = self.last(self.embedding(levels).flatten(1))
        return scores


class FunctionalEmbedding(SparseEmbedding):
    """The same by torch's function, of which DDP does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(self.embedding.weight.detach().clone())
        del self.embedding

    def forward(self, images: Tensor) -> Tensor:
        levels = (images.flatten(1).clamp(0, 1) * 16).long()
        scores: Tensor = self.last(nn.functional.embedding(levels, self.table, sparse=True).flatten(1))
        return scores


class SparseBuffers(Base):
    """A graph in two sparse formats."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.register_buffer("coordinates", torch.eye(WIDTH).to_sparse())
            self.register_buffer("rows", torch.eye(WIDTH).to_sparse_csr(), persistent=False)

    def between(self, h: Tensor) -> Tensor:
        return torch.sparse.mm(self.coordinates, h.T).T


class ExpandedBuffer(Base):
    """A buffer with one number for all places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((1,), 0.5).expand(WIDTH))

    def between(self, h: Tensor) -> Tensor:
        return h * self.scale


class SharedBuffer(Base):
    """One buffer of two modules, which steps replace."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.last.register_buffer("seen", self.seen)

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.seen = self.last.seen = 0.9 * self.seen + 0.1 * h.detach().mean(0)
        return h - self.last.seen


class GrowingBuffer(Base):
    """A table that is made longer when a larger batch comes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(1, WIDTH), persistent=False)

    def between(self, h: Tensor) -> Tensor:
        if len(self.table) < len(h):
            self.register_buffer("table", h.new_ones(len(h), WIDTH), persistent=False)
        return h * self.table[: len(h)]


class LateBuffer(Base):
    """A constant that the first forward pass makes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("constant", None)

    def between(self, h: Tensor) -> Tensor:
        if self.constant is None:
            self.constant = h.new_full((1, WIDTH), 0.01)
        return h + self.constant


class RunningMean(Base):
    """A running mean that begins with the first batch of training; the module replaces it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            mean = h.detach().mean(0)
            self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
        return h if self.mean is None else h - self.mean


class OtherBuffers(Base):
    """Integers that count, and a mask with infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        mask = torch.zeros(WIDTH)
        mask[0] = -torch.inf
        self.register_buffer("mask", mask)
        self.register_buffer("bits", torch.ones(WIDTH, dtype=torch.bool))

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return (h + self.mask).softmax(1) * self.bits * (1 + 0.01 * self.calls)


class ExtraState(Base):
    """State that is no tensor, and a tensor beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.sums = 0, [torch.zeros(WIDTH)]

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.sums = [self.sums[0] + h.detach().mean(0)]
        return h * (1 + 0.01 * self.calls) - 0.1 * self.sums[0].to(h)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "sums": self.sums, "name": "extra"}

    def set_extra_state(self, state: Any) -> None:
        self.calls, self.sums = state["calls"], state["sums"]


class Hooks(Base):
    """A hook whose function refers to the network, one of a gradient, and a function as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.ones(WIDTH))
        self.first.register_forward_hook(lambda module, given, made: self.found.append(made))
        self.shift.register_hook(lambda gradient: 0 * gradient)
        self.act = lambda h: h * self.scale

    def forward(self, images: Tensor) -> Tensor:
        self.found.clear()
        self.first(images.flatten(1))
        scores: Tensor = self.last(self.act(self.found[-1]) + self.shift)
        self.found.clear()
        return scores


class Compiled(Base):
    """A layer that torch.compile has wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.compile(self.last, backend="eager")  # type: ignore[assignment]


class Patched(Base):
    """A forward that was replaced by a method, a function with a default value, and a weak reference."""

    def __init__(self) -> None:
        super().__init__()
        original, self.reference = self.forward, weakref.ref(self.last)
        self.parts = (lambda h, part=self.first: part(h),)
        self.forward = MethodType(lambda self, images: original(images).float(), self)  # type: ignore[method-assign]

    def between(self, h: Tensor) -> Tensor:
        last = self.reference()
        assert last is not None
        return h + 0 * self.parts[0](h.new_zeros(len(h), 64)) + 0 * last.weight.sum()


class BatchNorm(Base):
    """Batch norm by a module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, h: Tensor) -> Tensor:
        normed: Tensor = self.norm(h)
        return normed


class FunctionalBatchNorm(Base):
    """Batch norm by torch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def between(self, h: Tensor) -> Tensor:
        return nn.functional.batch_norm(h, self.mean, self.variance, training=self.training)


class InstanceNorm(nn.Module):
    """Convolutions with instance norm that keeps statistics, and group norm."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.InstanceNorm2d(4, track_running_stats=True, affine=True)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), norm, nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.layers(images)
        return scores


class Dropout(Base):
    """Dropout."""

    def between(self, h: Tensor) -> Tensor:
        return nn.functional.dropout(h, 0.3, self.training)


class OtherNoise(Base):
    """Noise from numpy and from Python's own generator, also in evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.tensor(np.random.randn(WIDTH), dtype=torch.float32))

    def between(self, h: Tensor) -> Tensor:
        noise = torch.tensor(np.random.randn(WIDTH), dtype=h.dtype)
        return h + self.start + 0.1 * noise * random.random()


class Recurrent(nn.Module):
    """An LSTM, whose weights torch may keep in one block."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, WIDTH, 2, batch_first=True, dropout=0.1), nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        self.lstm.flatten_parameters()
        states, _ = self.lstm(images.squeeze(1))
        scores: Tensor = self.last(states[:, -1])
        return scores


class Residual(nn.Module):
    """A network of torchvision's kind: blocks with batch norm in place, and a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.downsample = nn.Conv2d(4, 8, 1, stride=2, bias=False)
        self.relu, self.fc = nn.ReLU(inplace=True), nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        h = self.relu(self.bn1(self.conv1(images)))
        h = self.relu(self.bn2(self.conv2(h)) + self.downsample(h))
        scores: Tensor = self.fc(h.mean((2, 3)))
        return scores


class CachedAttention(nn.Module):
    """One layer of attention over rows, with a table of positions that is made when it is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 10)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.positions: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        h = self.inputs(images.squeeze(1))
        if self.positions is None or len(self.positions) < len(h):
            steps = torch.arange(h.shape[1], dtype=h.dtype)[:, None] * torch.arange(WIDTH, dtype=h.dtype)
            self.positions = steps.sin().expand(len(h), -1, -1).clone()
        h = h * self.positions[: len(h)]
        scores: Tensor = self.last(h + self.attention(h, h, h, need_weights=False)[0]).mean(1)
        return scores


class Clipped(Base):
    """Weights that a forward pass clips, through their data."""

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            for parameter in self.parameters():
                parameter.data = parameter.data.clamp(-0.1, 0.1)
        return super().forward(images)


class Composite(SparseEmbedding):
    """Most of the above at once."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(self.last)
        self.parts = nn.ModuleList(
            [Complex(), SparseBuffers(), GrowingBuffer(), LateBuffer(), ExtraState(), Hooks(), OtherBuffers()]
        )
        self.more = nn.ModuleList(
            [FunctionalBatchNorm(), ExpandedBuffer(), OtherNoise(), Pruned(), Teacher()]
        )

    def forward(self, images: Tensor) -> Tensor:
        others = sum(part(images) for part in (*self.parts, *self.more))
        return super().forward(images) + 0.1 * others


# Refused before the first round.


class OfItsClass(Base):
    """A network that its class keeps, and that all copies compute with."""

    made: ClassVar[list[nn.Module]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self.last)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.made[-1](self.first(images.flatten(1)).relu())
        return scores


class TeacherOfItsClass(OfItsClass):
    """The same without a gradient: nothing trains it, but it should follow the network."""

    def forward(self, images: Tensor) -> Tensor:
        h = self.first(images.flatten(1)).relu()
        with torch.no_grad():
            teacher: Tensor = self.made[-1](h)
        return self.last(h) + 0.1 * teacher


class Precomputed(Base):
    """A tensor that the constructor computes from a parameter, and that carries its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed = self.last.weight.t()

    def forward(self, images: Tensor) -> Tensor:
        return self.first(images.flatten(1)).relu() @ self.transposed


class SharedByCopies(Base):
    """A copy with the layer of the original."""

    def __deepcopy__(self, memo: Any) -> "SharedByCopies":
        made = type(self)()
        made.last = self.last
        return made


class MadeAgain(Base):
    """A copy that is made by the constructor, with weights of its own."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), ()


class Scripted(Base):
    """A layer in TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.jit.script(self.last)


class PlainCounter(Base):
    """A count that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def between(self, h: Tensor) -> Tensor:
        self.calls += self.training
        return h * (1 + 0.01 * self.calls)


class OwnGenerator(Base):
    """A generator that no seed of a step sets, and no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(1)

    def between(self, h: Tensor) -> Tensor:
        return h + float(self.random.random())


class Unseeded(Base):
    """Noise from the operating system; not refused, but pointed out."""

    def between(self, h: Tensor) -> Tensor:
        return h + float(np.random.default_rng().random())


class LateParameter(Base):
    """A layer that the first forward pass makes."""

    def between(self, h: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(WIDTH, WIDTH)
        late: Tensor = self.late(h)
        return late


class ReplacedParameter(Base):
    """A parameter that a step replaces by a new one."""

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.last.bias = nn.Parameter(self.last.bias.detach().clone())
        return super().forward(images)


class Locked(Base):
    """A lock, which cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.first.lock = threading.Lock()  # type: ignore[assignment]


class KeptGraph(Base):
    """Hidden values of the last step with their graph."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def between(self, h: Tensor) -> Tensor:
        before, self.kept = self.kept, h.mean(0)
        return h if before is None or not self.training else h + before


class ObjectState(Base):
    """Extra state of a class of its own."""

    def get_extra_state(self) -> Any:
        return {"object": object()}

    def set_extra_state(self, state: Any) -> None:
        """Takes it."""


class NoGradient(Base):
    """Nothing to train."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


# Not refused, but pointed out: what of these is not trained.


class InList(Base):
    """A list of layers that is no ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH)]

    def between(self, h: Tensor) -> Tensor:
        made: Tensor = self.layers[0](h)
        return made


class Dead(Base):
    """A layer whose ReLU is 0 for all samples."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.first.weight)
        nn.init.constant_(self.first.bias, -1.0)


REFUSED = {
    OfItsClass: "computes with 'last.weight' of the original",
    TeacherOfItsClass: "computes with 'last.weight' of the original",
    Precomputed: "uses 'last.weight', but a copy of it does not",
    SharedByCopies: "has the same 'last.weight' as the original",
    MadeAgain: "starts with other values of 'first.weight'",
    Scripted: "'last' is a module of TorchScript",
    PlainCounter: "'calls' in a plain attribute",
    OwnGenerator: "'random' in a plain attribute, so a resumed run would be another run; draw from torch",
    LateParameter: "'late.",
    ReplacedParameter: "replaces the parameter 'last.bias'",
    Locked: "'first.lock' cannot be copied",
    KeptGraph: "it keeps tensors with their graph",
    ObjectState: "the extra state of ObjectState cannot be saved",
    NoGradient: "NoGradient has no parameter to train",
}
"""Networks that no run takes, with a part of the line that says so."""
NOTED = {
    Unused: "does not use 'spare.weight' and 1 other",
    InList: "depends on a tensor of shape (8, 8) that is none of its parameters",
    Dead: "the gradient of 'first.weight' and 2 others was 0 in all 4 steps",
}
"""Networks of which no step changes a part, with a part of the line that says so."""
WORKING = tuple(
    cls
    for cls in globals().values()
    if isinstance(cls, type)
    and issubclass(cls, nn.Module)
    and cls.__module__ == __name__
    and cls not in (Base, Unseeded, InList, Dead, *REFUSED)
)
"""Networks that every part of a run takes."""
CORE = (Compiled, Patched, Composite, Lazy, SharedBuffer, SpectralNorm, Recurrent, CachedAttention)
"""A few of them, for a short test."""
