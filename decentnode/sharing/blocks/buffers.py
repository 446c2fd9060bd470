"""Averages running statistics in full beside what a scheme shares, whatever the scheme and its chain do."""

from collections.abc import Mapping, Sequence
from itertools import count

from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import name_of
from decentnode.core.vector import AdjustGradient, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.graph.mixing import live_weights
from decentnode.sharing.all_reduce import AllReduce
from decentnode.sharing.base import Exchange, Incoming, Sharing
from decentnode.sharing.blocks.scalar_field import ScalarField
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.sharing.gossip import Gossip
from decentnode.transforms.base import Transform

OF_SCHEME = (
    "num_nodes", "chain", "seed", "refusals", "tolerates_loss", "takes_back", "phases", "sends_one_payload",
    "handshake", "receive_handshakes", "on_peer_lost", "on_peer_back", "state_dict", "load_state_dict",
    "_refused",
)  # fmt: skip
"""What is that of the scheme inside: attributes that a node reads during a run, and methods."""


class BuffersBeside(Sharing):
    """A scheme for the parameters; the buffers behind them in the vector are averaged as gossip does.

    b_i <- sum_j w_ij b_j,   with the own b_i for those that did not arrive

    A variance that was rounded, sent in part or extrapolated may become negative, and then no loss is finite.
    An average of variances stays positive. All b_i travel in full as the last field of every payload. State:
    that of the scheme, which is bound to the parameters alone.
    """

    def __init__(self, scheme: Sharing, layout: ParameterLayout) -> None:
        """`layout` is that of the whole vector."""
        self.scheme, self.layout = scheme, layout
        self._end = scheme.layout.numel
        dtype = scheme.chain.layouts[0].fields[0].dtype
        self._buffer_field = ScalarField("buffers", dtype, layout.numel - self._end)
        self.registered_name = name_of(scheme)
        for name in OF_SCHEME:
            setattr(self, name, getattr(scheme, name))

    @property
    def gives_model(self) -> bool:
        return self.scheme.gives_model

    @property
    def reach(self) -> float:
        return self.scheme.reach

    @property
    def adjust_gradient(self) -> AdjustGradient | None:
        adjust, end = self.scheme.adjust_gradient, self._end
        if adjust is None:
            return None
        return lambda gradient, vector, step: adjust(gradient[:end], vector[:end], step)

    def begin(self, vector: Tensor) -> None:
        self.scheme.begin(vector[: self._end])

    def payload_layout(self, phase: int = 0) -> Layout | None:
        inner = self.scheme.payload_layout(phase)
        return None if inner is None else self._buffer_field.layout(inner)

    def outgoing(self, vector: Tensor, view: View) -> Mapping[int, Payload]:
        return self._joined(self.scheme.outgoing(vector[: self._end], view), vector[self._end :])

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        heard: dict[int, Tensor] = {}
        parameters = self._split(incoming, 0, vector, heard)
        self.scheme.mix(vector[: self._end], parameters, view, out[: self._end])
        self._average(vector, heard, view, out)

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Runs one round of the scheme; each of its exchanges also carries the buffers."""
        heard: dict[int, Tensor] = {}
        phases = count()

        async def with_buffers(outgoing: Mapping[int, Payload], sources: Sequence[int]) -> Incoming:
            incoming = await exchange(self._joined(outgoing, vector[self._end :]), sources)
            return self._split(incoming, next(phases), vector, heard)

        await self.scheme.share(vector[: self._end], view, with_buffers, out[: self._end])
        self._average(vector, heard, view, out)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        self.scheme.accept(vector[: self._end], view, mixed[: self._end])

    def _joined(self, outgoing: Mapping[int, Payload], buffers: Tensor) -> dict[int, Payload]:
        """Appends the buffers to each payload; one payload for several targets stays one."""
        distinct = {id(payload): payload for payload in outgoing.values()}
        joined = {key: self._buffer_field.join(payload, buffers) for key, payload in distinct.items()}
        return {j: joined[id(payload)] for j, payload in outgoing.items()}

    def _split(
        self, incoming: Incoming, phase: int, vector: Tensor, heard: dict[int, Tensor]
    ) -> dict[int, Payload]:
        """Returns what the scheme receives; copies buffers to `heard`, as payloads are invalid afterwards."""
        inner, found = self.scheme.payload_layout(phase), dict[int, Payload]()
        assert inner is not None, "an exchange without a payload layout ends before it begins"
        for j, payload in incoming.items():
            found[j], buffers = self._buffer_field.split(payload, inner)
            heard[j] = buffers.to(vector.device, copy=True)
        return found

    def _average(self, vector: Tensor, heard: dict[int, Tensor], view: View, out: Tensor) -> None:
        own = vector[self._end :]

        def terms(heard: Mapping[int, Tensor]) -> Terms:
            weights = live_weights(view.weights, view.rank, heard)
            return ((weight, own if j == view.rank else heard[j]) for j, weight in weights.items())

        self._mix_finite(heard, own, terms, view, out[self._end :])


class BuffersAtServer(BuffersBeside):
    """A scheme with a server for the parameters; the server averages the buffers of its clients.

    b <- sum_i p_i b_i, with the weights of the scheme over the b_i that arrived; b goes down with the model.
    """

    scheme: ServerSharing

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Runs one round of the scheme; buffers travel up, and their average comes down."""
        buffers, serves = vector[self._end :].clone(), view.rank in view.servers
        phases = count()

        async def with_buffers(outgoing: Mapping[int, Payload], sources: Sequence[int]) -> Incoming:
            phase, heard = next(phases), dict[int, Tensor]()
            incoming = await exchange(self._joined(outgoing, buffers.clone()), sources)
            found = self._split(incoming, phase, vector, heard)
            if phase == 0 and serves:
                own = {view.rank: vector[self._end :]} if self.scheme.has_samples(view.rank) else {}
                self._add_up(dict(sorted((heard | own).items())), buffers, view)
            elif phase == 1:
                first = next(
                    (j for j in self.scheme.in_order(view.servers) if j in heard or j == view.rank), -1
                )
                if first in heard:
                    buffers.copy_(heard[first])
            return found

        await self.scheme.share(vector[: self._end], view, with_buffers, out[: self._end])
        out[self._end :].copy_(buffers)

    def _add_up(self, heard: dict[int, Tensor], buffers: Tensor, view: View) -> None:
        """Writes the average into `buffers`, which stay as they are where nothing arrived."""
        kept = buffers.clone()

        def terms(heard: Mapping[int, Tensor]) -> Terms:
            return self.scheme.weighted(heard) if heard else [(1.0, kept)]

        self._mix_finite(heard, kept, terms, view, buffers)


def beside(scheme: Sharing, layout: ParameterLayout) -> BuffersBeside:
    """The scheme for the parameters, with the buffers beside what it sends."""
    cls = BuffersAtServer if isinstance(scheme, ServerSharing) else BuffersBeside
    return cls(scheme, layout)


def stay_in_vector(layout: ParameterLayout, scheme: Sharing, transforms: Sequence[Transform]) -> bool:
    """Whether the scheme itself averages the buffers in full, sends none, or must hide them as it does all.

    Raises BadInput where they would have to travel beside what hides the model from peers.
    """
    if not any(entry.is_buffer for entry in layout.entries) or scheme.sends == "nothing":
        return True
    hiding = [name_of(stage) for stage in transforms if stage.protects]
    if scheme.protects and transforms:
        hiding.append(name_of(scheme))
    if hiding:
        raise BadInput.at(
            "training.mix_buffers",
            f"running statistics would travel beside the transforms, where {hiding[0]} "
            "does not hide them; leave it out, and every node keeps its own",
        )
    return scheme.protects or (type(scheme) in (Gossip, AllReduce) and not transforms)
