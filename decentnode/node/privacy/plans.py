"""The private steps of all nodes, planned before the first round."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torch import nn

from decentnode.config.settings import Settings
from decentnode.core.text import readable_bytes
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput
from decentnode.graph.base import Graph
from decentnode.graph.mixing import WeightedGraph
from decentnode.node.privacy.workload import edges_of, gram_of
from decentnode.node.run_samples import RunSamples
from decentnode.training.minibatches import Shard
from decentnode.training.privacy.base import Privacy, PrivacyPlan
from decentnode.training.privacy.correlation import width_of
from decentnode.training.settings import BATCH_SIZE


def plans_of(
    settings: Settings, graph: Graph, samples: RunSamples, network: nn.Module
) -> tuple[PrivacyPlan, ...]:
    """The plan of each rank; none where steps are not private.

    Raises BadInput where the steps cannot be private as the settings ask.
    """
    training = settings.training
    if training.privacy is None:
        return ()
    if settings.time_model.is_asynchronous:
        raise BadInput.at(
            "training.privacy",
            "its steps are planned by rounds, which time_model: asynchronous has not; use synchronous",
        )
    privacy: Privacy = training.privacy.make()
    privacy.check(network, samples.dataset.train)
    if settings.training.mix_buffers and any(buffer.is_floating_point() for buffer in network.buffers()):
        raise BadInput.at(
            "training.mix_buffers",
            "buffers are sent without noise, so training.privacy allows none; set false",
        )
    expected = (training.batch_size or BATCH_SIZE) * training.accumulate
    # Nodes with equally many samples and steps have the same plan.
    weighted_graph = WeightedGraph(graph, settings.make_mixing(), settings.seed)
    gram = cache(partial(gram_of, weighted_graph))
    plan = cache(lambda size, steps: privacy.plan(size, expected, steps, partial(gram, steps)))
    shards = [*map(samples.shard, range(len(samples.parts)))]
    steps = [steps_of(settings, shard, graph) for shard in shards]
    plans = tuple(plan(shard.size, of_node) for shard, of_node in zip(shards, steps, strict=True))
    if privacy.edges is not None:
        restarts = bool(settings.failures.restart.attempts)
        if restarts or settings.failures.start != "all":
            what = "a node that comes later lacks the keys that its neighbors draw noise of edges from"
            key = "failures.restart.attempts" if restarts else "failures.start"
            raise BadInput.at(key, f"{what}; leave it out")
        batches = [plan.rate * shard.size / plan.period for plan, shard in zip(plans, shards, strict=True)]
        if max(batches) > min(batches) * (1 + 1e-9):
            span = f"{min(batches):g} to {max(batches):g}"
            what = f"edges needs equally many samples in a step of each node, and they have {span}"
            raise BadInput.at("training.privacy.correlation", f"{what}; use poisson and smaller batches")
        plans = privacy.over_edges(plans, steps, *edges_of(weighted_graph, steps))
    most = len(settings.mapping.make().machines) * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (needed := kept_bytes(plans, network)) > most:
        what = f"keeps {readable_bytes(needed)} of noise at all nodes, and there are {readable_bytes(most)}"
        remedy = "lower band, or take fewer nodes or a smaller model"
        raise BadInput.at("training.privacy.correlation", f"{what}; {remedy}")
    return plans


def kept_bytes(plans: Sequence[PrivacyPlan], network: nn.Module) -> int:
    """The bytes of noise that all nodes keep for later steps."""
    each = sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad)
    return sum(plan.strategy.kept * each for plan in plans if plan.strategy is not None)


def noise_of(plans: Sequence[PrivacyPlan]) -> dict[str, Any]:
    """What was chosen for correlated noise: the most `diagonals` of C, or the `ratio` of noise of edges."""
    shares = [plan.edges for plan in plans if plan.edges is not None]
    if shares:
        return {"ratio": shares[0].edge / shares[0].own if shares[0].own else 0.0}
    widths = [width_of(plan.strategy.matrix) for plan in plans if plan.strategy is not None]
    return {"diagonals": max(widths)} if widths else {}


def doubts_of(graph: Graph, dataset: LoadedDataset) -> tuple[str, ...]:
    """The reasons why epsilon of private steps is no claim about a run with these samples."""
    fitted = _without_noise(graph, dataset)
    return tuple(f"computed from training samples before the steps, without noise: {what}" for what in fitted)


def _without_noise(graph: Graph, dataset: LoadedDataset) -> tuple[str, ...]:
    return *dataset.fitted, *(["the graph, by the labels of each node"] if graph.needs_labels else [])


def pipeline_of(graph: Graph, samples: RunSamples) -> list[dict[str, Any]]:
    """What the steps presuppose of samples, for the summary: known without them, with noise, or neither."""
    dataset, released = samples.dataset, samples.released
    rows: list[tuple[str, str, float | None]] = [(what, "public", None) for what in dataset.public]
    if released is not None:
        what = ", ".join(what.partition(" (")[0] for what in released.what)
        rows.append((what, "noise", released.release.epsilon))
    rows += [(what, "ends the claim", None) for what in _without_noise(graph, dataset)]
    return [{"what": what, "how": how, "epsilon": epsilon} for what, how, epsilon in rows]


def shortened(settings: Settings, plans: Sequence[PrivacyPlan]) -> Settings:
    """The settings with the rounds up to the one after which all budgets are spent.

    A node whose budget is spent makes no more local steps; when that is so for all, the run ends. Raises
    BadInput where no step is allowed at all.
    """
    # A node without steps has nothing to spend.
    rounds = max((plan.rounds for plan in plans if plan.steps), default=settings.rounds)
    if not rounds:
        raise BadInput.at(
            "training.privacy.epsilon",
            "the steps of the first round exceed it at every node; allow more, "
            "use more noise, or fewer samples in a step",
        )
    return settings if rounds == settings.rounds else replace(settings, rounds=rounds)


def steps_of(settings: Settings, shard: Shard, graph: Graph) -> tuple[int, ...]:
    """The number of local steps of a node in each round."""
    training, trains = settings.training, partial(graph.trains, shard.rank)
    per_epoch = training.make_minibatches(shard).steps_per_epoch(training.accumulate)
    return tuple(
        training.steps(shard.rank, round, per_epoch) if trains(round) else 0
        for round in range(settings.rounds)
    )
