"""What stands in a configuration for the model and the samples that a loop has itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from decentnode.datasets.base import Dataset, LoadedDataset, Samples
from decentnode.datasets.partition import Partition
from decentnode.models.base import Model


@dataclass
class LoopModel(Model):
    """The parameters of a loop's model, as names and shapes: the launcher needs no more of it."""

    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    complex: tuple[str, ...] = ()
    """The parameters that are complex."""
    digest: str = ""
    """A hash of the values that all ranks begin with."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return NamedTensors(self.parameters, self.buffers, self.complex, num_classes)


class NamedTensors(nn.Module):
    """Parameters and buffers of these names, and nothing that computes with them."""

    def __init__(
        self, parameters: Mapping[str, tuple[int, ...]], buffers: Mapping[str, tuple[int, ...]],
        complex: tuple[str, ...] = (), num_classes: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_classes = num_classes
        for name, shape in parameters.items():
            part, key = self._part(name)
            part.register_parameter(
                key,
                nn.Parameter(torch.zeros(shape, dtype=torch.complex64 if name in complex else torch.float32)),
            )
        for name, shape in buffers.items():
            part, key = self._part(name)
            part.register_buffer(key, torch.zeros(shape))

    def _part(self, name: str) -> tuple[nn.Module, str]:
        *path, key = name.split(".")
        part: nn.Module = self
        for word in path:
            if word not in part._modules:
                part.add_module(word, nn.Module())
            part = part.get_submodule(word)
        return part, key

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns zeros as scores."""
        return torch.zeros(len(inputs), self.num_classes)


@dataclass(kw_only=True)
class LoopSamples(Dataset):
    """One sample of nothing for each rank: a loop has samples of its own."""

    nodes: int = 1
    loop_partition: Partition | None = None
    """How `node.shard` distributes the samples of loops; null: evenly."""
    reads_files = False

    def read(self, seed: int) -> LoadedDataset:
        nothing = Samples(torch.zeros(self.nodes, 1), torch.zeros(self.nodes, dtype=torch.int64))
        return LoadedDataset(nothing, nothing, num_classes=2, shape=(1,))
