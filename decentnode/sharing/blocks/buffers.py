"""Averages running statistics in full, outside of what a scheme shares, whatever its chain does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from decentnode.core.payload import Layout, Payload
from decentnode.core.registry import name_of
from decentnode.core.vector import AdjustGradient, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.base import View
from decentnode.sharing.base import Exchange, Incoming, Setup, Sharing
from decentnode.sharing.blocks.scalar_field import ScalarField
from decentnode.sharing.blocks.server import ServerSharing
from decentnode.sharing.blocks.weighted_sum import Terms
from decentnode.sharing.wrapper import SchemeWrapper
from decentnode.transforms.base import Transform
from decentnode.transforms.chain import Chain


class AveragedBuffers(SchemeWrapper):
    """A scheme for the parameters; the buffers behind them in the vector are averaged as gossip does.

    b_i <- sum_j w_ij b_j,   with the own b_i for those that did not arrive

    A variance that was rounded, sent in part or extrapolated may become negative, and then no loss is finite.
    An average of variances stays positive. All b_i travel in full as the last field of every payload. State:
    that of the scheme, which is bound to the parameters alone.
    """

    _buffers: Tensor
    """The buffers of the node's own model in this round."""

    def make_chain(
        self, transforms: Sequence[Transform], elements: int, dtype: torch.dtype = torch.float32,
        parameters: ParameterLayout | None = None,
    ) -> Chain:  # fmt: skip
        assert parameters is not None, "buffers have places in the layout"
        of_scheme = parameters.parameters
        return self.scheme.make_chain(transforms, of_scheme.numel, dtype, parameters=of_scheme)

    def adjust_setup(self, setup: Setup) -> Setup:
        layout, whole_loss = setup.layout.parameters, setup.local_loss
        if whole_loss is None:
            return replace(setup, layout=layout)
        return replace(
            setup, layout=layout, local_loss=lambda x, round: whole_loss(torch.cat((x, self._buffers)), round)
        )

    def bind(self, setup: Setup) -> None:
        super().bind(setup)
        self._end = setup.layout.parameters.numel
        dtype = setup.chain.layouts[0].fields[0].dtype
        self._buffer_field = ScalarField("buffers", dtype, setup.layout.numel - self._end)

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
        self._buffers = vector[self._end :]
        return self._joined(self.scheme.outgoing(vector[: self._end], view), vector[self._end :])

    def mix(self, vector: Tensor, incoming: Incoming, view: View, out: Tensor) -> None:
        self._buffers = vector[self._end :]
        received: dict[int, Tensor] = {view.rank: self._buffers}
        parameters = self._split(incoming, 0, received)
        self.scheme.mix(vector[: self._end], parameters, view, out[: self._end])
        self.weighted_mix(received, view, out[self._end :])

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Runs one round of the scheme; each of its exchanges also carries the buffers."""
        self._buffers = vector[self._end :]
        received: dict[int, Tensor] = {view.rank: self._buffers}
        phases = count()

        async def with_buffers(outgoing: Mapping[int, Payload], sources: Sequence[int]) -> Incoming:
            incoming = await exchange(self._joined(outgoing, self._buffers), sources)
            return self._split(incoming, next(phases), received)

        await self.scheme.share(vector[: self._end], view, with_buffers, out=out[: self._end])
        self.weighted_mix(received, view, out[self._end :])

    def adjust_change(self, change: Tensor, view: View) -> None:
        self.scheme.adjust_change(change[: self._end], view)

    def accept(self, vector: Tensor, view: View, mixed: Tensor) -> None:
        self.scheme.accept(vector[: self._end], view, mixed[: self._end])

    def _joined(self, outgoing: Mapping[int, Payload], buffers: Tensor) -> dict[int, Payload]:
        """Appends the buffers to each payload; one payload for several targets stays one."""
        distinct = {id(payload): payload for payload in outgoing.values()}
        joined = {key: self._buffer_field.join(payload, buffers) for key, payload in distinct.items()}
        return {j: joined[id(payload)] for j, payload in outgoing.items()}

    def _split(self, incoming: Incoming, phase: int, buffers: dict[int, Tensor]) -> dict[int, Payload]:
        """Returns what the scheme receives, and adds copies of the buffers: payloads become invalid."""
        layout = self.scheme.payload_layout(phase)
        assert layout is not None, "an exchange without a payload layout ends before it begins"
        payloads: dict[int, Payload] = {}
        for j, payload in incoming.items():
            payloads[j], received = self._buffer_field.split(payload, layout)
            buffers[j] = received.to(self._buffers.device, copy=True)
        return payloads


class BuffersAtServer(AveragedBuffers):
    """A scheme with a server for the parameters; the server averages the buffers of its clients.

    b <- sum_i p_i b_i, with the weights of the scheme over the b_i that arrived; b goes down with the model.
    """

    scheme: ServerSharing

    async def share(self, vector: Tensor, view: View, exchange: Exchange, out: Tensor) -> None:
        """Runs one round of the scheme; buffers travel up, and their average comes down."""
        self._buffers = vector[self._end :]
        buffers, serves = self._buffers.clone(), view.rank in view.servers
        phases = count()

        async def with_buffers(outgoing: Mapping[int, Payload], sources: Sequence[int]) -> Incoming:
            phase, received = next(phases), dict[int, Tensor]()
            incoming = await exchange(self._joined(outgoing, buffers.clone()), sources)
            payloads = self._split(incoming, phase, received)
            if phase == 0 and serves:
                self._average(received, buffers, view)
            elif phase == 1:
                first = next(
                    (j for j in self.scheme.in_order(view.servers) if j in received or j == view.rank), -1
                )
                if first in received:
                    buffers.copy_(received[first])
            return payloads

        await self.scheme.share(vector[: self._end], view, with_buffers, out=out[: self._end])
        out[self._end :].copy_(buffers)

    def _average(self, received: dict[int, Tensor], buffers: Tensor, view: View) -> None:
        """Writes the average into `buffers`, which stay as they are where nothing arrived."""
        local, trains = buffers.clone(), self.scheme.has_samples(view.rank)

        def terms(usable: Mapping[int, Tensor]) -> Terms:
            parts = {j: usable[j] for j in sorted(usable) if trains or j != view.rank}
            return self.scheme.weighted(parts) if parts else [(1.0, local)]

        self.weighted_mix({**received, view.rank: local}, view, buffers, terms=terms)


def with_averaged_buffers(scheme: Sharing) -> AveragedBuffers:
    """The scheme for the parameters, and averages of the buffers with what it sends."""
    return BuffersAtServer(scheme) if isinstance(scheme, ServerSharing) else AveragedBuffers(scheme)


def stay_in_vector(layout: ParameterLayout, scheme: Sharing, transforms: Sequence[Transform]) -> bool:
    """Whether the scheme itself mixes the buffers in full, sends none, or must hide them as it does all.

    Raises BadInput where they would have to travel outside of what hides the model from peers, or of a rule
    that limits what wrong models do.
    """
    if not any(entry.is_buffer for entry in layout.entries) or scheme.promises.sends == "nothing":
        return True
    hiding = [name_of(stage) for stage in transforms if stage.protects]
    if scheme.promises.protects and transforms:
        hiding.append(name_of(scheme))
    if hiding:
        raise BadInput.at(
            "training.mix_buffers",
            f"running statistics would travel beside the transforms, where {hiding[0]} "
            "does not hide them; leave it out, and every node keeps its own",
        )
    if scheme.promises.limits_models and not transforms:
        # It limits what a wrong model does in all that it mixes, and an average beside it would not.
        return True
    if limiting := [name_of(rule) for rule in scheme.schemes if rule.promises.limits_models]:
        raise BadInput.at(
            "training.mix_buffers",
            f"running statistics would be averaged beside {limiting[0]}, which would not limit what a wrong "
            "model adds to them; leave it out, and every node keeps its own",
        )
    return scheme.promises.protects or (scheme.only_averages and not transforms)
