"""Data sets and models in the interface of decentralizepy, and a clock of its rounds.

Its nodes import this module by name and take classes from it. All data and networks are decentnode's own, so
that nodes of both train the same.
"""

import time
from typing import Any

import torch
from decentralizepy.datasets.Dataset import Dataset
from decentralizepy.models.Model import Model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from decentnode.core.registry import DATASETS, MODELS
from decentnode.datasets.base import Samples
from decentnode.models.base import Model as ModelFactory

starts: list[tuple[float, float]] = []
"""When this process began each round, and the processor seconds that it had used by then."""


class Task(Dataset):
    """The samples of one node. Its trainer asks for them once a round, at the start."""

    network: nn.Module
    """The network of the task: a node makes its data set first and then its model, without arguments."""

    def __init__(
        self, rank: int, machine_id: int, mapping: Any, dataset: dict[str, Any], model: dict[str, Any]
    ) -> None:
        """`dataset` and `model` are as in a configuration of decentnode."""
        super().__init__(rank, machine_id, mapping)
        self._samples = TensorDataset(torch.empty(1, 1), torch.empty(1, dtype=torch.int64))
        if "elements" in model:
            Task.network = nn.ParameterList([torch.full((model["elements"],), float(rank))])
            return
        loaded = made(DATASETS, dataset).load(1)
        factory: ModelFactory = made(MODELS, model)
        Task.network = factory.build(loaded.shape, loaded.num_classes)
        self._samples = own_samples(loaded.train, self.uid, self.num_partitions)

    def get_trainset(self, batch_size: int = 1, shuffle: bool = False) -> DataLoader[Any]:
        """All samples of the node in batches, as the data sets there return them."""
        starts.append((time.monotonic(), time.process_time()))
        return DataLoader(self._samples, batch_size=batch_size, shuffle=shuffle)

    def get_testset(self) -> None:
        """Nothing is tested."""


class Network(Model):
    """The network of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Task.network

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.network(inputs)
        return scores


def made(plugins: Any, entry: dict[str, Any]) -> Any:
    """The plug-in that an entry of a configuration names."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return plugins.classes()[options.pop("name")](**options)


def own_samples(train: Samples, uid: int, nodes: int) -> TensorDataset:
    """The node's equal share of the samples, normalized."""
    inputs, labels = train.batch(torch.arange(uid, len(train), nodes))
    return TensorDataset(inputs, labels)
