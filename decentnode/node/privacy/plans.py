"""The private steps of all nodes, planned before the first round."""

from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from decentnode.config.settings import Settings
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.node.run_samples import RunSamples
from decentnode.training.minibatches import Shard
from decentnode.training.privacy.base import Privacy, PrivacyPlan
from decentnode.training.settings import BATCH_SIZE


@dataclass(frozen=True)
class PrivacyPlans:
    """The plan of each rank; none where steps are not private."""

    plans: tuple[PrivacyPlan, ...] = ()
    rounds: int = 0
    """As the settings have them, of which the budgets may allow fewer."""

    @classmethod
    def of(cls, settings: Settings, graph: Graph, samples: RunSamples, network: nn.Module) -> "PrivacyPlans":
        """The plans of a run; raises BadInput where its steps cannot be private as the settings ask."""
        training = settings.training
        if training.privacy is None:
            return NOT_PRIVATE
        if settings.time_model.is_asynchronous:
            raise BadInput(
                "training.privacy: its steps are planned by rounds, which time_model: asynchronous has not; "
                "use synchronous"
            )
        privacy: Privacy = training.privacy.make()
        privacy.check(network, samples.dataset.train)
        if settings.mix_buffers and any(buffer.is_floating_point() for buffer in network.buffers()):
            raise BadInput(
                "training.mix_buffers: buffers are sent without noise, so training.privacy allows none; set "
                "false"
            )
        # Nodes with equally many samples and steps have the same plan.
        found: dict[tuple[int, tuple[int, ...]], PrivacyPlan] = {}
        plans = []
        for rank, part in enumerate(samples.parts):
            shard = Shard(samples.dataset.train, part, settings.seed, rank)
            steps = steps_of(settings, shard, graph)
            if (shard.size, steps) not in found:
                expected = (training.batch_size or BATCH_SIZE) * training.accumulate
                found[shard.size, steps] = privacy.plan(shard.size, expected, steps)
            plans.append(found[shard.size, steps])
        return cls(tuple(plans), settings.rounds)

    def of_rank(self, rank: int) -> PrivacyPlan | None:
        """The plan of a rank; None where steps are not private."""
        return self.plans[rank] if self.plans else None

    def shortened(self, settings: Settings) -> Settings:
        """The settings with the rounds up to the one after which all budgets are spent.

        A node whose budget is spent makes no more local steps; when that is so for all, the run ends. Raises
        BadInput where no step is allowed at all.
        """
        # A node without steps has nothing to spend.
        rounds = max((plan.rounds for plan in self.plans if plan.steps), default=settings.rounds)
        if not rounds:
            raise BadInput(
                "training.privacy.epsilon: the steps of the first round exceed it at every node; allow more, "
                "use more noise, or fewer samples in a step"
            )
        return settings if rounds == settings.rounds else replace(settings, rounds=rounds)


NOT_PRIVATE = PrivacyPlans()


def steps_of(settings: Settings, shard: Shard, graph: Graph) -> tuple[int, ...]:
    """The number of local steps of a node in each round."""
    training, trains = settings.training, partial(graph.trains, shard.rank)
    per_epoch = training.minibatches(shard).steps_per_epoch(training.accumulate)
    return tuple(
        training.steps(shard.rank, round, per_epoch) if trains(round) else 0
        for round in range(settings.rounds)
    )
