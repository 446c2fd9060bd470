"""How payloads become models: what a party makes of a transcript, with what such a party knows.

A payload is decoded by the scheme's own code with the settings of the run, which are public. Payloads of
whole models are the models. Differences add up to a public copy. What a scheme masks is read as its receiver
reads it: only the weighted mean of all that arrived (`replay.py`).
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decentnode.attacks.passive.replay import MixReplay, is_mixed
from decentnode.attacks.passive.scene import Scene
from decentnode.core.payload import Payload, PayloadError
from decentnode.core.registry import name_of
from decentnode.formats.transcript import TranscriptLine
from decentnode.sharing.base import Sharing, SharingBase
from decentnode.sharing.choco import Choco
from decentnode.sharing.muffliato import Muffliato
from decentnode.sharing.secure_aggregation import SecureAggregation
from decentnode.sharing.zip_dl import ZipDl
from decentnode.transforms.base import Context

Received = Mapping[int, list[tuple[TranscriptLine, Tensor | None]]]
"""The payloads of a round by receiver, uint8 of shape (bytes,); None: only their size is known."""


def is_readable(sharing: SharingBase, has_ranks: bool) -> str:
    """Why a party cannot read what a scheme sends; empty if it can."""
    scheme = name_of(sharing)
    if isinstance(sharing, SecureAggregation) and sharing.threshold is not None:
        return f"cannot read {scheme} with threshold, which shows the same sums; leave threshold out"
    if is_mixed(sharing):
        return "" if has_ranks else f"reads nothing on a link: {scheme} hides each payload; name ranks"
    if isinstance(sharing, Choco | ZipDl | Muffliato):
        return ""
    plain = type(sharing).payload_layout is SharingBase.payload_layout
    if sharing.promises.sends == "models" and plain and not sharing.promises.protects:
        return ""
    known = "whole models, choco, muffliato, zip_dl, secure_aggregation, cesar and shatter"
    return f"cannot read what {scheme} sends; it reads {known}"


@dataclass
class Sight:
    """What a party knows after a round."""

    round: int
    models: dict[int, Tensor] = field(default_factory=dict)
    """The model that each victim sent in this round, as the party estimates it; float32, shape (d,)."""
    starts: dict[int, Tensor] = field(default_factory=dict)
    """The model of each victim before the local steps of this round, as the party estimates it."""
    lines: list[TranscriptLine] = field(default_factory=list)
    """The payloads of the round, in the order of their arrival at each receiver."""
    earlier: dict[int, Tensor] = field(default_factory=dict)
    """The model that each victim sent before, in the last round that the party has seen."""
    messages: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)
    """What arrived in this round, by exchange, receiver and source, each of shape (d,); the source is -1 for
    the mean of all that arrived. For attacks that need all rounds."""
    trained: dict[int, Tensor] = field(default_factory=dict)
    """The models of the party's own ranks after their local steps, where they are recorded."""
    mixed: dict[int, Tensor] = field(default_factory=dict)
    """The same after the mix."""


class Reader:
    """Follows what a party receives, round after round."""

    def __init__(self, scene: Scene, listeners: list[int], keys: Mapping[int, bytes]) -> None:
        """`keys`: the private keys of listeners, where their scheme has one."""
        self._scene = scene
        self._schemes = {rank: scene.scheme(rank) for rank in listeners}
        hidden = [rank for rank, scheme in self._schemes.items() if is_mixed(scheme)]
        self._replays = {rank: MixReplay(scene, rank, keys.get(rank, b"")) for rank in hidden}
        for scheme in self._schemes.values():
            scheme.begin(scene.initial)
        self._copies: dict[tuple[int, int], Tensor] = {}
        """The last model, or public copy, by receiver and source."""
        self._last_sight = Sight(-1)

    def read(self, round: int, received: Received) -> Sight:
        """Returns the knowledge after a round; rounds come in order, and some may be missing."""
        models_of: dict[int, list[Tensor]] = {}
        self._messages = dict[tuple[int, int, int], Tensor]()
        for receiver, payloads in sorted(received.items()):
            for source, model in self._models(receiver, round, payloads).items():
                models_of.setdefault(source, []).append(model)
        # Colluding receivers of different payloads know their mean.
        models = {source: torch.stack(several).mean(0) for source, several in sorted(models_of.items())}
        lines = [line for payloads in received.values() for line, _ in payloads]
        starts = self._starts(round, models)
        earlier = {**self._last_sight.earlier, **self._last_sight.models}
        self._last_sight = Sight(round, models, starts, lines=lines, earlier=earlier, messages=self._messages)
        return self._last_sight

    def _models(
        self, receiver: int, round: int, payloads: list[tuple[TranscriptLine, Tensor | None]]
    ) -> dict[int, Tensor]:
        scheme = self._schemes[receiver]
        phases = [self._arrived(scheme, phase, payloads) for phase in range(scheme.promises.phases)]
        if receiver in self._replays:
            known = self._copies.get((receiver, receiver), self._scene.initial)
            models = self._replays[receiver].read(round, phases, known)
            for mean in models.values():
                self._copies[receiver, receiver] = self._messages[0, receiver, -1] = mean
            return models
        if len(phases) > 1:
            for phase, arrived in enumerate(phases):
                for source, payload in arrived.items():
                    context = Context(self._scene.seed, round, source, receiver=receiver)
                    self._messages[phase, receiver, source] = scheme.chain.decode(payload, context).clone()
        # The noisy models of some schemes are read as if they were models.
        models = {
            source: self._model(scheme, receiver, round, source=source, payload=p)
            for source, p in phases[0].items()
        }
        self._messages |= {(0, receiver, source): self._copies[receiver, source] for source in models}
        return {source: model.float() for source, model in models.items()}

    def _arrived(
        self, scheme: Sharing, phase: int, payloads: list[tuple[TranscriptLine, Tensor | None]]
    ) -> dict[int, Payload]:
        """The payloads of one exchange by source."""
        layout, arrived = scheme.payload_layout(phase), dict[int, Payload]()
        for line, content in payloads:
            fits = layout is not None and (line.phase, line.layout) == (phase, layout.hash)
            if layout is not None and content is not None and fits:
                # What does not parse was of no use to the receiver either.
                with contextlib.suppress(PayloadError):
                    arrived[line.source] = Payload.parse(layout, content)
        return arrived

    def _model(self, scheme: Sharing, receiver: int, round: int, source: int, payload: Payload) -> Tensor:
        place = receiver, source
        last = self._copies.get(place, self._scene.initial)
        # What was not sent is as it was known before.
        is_whole = scheme.promises.sends == "models"
        context = Context(self._scene.seed, round, source, receiver=receiver, fill=last if is_whole else None)
        decoded = scheme.chain.decode(payload, context)
        self._copies[place] = decoded.clone() if is_whole else last + decoded
        return self._copies[place]

    def _starts(self, round: int, models: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The mixes with which the victims began, from what was seen in the round before."""
        if round == 0:
            return dict.fromkeys(models, self._scene.initial.float())
        if self._last_sight.round != round - 1:
            return {}
        starts, known = {}, self._last_sight.models
        for victim in models:
            weights = self._scene.graph.view(victim, round - 1, 0.0).weights
            parts = {j: w for j, w in weights.items() if j in known and w}
            if victim in parts:
                total = sum(parts.values())
                starts[victim] = torch.stack([known[j] * (w / total) for j, w in parts.items()]).sum(0)
        return starts
