"""What is public about a run, what a party has of its own, and the truth that results are compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decentnode.core.rng import SeededSource, generator
from decentnode.core.vector import ParameterLayout
from decentnode.datasets.base import LoadedDataset, Samples
from decentnode.formats.transcript import Transcript
from decentnode.graph.mixing import WeightedGraph
from decentnode.models.module_copies import copied
from decentnode.sharing.base import Sharing
from decentnode.training.evaluation import evaluation_mode, load_flat
from decentnode.training.minibatches import Minibatches, Shard
from decentnode.training.objective import Objective
from decentnode.training.privacy.base import PrivacyPlan
from decentnode.training.privacy.dp_sgd import DpSgd
from decentnode.training.privacy.edges import EdgeNoise, EdgeShare
from decentnode.training.privacy.per_example import ClippedSum
from decentnode.training.settings import TrainingSettings

BATCH_SIZE = 256
MOST_SHADOW_STEPS = 2000


@dataclass(frozen=True)
class Scene:
    """The settings of a run as objects. Attacks may read all but `parts` of others, which is the truth."""

    run: Path
    network: nn.Module
    """The initial model, which all nodes know."""
    layout: ParameterLayout
    training: TrainingSettings
    dataset: LoadedDataset
    parts: Sequence[Tensor]
    """The training samples of each rank, as indices."""
    assigned: Sequence[Tensor]
    """The training samples of each rank before an audit left some out."""
    graph: WeightedGraph
    scheme: Callable[[int], Sharing]
    """A new scheme, as a rank has it."""
    rounds: int
    seed: int
    plans: Sequence[PrivacyPlan] = ()
    """The private steps of each rank; none where steps are not private."""

    @cached_property
    def initial(self) -> Tensor:
        """The model of all nodes before round 0, shape (d,)."""
        return flat(self.network, self.layout)

    def own_model(self, transcript: Transcript, kind: str, round: int) -> Tensor | None:
        """A node's own model that it has recorded as `trained` or `mixed`, shape (d,); None: it has not."""
        line = transcript.own_lines.get((kind, round))
        content = None if line is None else transcript.content(line)
        return None if content is None else torch.from_numpy(content).view(self.layout.dtype)

    @cached_property
    def _objective(self) -> Objective:
        return self.training.objective(copied(self.network), self.layout.channels_last)

    def objective(self, model: Tensor) -> Objective:
        """Network and loss with these parameters, shape (d,); valid until the next call."""
        load_flat(self._objective.module, self.layout, model.to(self.layout.dtype))
        return self._objective

    def losses(self, model: Tensor, samples: Samples) -> Tensor:
        """The loss of a model on each sample, shape (n,), float64."""
        objective, losses = self.objective(model), []
        with evaluation_mode(objective.module), torch.no_grad():
            for rows in torch.split(torch.arange(len(samples)), BATCH_SIZE):
                batch = samples.batch(rows)
                losses.append(objective.each(objective(batch)[0], batch.labels).double())
        return torch.cat(losses)

    def outputs(self, model: Tensor, samples: Samples) -> Tensor:
        """The scores of a model for each sample, shape (n, classes)."""
        objective = self.objective(model)
        with evaluation_mode(objective.module), torch.no_grad():
            rows = torch.split(torch.arange(len(samples)), BATCH_SIZE)
            return torch.cat([objective(samples.batch(part))[0] for part in rows])

    def public_rows(self, share: float, seed: int) -> tuple[Tensor, Tensor]:
        """The test samples that a party has, and all others, as indices."""
        order = torch.from_numpy(generator(seed, "public").permutation(len(self.dataset.test)))
        count = round(share * len(order))
        return order[:count], order[count:]

    def own(self, ranks: Sequence[int], share: float, seed: int) -> list[Samples]:
        """The samples a party may train on: the shards of its ranks, and its public samples."""
        test = self.dataset.test.subset(self.public_rows(share, seed)[0])
        return [samples for samples in [*(self.shard_of(rank) for rank in ranks), test] if len(samples)]

    def shard_of(self, rank: int) -> Samples:
        """The training samples of a rank."""
        return self.dataset.train.subset(self.parts[rank])

    def steps_until(self, rank: int, round: int) -> int:
        """Local steps that a rank has made at the end of a round, by the settings."""
        minibatches = self.training.make_minibatches(
            Shard(self.dataset.train, self.parts[rank], self.seed, rank=rank)
        )
        per_epoch = minibatches.steps_per_epoch(self.training.accumulate)
        return sum(self.training.steps(rank, r, per_epoch) for r in range(round + 1))

    @cached_property
    def clip(self) -> float | None:
        """The norm to which private steps clip gradients; None where steps are not private."""
        privacy = self.training.privacy.make() if self.training.privacy else None
        return privacy.clip if isinstance(privacy, DpSgd) else None

    @cached_property
    def repeats_steps(self) -> bool:
        """Whether private steps can be computed again: plain SGD, one step of all samples in each round."""
        options, n = self.training.optimizer.options, self.graph.num_nodes
        is_plain = not options.get("momentum") and not options.get("weight_decay")
        once = all(self.steps_until(r, t) == t + 1 for r in range(n) for t in range(self.rounds))
        return is_plain and once and all(plan.rate == plan.period == 1 for plan in self.plans)

    @cached_property
    def has_secret_edges(self) -> bool:
        """Whether private steps have noise of edges that the seed does not tell."""
        privacy = self.training.privacy.make() if self.training.privacy else None
        has_edges = any(plan.edges is not None for plan in self.plans)
        return has_edges and not (isinstance(privacy, DpSgd) and privacy.generator == "seeded")

    def noise_of_edges(self, ranks: Sequence[int], rounds: int) -> dict[int, NDArray[np.float64]]:
        """What the updates of other ranks have of the noise of edges with these, shape (rounds, d) by rank.

        Nothing where steps are not repeated exactly, or their keys are secret.
        """
        found: dict[int, NDArray[np.float64]] = {}
        if self.clip is None or self.has_secret_edges or not self.repeats_steps:
            return found
        rate = float(self.training.optimizer.options.get("lr", 0.001))
        for rank, plan in enumerate(self.plans):
            known = [other for other in ranks if plan.edges and other in plan.edges.neighbors]
            if plan.edges is None or rank in ranks or not known:
                continue
            share = EdgeShare(0.0, plan.edges.edge, tuple(known))
            noise, none = EdgeNoise(share, rank, self.seed), SeededSource(0)
            drawn = [noise.draw(none, self.layout.numel).numpy() for _ in range(rounds)]
            found[rank] = np.array(drawn) * (-rate * self.clip / len(self.parts[rank]))
        return found

    def private_step(self, rank: int, model: Tensor) -> Tensor:
        """The update of a private step of all samples without its noise, shape (d,)."""
        assert self.clip is not None
        samples, gradient = self.shard_of(rank), torch.zeros(self.layout.numel, dtype=self.layout.dtype)
        clipped = ClippedSum(self.objective(model), self.layout)
        clipped.add(samples.batch(torch.arange(len(samples))), self.clip, gradient)
        return gradient * (-float(self.training.optimizer.options.get("lr", 0.001)) / len(samples))

    def trained(self, samples: Samples, steps: int, seed: int) -> Tensor:
        """A model trained on samples as nodes train, for so many steps, without noise; shape (d,)."""
        objective = self.training.objective(copied(self.network), self.layout.channels_last)
        module = objective.module.train()
        optimizer = self.training.make_optimizer(self.training.trained(module))
        shard = Shard(samples, torch.arange(len(samples)), seed, rank=0)
        minibatches = Minibatches(shard, self.training.batch_size or BATCH_SIZE)
        torch.manual_seed(seed)

        def closure() -> float:
            optimizer.zero_grad()
            loss = objective(minibatches.next())[1]
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item()

        for _ in range(min(steps, MOST_SHADOW_STEPS)):
            optimizer.step(closure)
        return flat(module, self.layout)


def flat(module: nn.Module, layout: ParameterLayout) -> Tensor:
    """The parameters of a module as a vector, shape (d,)."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    vector = torch.empty(layout.numel, dtype=layout.dtype)
    for entry in layout.entries:
        entry.view(vector).copy_(tensors[entry.name].detach())
    return vector
