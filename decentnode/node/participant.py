"""A rank's part in rounds: local steps, exchange with the neighbors, mix, record; whoever makes the steps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.core.vector import Vector
from decentnode.errors import DecentnodeError
from decentnode.formats.records import Records, RoundRecord
from decentnode.graph.mixing import WeightedGraph
from decentnode.models.state_encoding import form
from decentnode.node.checkpoint.node_checkpoints import NodeCheckpoints
from decentnode.node.local_update import AdaptThenCombine
from decentnode.node.round_exchange import RoundExchange
from decentnode.node.round_scheduler import RoundScheduler
from decentnode.sharing.base import Sharing
from decentnode.training.local_steps import LocalSteps, RoundAbandoned


class AfterRound:
    """Looks at a model after a round; this one does nothing."""

    peak_memory_mb: float = 0.0
    """The most memory that it has measured; 0: it has not."""

    def scores_after(self, round: int) -> dict[str, float]:
        """Returns the scores of the model after a round, if this was the last that it has looked at."""
        return {}

    async def after(self, record: RoundRecord) -> bool:
        """Looks at the model after the round of the record, and may fill it in; returns whether to end."""
        return False

    async def at_the_end(self, record: RoundRecord) -> None:
        """Looks at the model of a participant that has finished, unless it has after the same round."""


@dataclass(kw_only=True)
class Participant:
    """One rank's part in rounds. Its components are passed in; nothing here reads a configuration.

    It knows no loss, no optimizer and no samples: `local_steps` are those of a node's training, or of
    anybody's loop.
    """

    rank: int
    local_steps: LocalSteps
    adaptation: AdaptThenCombine
    graph: WeightedGraph
    sharing: Sharing
    exchange: RoundExchange
    records: Records
    scheduler: RoundScheduler
    checkpoints: NodeCheckpoints
    after_round: Sequence[AfterRound] = ()
    """What looks at the model after each round, in this order; the node's evaluation is first."""
    round: int = field(default=-1, init=False)
    """The round that was started last."""
    failure: Exception | None = field(default=None, init=False)
    """The error that has ended it."""
    _has_begun: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        name, missing = type(self).__name__, len(self.exchange.missing)
        return f"<{name} {self.rank}: round {self.round}, {missing} peers missing>"

    @property
    def vector(self) -> Vector:
        """The model."""
        return self.local_steps.vector

    def handshake(self) -> bytes:
        """What all nodes need of this one before round 0: of its steps, then of its scheme."""
        return self.local_steps.handshake() + self.sharing.handshake()

    def receive_handshakes(self, handshakes: Mapping[int, bytes]) -> None:
        """Takes the handshakes of all nodes by rank."""
        of_steps = len(self.local_steps.handshake())
        self.local_steps.receive_handshakes({rank: both[:of_steps] for rank, both in handshakes.items()})
        self.sharing.receive_handshakes(
            {rank: both[of_steps:] for rank, both in handshakes.items() if len(both) > of_steps}
        )

    async def run(self) -> None:
        """Runs all rounds in order, from the first or from where the node resumed."""
        self.begin()
        while (round := await self.scheduler.after(done := self.round)) is not None:
            # The learning rate schedule counts rounds, or their steps, also those that this node skipped.
            self.local_steps.skip(range(done + 1, round))
            try:
                await self.run_round(round)
            except RoundAbandoned:
                self.round = done
                self.scheduler.end()
        if self.failure is not None:
            raise self.failure
        await self._make_up()
        self.checkpoints.at_the_end(self.round, self.snapshot)
        # Last: a process with a node that has ended is not restarted.
        self.scheduler.heartbeat.mark(self.round, Activity.END)

    def begin(self) -> None:
        """Begins the scheme with the model as it is, once.

        A node that continues from a checkpoint has the state of the scheme from there.
        """
        if self.round < 0 and not self._has_begun:
            self.sharing.begin(self.vector.shared)
        self._has_begun = True

    def continue_after(self, round: int, sharing: Mapping[str, Any]) -> None:
        """Continues after a round with a state of the scheme; the model is as it was then."""
        self.round = round
        self.sharing.load_state_dict(sharing)
        self._has_begun = True

    async def run_round(self, round: int) -> None:
        """Train, get this round's view, share (send, receive, mix), evaluate, record.

        With `communication.overlap` the local steps run `meanwhile`, otherwise `before`.
        """
        self.round = round
        record, adaptation = RoundRecord(self.rank, round), self.adaptation
        vector, clock, began = self.vector, self.exchange.clock, self.exchange.clock.now()
        await self.graph.prepare(self.rank, round)
        if not self.graph.static:
            # Before the local steps: links open while they run.
            self.exchange.endpoint.foresee(self.graph.foreseen(self.rank, round, self.scheduler.rounds))
        learning_rate = await adaptation.before(round)
        view = self.graph.view(self.rank, round, learning_rate)
        self.exchange.begin(round, vector.shared, adaptation.meanwhile)
        await self.sharing.share(vector.shared, view, self.exchange, out=vector.shared_spare)
        # Checked after the mix, because peers may invalidate the memory while it is read.
        is_valid = self.exchange.is_valid()
        if is_valid:
            self.sharing.accept(vector.shared, view, vector.shared_spare)
        else:
            # The mix is discarded: the node keeps its own model, and the scheme its state.
            vector.shared_spare.copy_(vector.shared)
        vector.keep_personal()
        await adaptation.after(view, self.sharing if is_valid else None)
        # The spare slot holds the mix and becomes the vector; peers may still read the old one.
        vector.flip()
        self.exchange.end(record, seconds=clock.now() - began - adaptation.seconds)
        record.loss, record.steps = adaptation.report.loss, adaptation.report.steps
        record.epsilon = adaptation.report.epsilon
        record.train_seconds = adaptation.seconds
        self.scheduler.heartbeat.mark(round, Activity.EVALUATE)
        await self._look(record)
        self.records.write(record, self.exchange.endpoint.counters)
        self.exchange.remember(clock.now() - began, record)
        # Last: a checkpoint implies that the round's record exists.
        self.checkpoints.after(round, self.snapshot)

    async def _look(self, record: RoundRecord) -> None:
        """Has everything look at the model that wants to; where one asks for the end, no round follows."""
        for look in self.after_round:
            if await look.after(record):
                self.scheduler.end()

    async def _make_up(self) -> None:
        """Has the model of a participant that has finished looked at, unless its last round did."""
        if self.scheduler.is_last(self.round):
            self.records.at_the_end(self.round)
            for look in self.after_round:
                await look.at_the_end(RoundRecord(self.rank, self.round, loss=self.local_steps.loss))

    def snapshot(self) -> dict[str, Any]:
        """The content of a checkpoint: everything that a resumed node needs; tensors are references."""
        return {
            "node": {
                "round": self.round,
                "vector": self.vector.values,
                "training": self.local_steps.state_dict(),
                "sharing": self.sharing.state_dict(),
            },
            "seconds": self.records.seconds,
            "wall_seconds": self.records.wall_seconds,
            "bytes": dict(vars(self.exchange.endpoint.counters)),
            "refused": dict(self.exchange.refused),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `snapshot()`, bit for bit; raises DecentnodeError if it does not fit this node."""
        try:
            node = state["node"]
            self.round = node["round"]
            self.vector.values.copy_(node["vector"])
            self.local_steps.load_state_dict(node["training"])
            self.sharing.load_state_dict(node["sharing"])
            for name, total in state["bytes"].items():
                setattr(self.exchange.endpoint.counters, name, total)
            self.records.resume(state["seconds"], state["wall_seconds"])
            self.records.count_from(self.exchange.endpoint.counters)
            self.exchange.refused = Counter(state["refused"])
            self.checkpoints.last = self.round
            self._check_whole(node)
        # Plug-ins may raise any of these for the state of another model or scheme.
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise DecentnodeError(
                f"rank {self.rank}: its checkpoint does not fit the model or the scheme: {error!r}"[:400]
            ) from error

    def _check_whole(self, saved: Mapping[str, Any]) -> None:
        """Raises ValueError unless this node would save what it has loaded, by names and shapes.

        What a part does not ask for is lost in silence, and what it does not find may keep its first value.
        """
        # Here, also where other processes compute the steps: they begin with what this one has.
        made = self.vector.values, self.local_steps.local_state(), self.sharing.state_dict()
        loaded = saved["vector"], saved["training"], saved["sharing"]
        ours, theirs = (
            # Private steps continue from their journal.
            form({"vector": vector, "training": {**training, "private": None}, "sharing": sharing})
            for vector, training, sharing in (made, loaded)
        )
        for path in sorted(ours.keys() | theirs.keys()):
            if ours.get(path) != theirs.get(path):
                raise ValueError(f"{path} is {theirs.get(path, 'missing')}, not {ours.get(path, 'known')}")

    def set_elapsed(self, seconds: float) -> None:
        """Sets the node's elapsed real time, in seconds."""
        self.records.set_wall_seconds(seconds)
        self.records.count_from(self.exchange.endpoint.counters)
