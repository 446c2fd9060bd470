"""One round on copies before the start: a batch forward and backward, encode, decode, mix.

It runs in a child process, so it does not change this one: no random state and no plug-in. It also starts no
CUDA thread here, which nodes forked later could not inherit.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, BinaryIO

import msgspec
import torch
from torch import Tensor

from decentnode.config.error_locations import defect_of
from decentnode.config.settings import Settings
from decentnode.core.payload import Payload
from decentnode.core.text import first_line
from decentnode.core.timeouts import Timeouts
from decentnode.datasets.base import Batch
from decentnode.errors import BadInput, DecentnodeError, Defect, refuse
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph, live_weights
from decentnode.node.child_answers import answer_of
from decentnode.node.execution.batch_trial import try_batch
from decentnode.node.experiment import Experiment
from decentnode.node.factory import NodeFactory, is_on_cpu, settings_on_cpu
from decentnode.node.late_imports import COMPILER
from decentnode.node.model_trial import ModelTrial
from decentnode.sharing.asynchronous.base import AsyncSharing, PeerMessage
from decentnode.sharing.base import Incoming, Sharing, SharingBase
from decentnode.sharing.blocks.buffers import AveragedBuffers
from decentnode.sharing.blocks.lockstep import Requests, delivered, share_all
from decentnode.training.settings import BatchExecution
from decentnode.transforms.base import Context

MOST_NODES = 3
"""Nodes in the dry round: one node and some of its neighbors in round 0."""
LEARNING_RATE = 0.01
"""The learning rate if the optimizer's options name none."""
HALF = "'Half'"
"""A part of torch's error about an operation that a device does not have in float16."""


def is_needed(settings: Settings) -> bool:
    """Whether a part of the round may fail on this machine, or comes from outside this package."""
    training = settings.training
    may_fail = training.amp == "float16" or bool(training.compile)
    batches = isinstance(training.execution, BatchExecution)
    return settings.has_foreign_plugins or batches or (may_fail and is_on_cpu(settings))


class Findings(msgspec.Struct):
    """The results of the dry round."""

    defects: list[Defect] = []
    notices: list[str] = []
    """Notices that are no defects, but should be known."""
    uses_compiler: bool = False
    """Whether the nodes of this round used torch's compiler."""


def check(experiment: Experiment, saves: bool = False) -> Findings:
    """Runs the dry round; raises BadInput with a line for each defect.

    `saves`: the run depends on checkpoints, because it is resumed; `checkpoint.every` says so, too.
    """
    compiles = bool(experiment.settings.training.compile)
    limit = Timeouts.compile if compiles else experiment.settings.failures.start_deadline

    def write_findings(file: BinaryIO) -> None:
        result = findings(experiment, saves)
        result = msgspec.structs.replace(result, uses_compiler=COMPILER in sys.modules)
        file.write(msgspec.json.encode(result))

    answer = answer_of(write_findings, limit)
    what, remedy = "a dry round of one batch", "take a smaller model"
    if compiles:
        answer.refuse_late(what, remedy, key="training.compile")
    # Without a key: most files leave the limit out.
    answer.refuse_late(what, f"{remedy}, or give it more time (failures.start_deadline)")
    # The child ended without an answer: a crash, or `os._exit` in a plug-in.
    if not answer.content:
        raise BadInput(f"a dry round of one batch did not end: {answer.end}")
    result = msgspec.json.decode(answer.content, type=Findings)
    refuse(result.defects)
    return result


def findings(experiment: Experiment, saves: bool = False) -> Findings:
    """Runs everything up to the first error; changes global state of plug-ins."""
    result = Findings()
    try:
        nodes = DryNodes(experiment)
        nodes.train()
        is_batched = isinstance(experiment.settings.training.execution, BatchExecution)
        if is_batched and nodes.trained is not None:
            try_batch(experiment, nodes.trained)
        result.defects += nodes.code()
        if not result.defects:
            asynchronous = experiment.settings.time_model.is_asynchronous
            result.defects += nodes.converse() if asynchronous else nodes.share()
        # The suite tries what is shipped.
        is_tried = experiment.settings.has_foreign_plugins and not result.defects
        if is_tried and (rank := nodes.trained) is not None:
            saves = saves or experiment.settings.checkpoint.every > 0
            trial = ModelTrial(experiment, rank, saves, notices=result.notices)
            trial.run()
    except DecentnodeError as error:
        result.defects += error.defects
    except Exception as error:  # whatever a plug-in raises
        result.defects.append(defect_of(error))
    return result


