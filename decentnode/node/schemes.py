"""Makes the schemes of a run's nodes, with all that is around them, and says what memory they send from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from decentnode.communication.base import STAGING_ALIGNMENT, BufferSpec
from decentnode.config.consistency import defects_of_chain
from decentnode.config.settings import Settings
from decentnode.core.registry import name_of
from decentnode.core.vector import ParameterLayout, Vector
from decentnode.errors import BadInput
from decentnode.graph.mixing import WeightedGraph
from decentnode.models.module_copies import copied
from decentnode.node.run_samples import RunSamples
from decentnode.sharing.asynchronous.base import AsyncSharing
from decentnode.sharing.base import Setup, Sharing, SharingBase
from decentnode.sharing.blocks.buffers import stay_in_vector, with_averaged_buffers
from decentnode.sharing.overlays import on_overlay
from decentnode.training.evaluation import LocalLoss
from decentnode.training.settings import BATCH_SIZE

COORDINATES = "records.coordinates"


@dataclass(frozen=True)
class Schemes:
    """Makes new schemes; each has what its node gives it (`Setup`), and is ready to begin."""

    settings: Settings
    graph: WeightedGraph
    samples: RunSamples
    network: nn.Module
    layout: ParameterLayout
    own_samples: int | None = None
    """The number of a node's training samples; None: as the partition says."""
    own_loss: Callable[[Tensor, int], float] | None = None
    """The loss of a model on samples of the node's own loop, in a round."""

    def plain(self, rank: int = 0) -> SharingBase:
        """A scheme of an honest node, without the exchanges of `on_overlay`."""
        return self._bound(self._made(), rank)

    def honest(self, rank: int = 0) -> SharingBase:
        """A scheme of an honest node; raises BadInput where the chain does not fit the network."""
        return self._bound(on_overlay(self._made(), self.graph), rank)

    def of_node(self, rank: int, vector: Vector | None = None) -> SharingBase:
        """The scheme of a node as it runs: that of an adversary lies, and overlays agree on edges.

        `vector`: the node's own, with its personal parameters; None: they are the initial ones.
        """
        scheme = self._made()
        for plugin in self.settings.adversaries:
            attack = plugin.make()
            scheme = attack.wrap(scheme) if rank in attack.ranks else scheme
        return self._bound(on_overlay(scheme, self.graph), rank, vector)

    @cached_property
    def most_payload_bytes(self) -> int:
        """Bytes of the largest payload for one neighbor."""
        scheme = self.honest()
        layouts = [scheme.payload_layout(phase) for phase in range(scheme.promises.phases)]
        return max(layout.max_bytes if layout else 0 for layout in layouts)

    def memory(self, rank: int) -> BufferSpec:
        """The memory that a node sends from."""
        scheme, graph, layout = self.of_node(rank), self.graph.graph, self.layout
        # Early payloads of other ranks would wait in memory without ever being read.
        peers = frozenset(graph.partners(rank)) if graph.changes.repeats else None
        if isinstance(scheme, AsyncSharing):
            # A message owns its memory until it is sent, so no slot of an exchange is needed.
            return BufferSpec(layout.numel, layout.dtype, parts=scheme.burst, peers=peers)
        is_shared = scheme.promises.sends_one_payload and not scheme.chain.per_receiver
        # A payload per receiver needs room for each of them.
        several = 1 if is_shared else self.graph.most_targets(rank)
        return BufferSpec(
            layout.numel, layout.dtype, several * (self.most_payload_bytes + STAGING_ALIGNMENT), peers=peers
        )

    def _made(self) -> SharingBase:
        """A scheme that is not bound yet, with averaged buffers around it where it needs them."""
        scheme: SharingBase = self.settings.sharing.make()
        transforms = [*scheme.first_transforms(), *(t.make() for t in self.settings.sharing.transforms)]
        if not isinstance(scheme, Sharing) or stay_in_vector(self.layout.shared, scheme, transforms):
            return scheme
        return with_averaged_buffers(scheme)

    def _bound(self, scheme: SharingBase, rank: int, vector: Vector | None = None) -> SharingBase:
        layout, settings, shard = self.layout.shared, self.settings, self.samples.shard(rank)
        transforms = [t.make() for t in settings.sharing.transforms]
        local_loss = self.own_loss
        if scheme.requirements.local_loss and shard.size and local_loss is None:
            # In a network of its own.
            network = copied(self.network).train()
            objective = settings.training.objective(network, layout.channels_last)
            local_loss = LocalLoss(
                objective, layout, shard, batch_size=settings.training.batch_size or BATCH_SIZE,
                vector=vector,
            )  # fmt: skip
        try:
            chain = scheme.make_chain(transforms, layout.numel, layout.dtype, parameters=layout)
        except BadInput as error:
            raise BadInput(*defects_of_chain(scheme, error)) from None
        if self.settings.records.coordinates is not None:
            # Before the scheme copies the chain.
            if len(getattr(scheme, "schemes", ())) > 1 or scheme.promises.protects:
                raise BadInput.at(COORDINATES, f"cannot be counted with {name_of(scheme)}; leave it out")
            if chain.count_sent() is None:
                raise BadInput.at(
                    COORDINATES,
                    f"no transform of {name_of(scheme)} selects coordinates, so there is nothing to count; "
                    "add one such as top_k, or leave it out",
                )
        watched = frozenset[int]() if rank in settings.adversary_ranks else settings.adversary_ranks
        setup = Setup(
            layout=layout, chain=chain, graph=self.graph, rank=rank,
            samples=len(self.samples.parts[rank]) if self.own_samples is None else self.own_samples,
            local_loss=local_loss, watched=watched,
        )  # fmt: skip
        scheme.bind(setup)
        return scheme
