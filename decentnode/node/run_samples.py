"""The samples of a run, and which of them each rank trains on; made once per machine, before the fork."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from decentnode.config.settings import Settings
from decentnode.core.registry import name_of
from decentnode.core.rng import seeded
from decentnode.core.vector import DTYPES
from decentnode.datasets import skew
from decentnode.datasets.base import Dataset, LoadedDataset, Samples
from decentnode.datasets.normalizer import Normalizer
from decentnode.datasets.partition import Partition, label_histogram
from decentnode.datasets.ragged import LazyRows
from decentnode.datasets.validation import hold_out, split_rows
from decentnode.errors import BadInput
from decentnode.formats.partition_table import PartitionTable
from decentnode.graph.base import Graph
from decentnode.graph.mixing import WeightedGraph
from decentnode.models.base import has_batch_norm, least_batch
from decentnode.node.child_answers import answer_of
from decentnode.node.privacy.release import Released
from decentnode.sharing.base import Sharing
from decentnode.training.gradient_sync import GradientSync
from decentnode.training.minibatches import Shard
from decentnode.training.tasks.base import Task

HASHED_ROWS = 4096
"""Samples that are hashed at a time."""
MOST_LABELS = 1000
"""The most labels that count as classes; a picture could not show more."""


@dataclass(frozen=True)
class RunSamples:
    """Training, test and validation samples, with the training samples of each rank."""

    dataset: LoadedDataset
    parts: list[Tensor]
    """The training samples of each rank, as indices."""
    seed: int
    gradient_sync: GradientSync
    """Decides which of its part a rank trains on."""
    levels: list[list[skew.Levels]] = field(default_factory=list)
    """The levels of each skew, by rank."""
    assigned: list[Tensor] = field(default_factory=list)
    """The parts before an audit left some samples out."""
    test_parts: list[Tensor] = field(default_factory=list)
    """The test samples of each rank alone, as indices; empty without `evaluation.node_test_split`."""
    least_batch: int = 1
    """The fewest samples at once that the model of the run can be trained on."""
    shapes: tuple[tuple[int, ...], ...] = ((),)
    """The shapes that the outputs of the model for one sample may have (`Task.shapes`)."""
    released: Released | None = None
    """What the nodes have released to normalize by; None: the samples are normalized without noise."""

    @property
    def width(self) -> int:
        """How many numbers the model gives for each label; models are built with it."""
        return self.shapes[0][0]

    @classmethod
    def load(
        cls, settings: Settings, nodes: int, whole_dataset: LoadedDataset | None = None,
        run_dir: Path | None = None,
    ) -> "RunSamples":  # fmt: skip
        """Loads the samples that the settings name, for so many nodes; raises BadInput.

        `whole_dataset`: all samples, if they are loaded already; `run_dir`: of a run that has begun.
        """
        source: Dataset = settings.dataset.make()
        seed, ignored = settings.seed, settings.training.ignored
        # A dataset from outside may draw from any of the global generators.
        with seeded(seed, "dataset"):
            whole = source.whole(seed, ignored) if whole_dataset is None else whole_dataset
            drawn = source.drawn(whole, seed)
        dataset, rows = hold_out(drawn.to(DTYPES[settings.training.dtype]), settings.dataset.validation, seed)
        if not len(dataset.test):
            raise BadInput.at("dataset", "the test set is empty, so no model can be evaluated")
        task: Task = settings.task.make()
        dataset = task.of(dataset)
        task.check(dataset, settings.training.loss.cls)
        if dataset.train.is_stream:
            check_stream(settings)
        partition: Partition = settings.dataset.partition.make()
        parts = split_rows(partition, dataset.train, rows, num_nodes=nodes, seed=seed)
        own_tests = []
        if settings.evaluation.node_test_split:
            # Before a skew, which may change the labels that the samples were dealt by.
            own_tests = partition.split_test(dataset.train, parts, dataset.test, seed)
        changed, levels = skew.apply(
            [plugin.make() for plugin in settings.dataset.skew], dataset, parts, seed=seed
        )
        adversaries = [plugin.make() for plugin in settings.adversaries]
        flips = [flip for adversary in adversaries if (flip := adversary.skew()) is not None]
        changed, _ = skew.apply(flips, changed, parts, seed=seed)
        assigned = parts
        for adversary in adversaries:
            adversary.check(changed, parts)
            parts = adversary.parts(parts, seed)
        released, privacy = None, settings.training.privacy
        if privacy is not None and (release := privacy.make().release) is not None:
            if len(settings.mapping.make().machines) > 1:
                raise BadInput.at(
                    "training.privacy.pipeline",
                    "its noise is drawn by one machine, and others could not know it; use one, or give "
                    "dataset.mean and dataset.std",
                )
            if run_dir is None:
                released = Released.drawn(release, changed, parts, seed)
            else:
                released = Released.read(release, changed, parts, run_dir)
            changed = released.applied(changed)
        return cls(
            changed, parts, seed, settings.training.gradient_sync.make(), levels, assigned, own_tests,
            shapes=task.shapes(dataset.num_classes, dataset.train.labels.shape[1:]), released=released,
        )  # fmt: skip

    def shard(self, rank: int) -> Shard:
        """The training samples of a node; raises BadInput where it has no part of the steps."""
        shard = self.gradient_sync.shard(self.dataset.train, self.parts, self.seed, rank=rank)
        samples = shard.samples
        if self.normalizers:
            samples = self.normalizers[rank].of(samples)
        return replace(shard, samples=samples, least_batch=self.least_batch)

    @cached_property
    def normalizers(self) -> tuple[Normalizer, ...]:
        """How each rank normalizes samples; empty where all do it as the samples say."""
        train, chosen = self.dataset.train, self.dataset.standardized
        if not self.dataset.by_node or chosen is None:
            return ()
        if self.released is not None:
            return tuple(self.released.of_node(self.dataset, rank) for rank in range(len(self.parts)))
        return tuple(Normalizer.fitted(train, part, chosen) for part in self.parts)

    def of_network(self, network: nn.Module, settings: Settings) -> "RunSamples":
        """The samples with the least batch that this network can be trained on; raises BadInput."""
        fields = self.dataset.train.batch(torch.arange(min(1, len(self.dataset.train)))).fields
        least, training = 1, settings.training
        if has_batch_norm(network):
            least = least_batch(network, fields)
        elif settings.has_foreign_plugins and (
            training.batch_size is None
            or training.privacy is not None
            or any(len(part) and (len(part) - 1) % training.batch_size == 0 for part in self.parts)
        ):
            # Some node has a batch of one sample. In a child: a plug-in's steps must not change this process.
            answer = answer_of(
                lambda file: file.write(bytes([least_batch(network, fields)])),
                settings.failures.start_deadline,
            )
            least = answer.content[0] if answer.content else 1
        training.check(self.dataset.train, least, self.gradient_sync.one_model)
        found = replace(self, least_batch=least)
        for rank in range(len(self.parts)):
            if 0 < found.shard(rank).size < least:
                raise BadInput.at(
                    "dataset.partition",
                    f"rank {rank} has a single sample, but batch norm needs {least} at once; give each rank "
                    f"{least} or none",
                )
        return found

    @property
    def two_batches(self) -> list[tuple[Tensor, ...]]:
        """Two small batches of different training samples, for trials of the network."""
        train = self.dataset.train
        size = min(2, len(train))
        starts = (0, max(0, len(train) - size))
        return [train.batch(torch.arange(start, start + size)).fields for start in starts]

    @cached_property
    def digest(self) -> str:
        """A hash of all samples and the partition, equal on all machines."""
        state = xxhash.xxh3_128()
        for samples in (self.dataset.train, self.dataset.test, self.dataset.validation):
            if samples is not None:
                _update(state, samples)
        for part in self.parts:
            state.update(part.numpy().tobytes())
        return state.hexdigest()

    @cached_property
    def test_digest(self) -> str:
        """A hash of the test samples, by which studies see whether these differ by seed."""
        state = xxhash.xxh3_128()
        _update(state, self.dataset.test)
        return state.hexdigest()

    @property
    def own_tests(self) -> tuple[Samples, ...]:
        """The test samples of each rank alone; empty where none are drawn."""
        return tuple(map(self.dataset.test.subset, self.test_parts))

    @property
    def has_classes(self) -> bool:
        """Whether each sample has one label, a class."""
        labels = self.dataset.train.labels
        return self.dataset.num_classes > 1 and isinstance(labels, Tensor) and labels.dim() == 1

    @property
    def histograms(self) -> list[list[int]]:
        """Returns the number of training samples of each label, for each rank."""
        return label_histogram(self.dataset.train, self.parts, self.dataset.num_classes)

    def weighted_graph(self, settings: Settings) -> WeightedGraph:
        """The graph with its weights; raises BadInput where it needs labels that the samples do not have."""
        graph: Graph = settings.graph.make()
        if not graph.needs_labels:
            return WeightedGraph(graph, settings.make_mixing(), settings.seed)
        if not self.has_classes:
            raise BadInput.at("graph", f"{name_of(graph)} needs samples of classes; these have none")
        weighted = WeightedGraph(graph.with_labels(self.histograms), settings.make_mixing(), settings.seed)
        # The checks of the settings saw the graph that it is without labels.
        sharing: Sharing = settings.sharing.make()
        sharing.check(weighted)
        return weighted

    @property
    def form(self) -> dict[str, Any]:
        """What a network is built for, as `run.json` has it: `SamplesForm` of the results."""
        arguments = [
            {"shape": [*zero.shape[1:]], "ids": not zero.is_floating_point()}
            for zero in self.dataset.train.zeros(1)
        ]
        return {
            "shape": [*self.dataset.shape], "num_classes": self.width, "arguments": arguments
        }  # fmt: skip

    @property
    def sizes(self) -> str:
        """How many samples there are for what, as text."""
        sizes = f"{sum(map(len, self.parts)):,} training"
        if self.dataset.validation is not None:
            sizes += f", {len(self.dataset.validation):,} validation"
        return f"{sizes} and {len(self.dataset.test):,} test samples"

    def table(self, settings: Settings) -> PartitionTable:
        """The training samples of each rank in numbers, with labels as the skews have left them."""
        train = self.dataset.train
        task: Task = settings.task.make()
        are_known = task.labels_show_ranks and not isinstance(train.labels, LazyRows)
        counted = are_known and 1 < self.dataset.num_classes <= MOST_LABELS
        return PartitionTable(
            [len(part) for part in self.parts],
            label_histogram(train, self.parts, self.dataset.num_classes) if counted else [],
            [] if train.groups is None else [len(np.unique(train.groups[part])) for part in self.parts],
            skew=[
                {"name": plugin.name, "levels": levels}
                for plugin, levels in zip(settings.dataset.skew, self.levels, strict=True)
            ],
            class_names=self.dataset.class_names if counted else (),
        )


def _update(state: xxhash.xxh3_128, samples: Samples) -> None:
    """Hashes all samples, too."""
    for tensor in samples.tensors():
        # In blocks, because a view of a mapped file may be larger than the memory.
        for block in torch.split(tensor, HASHED_ROWS):
            state.update(block.contiguous().numpy().data.cast("B"))


def check_stream(settings: Settings) -> None:
    """Raises BadInput for settings that draw samples, of which a stream has each once, in its order."""
    training = settings.training
    for key, wrong in (
        ("training.privacy", training.privacy is not None),
        ("training.batch_tokens", training.batch_tokens is not None),
        ("training.name", training.gradient_sync.make().one_model),
    ):
        if wrong:
            raise BadInput.at(
                key, "it draws samples, and those of a stream come in their order; leave it out"
            )