def defects(experiment: Experiment) -> list[str]:
    """The defects of an experiment, one line each; changes global state of plug-ins."""
    return [*map(str, findings(experiment).defects)]


def members_of(graph: WeightedGraph) -> list[int]:
    """The first rank with neighbors in round 0 and some of these, ascending."""
    views = (graph.view(rank, 0) for rank in range(graph.num_nodes))
    view = next((view for view in views if view.sources), graph.view(0, 0))
    return sorted({view.rank, *sorted({*view.sources, *view.targets})[: MOST_NODES - 1]})


def within(view: View, ranks: list[int]) -> View:
    """The view restricted to these ranks; the weights of the others go to the node itself."""
    targets, sources = (tuple(j for j in side if j in ranks) for side in (view.targets, view.sources))
    return replace(
        view, targets=targets, sources=sources,
        weights=live_weights(view.weights, view.rank, sources),
        outgoing_weights=live_weights(view.outgoing_weights, view.rank, targets),
        co_senders={j: tuple(k for k in view.co_senders[j] if k in ranks) for j in targets},
        servers=tuple(j for j in view.servers if j in ranks),
        levels=tuple(within(level, ranks) for level in view.levels),
    )  # fmt: skip


@dataclass
class DryNodes:
    """A few nodes with fresh schemes; one of them trains."""

    experiment: Experiment
    schemes: Mapping[int, SharingBase] = field(init=False)
    defects: list[Defect] = field(default_factory=list, init=False)
    sent: list[int] = field(default_factory=list, init=False)
    """Bytes of each payload, in all exchanges."""
    trained: int | None = field(default=None, init=False)
    """The rank that has made a step."""
    receivers: int = field(default=0, init=False)
    """How many nodes receive a payload in the first exchange of each round, added up."""

    def __post_init__(self) -> None:
        experiment = self.experiment
        self.ranks = members_of(experiment.graph)
        self.schemes = {rank: experiment.schemes.plain(rank) for rank in self.ranks}
        self.vector = NodeFactory(experiment).vector()
        handshakes = {rank: scheme.handshake() for rank, scheme in self.schemes.items()}
        for scheme in self.schemes.values():
            scheme.receive_handshakes({rank: content for rank, content in handshakes.items() if content})
            scheme.begin(self.vector.shared)
        self.models = {rank: self.vector.shared.clone() for rank in self.ranks}
        training, channels_last = settings_on_cpu(experiment.settings), experiment.layout.channels_last
        self.objective = training.objective(self.vector.module, channels_last)
        self.learning_rate = float(training.optimizer.options.get("lr") or LEARNING_RATE)

    def train(self) -> None:
        """Runs one gradient step of the first node that trains, if any."""
        experiment, training = self.experiment, self.experiment.settings.training
        able = (r for r in self.ranks if len(experiment.samples.parts[r]) and training.steps(r, 0, 1))
        if (rank := next(able, None)) is None:
            return
        self.trained = rank
        scheme, vector = self.schemes[rank], self.vector
        self.objective.module.train()
        minibatches = training.make_minibatches(experiment.samples.shard(rank))
        if training.compile:
            # Each shape may have code of its own, and the nodes find it in the compiler's cache.
            for batch in minibatches.trials():
                self._loss(batch).backward()  # type: ignore[no-untyped-call]
            vector.gradient.zero_()
        loss = self._loss(minibatches.trial())
        if not loss.requires_grad:
            name = type(self.objective.module).__name__
            raise BadInput.at(
                "model", f"the loss of {name} in training mode has no gradient; detach nothing in it"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        vector.adopt_replaced()
        gradient = vector.gradient[: len(vector.shared)]
        if scheme.adjust_gradient is not None:
            scheme.adjust_gradient(gradient, vector.shared, 0)
        self.models[rank] = vector.shared - self.learning_rate * gradient

    def _loss(self, batch: Batch) -> Tensor:
        """The loss of a minibatch; raises BadInput for what this machine cannot compute."""
        training = self.experiment.settings.training
        batch = training.augmented(batch, self.experiment.settings.seed)
        try:
            loss = self.objective(batch)[1]
        except RuntimeError as error:
            if training.compile:
                defect = f"torch.compile fails here: {first_line(error)}; leave it out"
                raise BadInput.at("training.compile", defect) from error
            if training.amp == "float16" and HALF in str(error):
                defect = f"float16 does not work on this CPU: {first_line(error)}; use bfloat16"
                raise BadInput.at("training.amp", defect) from error
            raise
        return loss

    def code(self) -> Iterator[Defect]:
        """Encodes and decodes one model with a fresh chain."""
        chain = self.experiment.schemes.plain().chain
        # Buffers after the parameters may bypass the chain.
        vector = self.models[self.ranks[0]][: chain.layouts[0].fields[0].elements]
        chain.begin(vector)
        num_added = len(chain.stages) - len(self.experiment.settings.sharing.transforms)
        sender, receiver = self.ranks[0], self.ranks[-1]
        context = Context(
            self.experiment.settings.seed, 0, sender, receiver=receiver if chain.per_receiver else None
        )
        payload = Payload.dense(vector)
        for index, transform in enumerate(chain.transforms):
            key, before = ("sharing", "transforms", index - num_added), payload.buffer.clone()
            signal, payload = payload, transform.encode(payload, context)
            name = type(transform).__name__
            if not torch.equal(signal.buffer, before):
                yield Defect(key, f"{name}.encode changes the memory that it was given; make a copy")
            if not isinstance(payload, Payload) or payload.layout.hash != chain.layouts[index + 1].hash:
                yield Defect(key, f"{name}.encode gives another payload than its layout() declares")
                return
        decoded = chain.decode(payload, context)
        if decoded.shape != vector.shape:
            shape, wanted = tuple(decoded.shape), tuple(vector.shape)
            yield Defect.at(
                "sharing.transforms", f"decode gives a vector of shape {shape}; it must be {wanted}"
            )
        elif not decoded.isfinite().all():
            yield Defect.at("sharing.transforms", "decode gives numbers that are not finite")

    def share(self, round: int = 0) -> Iterator[Defect]:
        """Runs one round of communication and checks `vector` and `out` after it."""
        graph, ranks = self.experiment.graph, self.ranks
        self.views = {rank: within(graph.view(rank, round, self.learning_rate), ranks) for rank in ranks}
        self.before = {rank: model.clone() for rank, model in self.models.items()}
        # NaN marks the elements that the scheme never writes.
        out = {rank: torch.full_like(model, torch.nan) for rank, model in self.models.items()}
        self.phase = 0
        schemes = {rank: scheme for rank, scheme in self.schemes.items() if isinstance(scheme, Sharing)}
        share_all(schemes, self.models, self.views, out=out, deliver=self._deliver)
        for rank, scheme in schemes.items():
            self.defects += self._misdeeds(rank, scheme, out[rank])
            scheme.accept(self.models[rank], self.views[rank], out[rank])
            self.models[rank] = out[rank]
        yield from dict.fromkeys(self.defects)

    def converse(self) -> Iterator[Defect]:
        """Lets each node make a step and use what the others send, twice, and checks models and messages."""
        schemes = {rank: scheme for rank, scheme in self.schemes.items() if isinstance(scheme, AsyncSharing)}
        views = {rank: within(self.experiment.graph.view(rank, 0), self.ranks) for rank in self.ranks}
        for rank, scheme in [*schemes.items()] * 2:
            name, model = type(scheme).__name__, self.models[rank]
            posts = [(rank, post) for post in scheme.before_step(model, views[rank])]
            posts += [(rank, post) for post in scheme.after_step(model, views[rank])]
            if scheme.advance_timer(inf):
                posts += [(rank, post) for post in scheme.on_timer(model, views[rank])]
            while posts:
                sender, (target, tag, number, payload) = posts.pop(0)
                layout = schemes[sender].payload_layout(tag)
                if layout is None or payload.layout.hash != layout.hash:
                    yield Defect.at(
                        "sharing", f"{name} sends another payload than payload_layout({tag}) declares"
                    )
                    return
                arrival = PeerMessage(sender, tag, number, payload=payload)
                answers = schemes[target].receive(self.models[target], arrival, views[target])
                posts += [(target, answer) for answer in answers]
                for _, error in schemes[target].refusals:
                    yield Defect.at("sharing.transforms", f"what a node sends cannot be decoded: {error}")
        if not all(model.isfinite().all() for model in self.models.values()):
            yield Defect.at("sharing", "a model has numbers that are not finite")

    def _deliver(self, requests: Requests) -> Mapping[int, Incoming]:
        for rank, request in requests.items():
            given: Any = request.outgoing
            if not isinstance(given, Mapping) or not all(
                isinstance(each, Payload) for each in given.values()
            ):
                name = type(self.schemes[rank]).__name__
                raise BadInput.at(
                    "sharing",
                    f"{name}.outgoing returns {type(given).__name__}; it must return a payload for each "
                    "target, for instance self.encode(vector, view)",
                )
            self.sent += [payload.nbytes for payload in request.outgoing.values()]
            self.receivers += 0 if self.phase else len(request.outgoing)
            scheme = self.schemes[rank]
            assert isinstance(scheme, Sharing), "only these exchange in rounds"
            self.defects += self._mistakes(rank, scheme, request.outgoing)
        self.phase += 1
        return delivered(requests) if not self.defects else {rank: {} for rank in requests}

    def _mistakes(self, rank: int, scheme: Sharing, outgoing: Mapping[int, Payload]) -> Iterator[Defect]:
        """Defects of what a node sends."""
        name, layout = type(_plugin(scheme)).__name__, scheme.payload_layout(self.phase)
        if self._is_changed(rank):
            yield Defect.at(
                "sharing", f"{name}.outgoing writes to vector, which peers may still read; make a copy"
            )
        if self.phase >= scheme.promises.phases:
            few = f"{name} exchanges more than {scheme.promises.phases} times"
            yield Defect.at("sharing", f"{few}; let its promises have phases={self.phase + 1}")
        if strange := set(outgoing) - set(self.views[rank].targets):
            yield Defect.at(
                "sharing", f"{name}.outgoing sends to rank {min(strange)}, which is not in view.targets"
            )
        for payload in outgoing.values():
            if layout is None or not isinstance(payload, Payload) or payload.layout.hash != layout.hash:
                method = f"payload_layout({self.phase})"
                yield Defect.at("sharing", f"{name}.outgoing gives another payload than {method} declares")

    def _misdeeds(self, rank: int, scheme: Sharing, out: Tensor) -> Iterator[Defect]:
        """Defects of a node's result."""
        cls = type(_plugin(scheme))
        method = f"{cls.__name__}.{'mix' if cls.share is Sharing.share else 'share'}"
        if self._is_changed(rank):
            yield Defect.at("sharing", f"{method} writes to vector, which peers may still read; write to out")
        for _, error in scheme.refusals:
            yield Defect.at("sharing.transforms", f"what a node sends cannot be decoded: {error}")
        unwritten = int(out.isnan().sum())
        if unwritten and not scheme.refusals:
            effect = f"leaves {unwritten:,} of {out.numel():,} elements of out unwritten, or makes them NaN"
            yield Defect.at("sharing", f"{method} {effect}; write the new model into all of out")

    def _is_changed(self, rank: int) -> bool:
        """Whether a node's vector has changed; reports each change once."""
        changed = not torch.equal(self.models[rank], self.before[rank])
        self.before[rank] = self.models[rank].clone()
        return changed


def _plugin(scheme: Sharing) -> Sharing:
    """The scheme of the configuration."""
    return scheme.scheme if isinstance(scheme, AveragedBuffers) else scheme
