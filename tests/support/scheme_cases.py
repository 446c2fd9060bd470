"""The cases of every sharing scheme that the contract tests run through; a new scheme adds its own here."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from decentnode.core.pair_keys import PairKeys
from decentnode.core.registry import SHARINGS
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.graph.families import BinaryTree, Chain, Exponential, FullyConnected, Ring, Star
from decentnode.graph.mixing import MetropolisHastings, Uniform
from decentnode.graph.mosaic import MosaicGraph
from decentnode.graph.random_graphs import Regular
from decentnode.graph.redrawn import EpidemicOracle, RandomMatching
from decentnode.graph.relayed import Relayed
from decentnode.graph.roles import Federated, Hierarchical
from decentnode.sharing import (
    D2,
    AllReduce,
    Balance,
    Beer,
    Cesar,
    Choco,
    ClippedGossip,
    ConsensusControl,
    DecentLam,
    DeepSqueeze,
    DeMo,
    ExactDiffusion,
    FedAdam,
    FedAvg,
    FedProx,
    FedStc,
    Gasloc,
    GeometricMedian,
    Gossip,
    GradientTracking,
    Jwins,
    Krum,
    Levels,
    Median,
    Moniqua,
    Mosaic,
    Muffliato,
    MultiGossip,
    NoSharing,
    ParameterServer,
    PowerGossip,
    PushSum,
    QuasiGlobal,
    RelaySum,
    Rfa,
    Scaffold,
    SecureAggregation,
    Shatter,
    SparseLoCo,
    Stc,
    TrimmedMean,
    Ubar,
    ZipDl,
)
from decentnode.sharing.base import Sharing
from decentnode.sharing.levels import LevelScheme
from decentnode.testing import Q8, random_models
from decentnode.transforms import Cast, Qsgd, Rice
from decentnode.transforms.coding.zstd import Zstd
from decentnode.transforms.error_feedback import ErrorFeedback
from decentnode.transforms.sparsify.random_k import RandomK
from decentnode.transforms.sparsify.top_k import TopK

RING, REGULAR = Ring(6), Regular(8, 4, seed=3)
"""Small, because hundreds of tests run on them; some pairs of nodes have no edge."""
SOME_GRAPHS = (RING, Star(5), REGULAR, FullyConnected(5))
CHANGING_GRAPHS = (EpidemicOracle(6, 3, seed=1), RandomMatching(7, seed=1))
LENGTH = 7
A8, B8, OPTIMUM8, q8_gradient = Q8.a, Q8.b, Q8.optimum.item(), Q8.gradient


def plain():
    """The chain without transforms."""
    return ()


def cast():
    """The chain that rounds to half precision."""
    return (Cast(),)


def coded():
    """The chain that sends few values and short indices."""
    return (TopK(0.3), Rice())


def zipped():
    """The chain of a byte coder."""
    return (Zstd(),)


def rounded():
    """The chain that rounds at random to 8 bits."""
    return (Qsgd(),)


LOSSY = (plain, cast, rounded, coded)


def same_coordinates():
    """The chain that sends some coordinates, the same ones of all nodes."""
    return (RandomK(0.5, shared_mask=True),)


def rounded_same_coordinates():
    """The chain that rounds some coordinates, the same ones of all nodes."""
    return (RandomK(0.5, shared_mask=True), Qsgd())


@dataclass(frozen=True)
class Case:
    """One scheme with fixed options, and what it can be run with."""

    make: Callable[[], Sharing]
    """A fresh scheme; called once for every node."""
    graphs: tuple = SOME_GRAPHS
    weights: object = MetropolisHastings()
    chains: tuple[Callable[[], tuple], ...] = (plain, cast, rounded)
    """Transforms that it may be combined with, fresh at each call. Exact claims are tested with the first."""
    matrix: Callable | None = None
    """What one round multiplies any models by, given the WeightedGraph; None when a round is not linear."""
    length: int = LENGTH
    parameters: ParameterLayout | None = None
    tolerance: float = 1e-12
    """How far equal models may drift apart, and the mean from what it was, relative to values of about 1."""
    mean_survives_loss: bool = True
    """What keeps the mean and tolerates losses keeps it also where both ends lose an edge."""
    keeps_equal: bool = True
    """Equal models without local steps stay as they are."""

    @property
    def scheme(self) -> type[Sharing]:
        return type(self.make())

    def start(self, num_nodes: int) -> Tensor:
        """Models that are alike on all nodes, shape (n, d), float64."""
        return random_models(1, self.length).expand(num_nodes, -1).clone()


def masked(scheme=SecureAggregation, **options):
    """Secure aggregation whose masks are the same in every run."""
    scheme = scheme(**options)
    scheme._keys = PairKeys(bytes(32))
    return scheme


def shattered(**options):
    """Shatter whose chunks are the same in every run."""
    scheme = Shatter(chunks=3, per_neighbor=2, generator="seeded", **options)
    scheme._private = X25519PrivateKey.from_private_bytes(bytes(32))
    return scheme


def prefers_small_models():
    """UBAR, whose samples prefer small models."""
    scheme = Ubar()
    bind = scheme.bind
    scheme.bind = lambda setup: bind(replace(setup, local_loss=lambda x, round: float(x.square().sum())))
    return scheme


MATRICES = ParameterLayout(
    (
        Entry("linear.weight", torch.Size((4, 3)), 0),
        Entry("linear.bias", torch.Size((3,)), 12),
        Entry("scale", torch.Size(()), 15),
        Entry("convolution.weight", torch.Size((2, 3, 2, 1)), 16, channels_last=True),
    )
)
"""28 values, in matrices and otherwise."""
SERVED = (Federated(6), Federated(9, server=4, rate=0.5, standby=2), Federated(5, clients=1, down="all"))
UPDATES = (Federated(6), Federated(9, server=4, rate=0.5, standby=2, down="all"))
DENSE = (REGULAR, FullyConnected(5))
TREES = (Chain(8), Star(5), BinaryTree(7))

CASES: dict[str, Case] = {
    "all_reduce": Case(
        AllReduce,
        graphs=(FullyConnected(6),),
        matrix=lambda weighted: np.full((weighted.num_nodes,) * 2, 1 / weighted.num_nodes),
    ),
    "balance": Case(Balance, chains=LOSSY),
    "beer": Case(Beer, chains=LOSSY),
    "beer_per_edge": Case(
        lambda: SHARINGS.find("beer_per_edge")(memory=2), graphs=CHANGING_GRAPHS, chains=(plain, coded)
    ),
    "cesar": Case(
        lambda: masked(Cesar, bits=64, scale=1 << 50),
        graphs=(RING, REGULAR, FullyConnected(5), EpidemicOracle(6, 3, seed=1)),
        chains=(lambda: (RandomK(0.5),), lambda: (TopK(0.5),), coded, same_coordinates),
        tolerance=1e-11,
        mean_survives_loss=False,
    ),
    "choco": Case(Choco, chains=LOSSY),
    "choco_per_edge": Case(
        lambda: SHARINGS.find("choco_per_edge")(memory=2), graphs=CHANGING_GRAPHS, chains=(plain, coded)
    ),
    "clipped_gossip": Case(ClippedGossip, chains=LOSSY),
    "consensus_control": Case(
        lambda: ConsensusControl(target=0.5), graphs=(RING, *CHANGING_GRAPHS), chains=(plain, zipped)
    ),
    "consensus_control slowly": Case(
        lambda: ConsensusControl(target=0.5, slow_down=True), graphs=(RING,), chains=(plain,)
    ),
    "d2": Case(D2, graphs=(Chain(8), Ring(7), FullyConnected(6))),
    "decent_lam": Case(DecentLam, chains=(plain, cast)),
    "deep_squeeze": Case(DeepSqueeze, chains=LOSSY),
    "demo": Case(lambda: DeMo(0.3, matrices=False), graphs=(FullyConnected(5),), chains=(plain, cast)),
    "demo matrices": Case(
        lambda: DeMo(0.3, chunk=2),
        graphs=(FullyConnected(5),),
        chains=(plain,),
        length=28,
        parameters=MATRICES,
    ),
    "exact_diffusion": Case(ExactDiffusion),
    "fed_adam": Case(FedAdam, graphs=SERVED, weights=Uniform(), chains=(plain, coded)),
    "fed_avg": Case(
        FedAvg, graphs=SERVED, weights=Uniform(), chains=(*LOSSY, lambda: (ErrorFeedback(), *coded()))
    ),
    "fed_prox": Case(lambda: FedProx(mu=0.5), graphs=SERVED, weights=Uniform()),
    "fed_stc": Case(lambda: FedStc(fraction=0.3), graphs=UPDATES, weights=Uniform(), chains=(plain,)),
    "fed_yogi": Case(SHARINGS.find("fed_yogi"), graphs=SERVED, weights=Uniform(), chains=(plain,)),
    "gasloc": Case(lambda: Gasloc(momentum=0.5), chains=LOSSY),
    "geometric_median": Case(GeometricMedian, chains=LOSSY),
    "gossip": Case(
        Gossip,
        chains=(*LOSSY, zipped, same_coordinates, rounded_same_coordinates),
        matrix=lambda weighted: weighted.matrix(),
    ),
    "gradient_tracking": Case(GradientTracking, chains=LOSSY),
    "jwins": Case(Jwins, chains=(plain, zipped), tolerance=1e-10),
    "krum": Case(Krum, graphs=DENSE, chains=LOSSY),
    "krum nearest": Case(lambda: Krum(before="nnm"), graphs=DENSE),
    "levels": Case(
        lambda: Levels(LevelScheme(Choco()), LevelScheme(Gossip(), (Cast(),))),
        graphs=(Hierarchical(9, 3, every=2),),
        chains=(plain,),
        keeps_equal=False,
    ),
    "levels served": Case(
        lambda: Levels(LevelScheme(Scaffold(eta=0.9)), LevelScheme(FedAdam())),
        graphs=(Hierarchical(9, 3, inner="federated", outer="federated", every=2),),
        weights=Uniform(),
        chains=(plain,),
    ),
    "median": Case(Median, chains=LOSSY),
    "moniqua": Case(lambda: Moniqua(theta=8.0), chains=(plain,), tolerance=1e-11),
    "mosaic": Case(
        Mosaic, graphs=(MosaicGraph(6, 3, 3, seed=1), MosaicGraph(7, 2, 2, seed=2)), chains=(plain,)
    ),
    "multi_gossip": Case(
        lambda: MultiGossip(steps=3),
        graphs=(*SOME_GRAPHS[:2], *CHANGING_GRAPHS),
        chains=(plain, cast, zipped),
    ),
    "multi_gossip accelerated": Case(
        lambda: MultiGossip(steps=3, acceleration="chebyshev"), chains=(plain, cast)
    ),
    "muffliato": Case(
        lambda: Muffliato(noise=1e-17, steps=3, generator="seeded"), chains=(plain,), tolerance=1e-11
    ),
    "none": Case(NoSharing, matrix=lambda weighted: np.eye(weighted.num_nodes)),
    "parameter_server": Case(ParameterServer, graphs=SERVED, weights=Uniform(), chains=LOSSY),
    "parameter_server adam": Case(
        lambda: ParameterServer(optimizer="adam"), graphs=SERVED[:1], weights=Uniform(), chains=(plain,)
    ),
    "power_gossip": Case(PowerGossip, chains=(plain,), length=28, parameters=MATRICES),
    "power_gossip rank 2": Case(
        lambda: PowerGossip(rank=2), graphs=(RING,), chains=(plain,), length=28, parameters=MATRICES
    ),
    "power_gossip changing": Case(
        PowerGossip, graphs=CHANGING_GRAPHS, chains=(plain,), length=28, parameters=MATRICES
    ),
    "push_sum": Case(PushSum),
    "push_sum directed": Case(PushSum, graphs=(Exponential(6),), weights=Uniform()),
    "quasi_global": Case(QuasiGlobal, chains=LOSSY),
    "quasi_global nesterov": Case(lambda: QuasiGlobal(nesterov=True), graphs=(RING,)),
    "relay_sum": Case(RelaySum, graphs=TREES),
    "relay_sum initial": Case(lambda: RelaySum(missing="initial"), graphs=TREES[:1]),
    "scaffold": Case(Scaffold, graphs=SERVED, weights=Uniform()),
    "rfa": Case(Rfa, chains=LOSSY),
    "secure_aggregation": Case(
        masked,
        graphs=(RING, REGULAR, FullyConnected(5)),
        chains=(plain, same_coordinates),
        tolerance=4 * 5 * 2**-17,
        mean_survives_loss=False,
    ),
    "secure_aggregation fine": Case(
        lambda: masked(bits=64, scale=1 << 50),
        graphs=(RING, REGULAR, FullyConnected(5)),
        chains=(plain,),
        matrix=lambda weighted: weighted.matrix(),
        mean_survives_loss=False,
    ),
    "secure_aggregation threshold": Case(
        lambda: masked(bits=64, scale=1 << 50, threshold=0.5),
        graphs=(REGULAR, EpidemicOracle(6, 3, seed=1)),
        chains=(plain, same_coordinates),
        tolerance=1e-11,
        mean_survives_loss=False,
    ),
    "shatter": Case(
        shattered,
        graphs=(Relayed(6, 4, seed=1), Relayed(7, 2, seed=2)),
        chains=(plain,),
        tolerance=1e-11,
        mean_survives_loss=False,
    ),
    "sparse_loco": Case(
        lambda: SparseLoCo(0.3, chunk=4),
        graphs=(FullyConnected(5),),
        chains=(plain, cast, lambda: (Qsgd(levels=1, norm="max"),)),
    ),
    "stc": Case(lambda: Stc(fraction=0.3), chains=(plain,)),
    "trimmed_mean": Case(TrimmedMean, graphs=DENSE, chains=LOSSY),
    "trimmed_mean buckets": Case(
        lambda: TrimmedMean(before="bucketing", few="mean"), graphs=DENSE[1:], keeps_equal=True
    ),
    "ubar": Case(prefers_small_models, chains=LOSSY),
    "stc server": Case(lambda: Stc(fraction=0.3, server=0), graphs=(Star(5),), chains=(plain,)),
    "zip_dl": Case(
        lambda: ZipDl(sigma=1e-17, generator="seeded"),
        chains=(plain,),
        matrix=lambda weighted: weighted.matrix(),
        mean_survives_loss=False,
    ),
}
"""By an id that begins with the scheme's name; one scheme may have several."""
