"""Finds the gamma of a scheme of compressed gossip, by consensus with the actual graph, weights and chain.

All nodes run in turns in this process, without transport and training. The distance that remains after a
number of rounds shows how good a gamma is.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from decentnode.config.settings import Settings
from decentnode.config.type_check import parameters_of
from decentnode.core.registry import SHARINGS
from decentnode.core.rng import generator
from decentnode.core.text import counted
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.mixing import WeightedGraph
from decentnode.sharing.base import Setup, Sharing
from decentnode.sharing.blocks.lockstep import share_all
from decentnode.transforms.chain import trial_layout
from decentnode.transforms.coding.byte_coder import ByteCoder
from decentnode.transforms.coding.index_coder import IndexCoder

SHAPE = (25, 40)
"""Rows and columns of the matrix that is the model; the joint effect of C and W does not depend on them."""
ROUNDS = 200
DIVERGED = 4.0
CONVERGED = 1e-10
"""Fraction of the distance at the start at which a simulation ends."""
SMALLEST = 2.0**-14
FAST_ENOUGH = 0.75
LOSSLESS = (IndexCoder, ByteCoder)
"""Transforms that only change bytes are left out, which halves the time."""
REACH_USED = 0.9
"""The largest difference of random values, as a fraction of what the scheme can handle."""
HEADING = "  gamma  distance left  rounds  a round"


@dataclass(frozen=True)
class Trial:
    """The result of consensus with one gamma."""

    gamma: float
    distances: tuple[float, ...]
    """The root mean square distance from the mean after each round, over that at the start."""

    @property
    def rate(self) -> float:
        """Decrease of the distance's logarithm per round, from its mean over all rounds; 0: diverges.

        So a distance that decreases fast and then stays constant because of rounding counts more than one
        that reaches the same value slowly. For a steady decay it is exact.
        """
        if not 0 < self.distances[-1] < 1:
            return 0.0
        logarithms = [math.log(distance) for distance in self.distances]
        return max(0.0, -2 * fmean(logarithms) / (len(logarithms) + 1))

    def __str__(self) -> str:
        left = f"{self.distances[-1]:.1e}" if self.rate else "diverges"
        factor = f"{math.exp(-self.rate):.4f}" if self.rate else "-"
        return f"{self.gamma:>7.2g}  {left:>13}  {len(self.distances):>6}  {factor:>7}"


Try = Callable[[float, int], Trial]
"""Simulates (gamma, rounds)."""


def report(settings: Settings) -> Iterator[str]:
    """One line for each gamma that was tried, and what to add to the command; raises BadInput, RunFailed."""
    graph = WeightedGraph(settings.graph.make(), settings.make_mixing(), settings.seed)
    check(settings, graph)
    nodes = counted(graph.num_nodes, "node")
    values = trial_layout([t.make() for t in settings.sharing.transforms], *SHAPE).numel
    yield f"{settings.sharing.name}: consensus of {nodes}, {ROUNDS} rounds, {values} random values each"
    yield HEADING
    trials = []

    def attempt(gamma: float, rounds: int) -> Trial:
        return simulate(settings, graph, gamma, rounds=rounds)

    for trial in find(attempt):
        trials.append(trial)
        yield str(trial)
    yield f"sharing.gamma={chosen(trials, attempt).gamma:.2g}"


def check(settings: Settings, graph: WeightedGraph) -> None:
    """Raises BadInput where there is no gamma to find."""
    name, options = settings.sharing.name, settings.sharing.options
    if "gamma" not in options:
        known = [n for n, cls in SHARINGS.classes().items() if "gamma" in parameters_of(cls)]
        raise BadInput.at("sharing", f"{name} has no gamma to tune; {', '.join(known)} have one")
    if options.get("server") is not None:
        raise BadInput.at("sharing", f"{name} with a server makes no use of gamma")
    if graph.num_nodes < 2:
        raise BadInput.at("graph", "one node alone has no neighbor to agree with")


def find(attempt: Try) -> Iterator[Trial]:
    """All trials: octaves down from 1, then half octaves around the best."""
    tried: dict[float, Trial] = {}
    gamma, best, slower = 1.0, 0.0, 0
    while slower < 2 and gamma >= SMALLEST:
        result = tried[gamma] = attempt(rounded(gamma), ROUNDS)
        yield result
        slower = slower + 1 if result.rate <= best and best else 0
        best, gamma = max(best, result.rate), gamma / 2
    if not best:
        raise RunFailed(
            f"no gamma from 1 to {SMALLEST:.1g} converges on this graph: let the transforms keep more"
        )
    center = max(tried, key=lambda gamma: tried[gamma].rate)
    for factor in (2**0.5, 2**-0.5):
        if center * factor <= 1:
            yield attempt(rounded(center * factor), ROUNDS)


def chosen(trials: Sequence[Trial], attempt: Try) -> Trial:
    """The smallest gamma that is nearly as fast as the best, because the best is not far from the limit.

    It must stay convergent: just beyond the limit, differences decrease at first and grow later.
    """
    enough = FAST_ENOUGH * max(trial.rate for trial in trials)
    first = min(trial.gamma for trial in trials if trial.rate >= enough)
    safe = sorted(
        (trial for trial in trials if trial.rate and trial.gamma <= first), key=lambda trial: -trial.gamma
    )
    lasting = (t for t in safe if attempt(t.gamma, 2 * ROUNDS).distances[-1] <= 2 * t.distances[-1])
    return next(lasting, safe[-1])


def rounded(gamma: float) -> float:
    """Rounds to two digits, as in the output."""
    return float(f"{gamma:.2g}")


def simulate(settings: Settings, graph: WeightedGraph, gamma: float, rounds: int) -> Trial:
    """Consensus from random models; ends early where the outcome is clear."""
    nodes = [_scheme(settings, graph, gamma, rank=rank) for rank in range(graph.num_nodes)]
    models = _random_models(nodes, settings.seed)
    start, distances = _distance(models), []
    for round in range(rounds):
        try:
            # Messages of schemes about refused payloads are not useful here.
            with redirect_stdout(io.StringIO()):
                models = mix(nodes, graph, models, round)
        except RunFailed:
            distances.append(math.inf)
        else:
            distances.append(_distance(models) / start)
        if not CONVERGED < distances[-1] < DIVERGED:
            break
    return Trial(gamma, tuple(distances))


def _scheme(settings: Settings, graph: WeightedGraph, gamma: float, rank: int) -> Sharing:
    plugin = replace(settings.sharing, options={**settings.sharing.options, "gamma": gamma})
    scheme: Sharing = plugin.make()
    transforms = [t for t in (t.make() for t in settings.sharing.transforms) if not isinstance(t, LOSSLESS)]
    trial = trial_layout(transforms, *SHAPE)
    chain = scheme.make_chain(transforms, trial.numel, torch.float64, parameters=trial)
    scheme.bind(Setup(trial, chain, graph, rank=rank))
    # All nodes start equal, as in a run; the random models then have the effect of training.
    scheme.begin(torch.zeros(trial.numel, dtype=torch.float64))
    return scheme


def _random_models(schemes: Sequence[Sharing], seed: int) -> Tensor:
    """Normally distributed values, or uniformly distributed ones where their differences are limited."""
    random, reach = generator(seed, "tune"), schemes[0].reach
    shape = (len(schemes), schemes[0].setup.layout.numel)
    if math.isinf(reach):
        return torch.from_numpy(random.standard_normal(shape))
    return torch.from_numpy((random.random(shape) - 0.5) * REACH_USED * reach)


def mix(schemes: Sequence[Sharing], graph: WeightedGraph, models: Tensor, round: int) -> Tensor:
    """One round of communication of all nodes; returns the new models, shape (n, d)."""
    mixed = torch.empty_like(models)
    views = {rank: graph.view(rank, round) for rank in range(len(schemes))}
    share_all(dict(enumerate(schemes)), dict(enumerate(models)), views, out=dict(enumerate(mixed)))
    return mixed


def _distance(models: Tensor) -> float:
    return float((models - models.mean(0)).square().mean().sqrt())
