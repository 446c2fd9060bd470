"""What a loop is given as its node: a step is made, a round is wanted, a number is logged, the part ends."""

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from decentnode.communication.base import Endpoint
from decentnode.communication.launcher_link.heartbeats import HeartbeatSlot
from decentnode.communication.launcher_link.reports import MOST_BYTES, Evaluated, Published
from decentnode.core.registry import name_of
from decentnode.core.rng import key
from decentnode.core.text import counted
from decentnode.core.timeouts import Timeouts
from decentnode.datasets.base import Samples
from decentnode.datasets.partition import Iid, Partition
from decentnode.errors import BadInput, DecentnodeError, ExitCode, RunFailed
from decentnode.formats.records import RoundRecord, private_megabytes
from decentnode.graph.shard_planes import ShardPlanes
from decentnode.node.evaluation import NodeResources, report_bytes
from decentnode.node.local_update import AdaptWhileCommunicating
from decentnode.node.own_loop.loop_steps import LoopSteps
from decentnode.node.own_loop.turn import Turn
from decentnode.node.participant import AfterRound, Participant
from decentnode.training.training import Training

T = TypeVar("T")


class RoundsEnded(DecentnodeError):
    """Raised by a step after the last round, in a loop that goes on."""


@dataclass(eq=False)
class LoggedScores(AfterRound):
    """The scores that a loop has logged; tells its steps that a round is done."""

    steps: LoopSteps
    scores: dict[str, float] = field(default_factory=dict)
    round: int = -1
    evaluated: Evaluated | None = None
    """The report of these scores, until the loop goes on: it may log more of them before."""
    peak_memory_mb: float = 0.0

    async def after(self, record: RoundRecord) -> bool:
        # Also after the last round, which no other begins after.
        self.steps.rounds = record.round + 1
        return False

    def scores_after(self, round: int) -> dict[str, float]:
        return self.scores if self.round == round else {}


class LoopNode:
    """One rank of a run, as a loop sees it."""

    def __init__(
        self, participant: Participant, steps: LoopSteps, resources: NodeResources, module: nn.Module,
        seed: int, training: Training | None = None, partition: Partition | None = None,
    ) -> None:  # fmt: skip
        """`partition`: how `shard` distributes samples; by default evenly.

        `training`: the samples and the objective of the run; None: the loop has its own.
        """
        self.model = module
        """The model, whose shared parameters are views of the node's vector."""
        self.round_ended = False
        """Whether the last step ended a round."""
        self._participant, self._steps, self._resources = participant, steps, resources
        self._seed, self._training = seed, training
        self._partition = partition or Iid()
        self._logged = LoggedScores(steps)
        participant.after_round = [*participant.after_round, self._logged]
        self._has_left = False
        self._mean_round, self._means = -1, 0
        self._was_told = False
        """Whether a step has returned that the run is over."""

    def __repr__(self) -> str:
        return f"<node {self.rank} of {self.size}: {counted(self.rounds, 'round')}>"

    @property
    def rank(self) -> int:
        """Its number, from 0."""
        return self._participant.rank

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self._participant.graph.num_nodes

    @property
    def rounds(self) -> int:
        """The rounds that are done."""
        return self._steps.rounds

    @property
    def is_over(self) -> bool:
        """Whether the run is over for this node: its rounds are done, it was stopped, or it has left."""
        return self._turn.is_over

    @property
    def _is_sharded(self) -> bool:
        return isinstance(self._participant.graph.graph, ShardPlanes)

    @property
    def has_left(self) -> bool:
        """Whether its part has ended by `leave`."""
        return self._has_left

    @property
    def is_server(self) -> bool:
        """Whether the graph makes it a server, which makes no steps."""
        return self.rank in self._participant.graph.graph.servers

    @property
    def vector(self) -> Tensor:
        """The model as one flat tensor, shape (d,); changes after a round to the other slot."""
        return self._participant.vector.values

    @property
    def bytes_sent(self) -> int:
        """The bytes of all payloads that it has sent, to each receiver."""
        return self._participant.exchange.endpoint.counters.sent

    def use(self, optimizer: Optimizer) -> Optimizer:
        """Shows the node an optimizer of the loop; returns it. Raises BadInput.

        Schemes that change gradients do so before its steps, and its learning rate is that of the round.
        """
        self._steps.use(optimizer, self._before_step)
        return optimizer

    def keep(self, name: str, kept: Any) -> None:
        """Saves an object with `state_dict` and `load_state_dict` in the checkpoints of the run."""
        self._steps.state.keep(name, kept)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Returns the next minibatch of this rank, inputs and labels, of the dataset of a run."""
        if self._training is None:
            raise RunFailed(f"rank {self.rank}: the loop has samples of its own; there is no dataset here")
        steps, turn = self._steps, self._turn
        inputs, labels = self._training.batches(steps.rounds, turn.made)[0]
        return inputs, labels

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of the run's configuration (`training.loss`)."""
        if self._training is None:
            raise RunFailed(f"rank {self.rank}: the loop has a loss of its own; there is none here")
        loss: Tensor = self._training.objective.loss(outputs, labels)
        return loss

    def generator(self, purpose: str, *counters: int) -> torch.Generator:
        """Returns a generator for one purpose of this rank, keyed by the seed of the run."""
        return torch.Generator().manual_seed(key(self._seed, f"loop/{purpose}", self.rank, *counters))

    def shard(self, samples: Any, labels: Any = None) -> Any:
        """Returns this rank's part of a dataset, a `torch.utils.data.Subset`; equal parts by default.

        `samples`: anything with a length; `labels`: of each sample, for partitions by label, if the
        configuration has one (`partition=`).
        """
        count = len(samples)
        given = torch.zeros(count, dtype=torch.int64) if labels is None else torch.as_tensor(labels)
        if isinstance(samples, Tensor) and samples.dim() == 1 and not samples.is_floating_point():
            warnings.warn(
                "shard() deals single elements; of a stream of tokens deal blocks, such as "
                "shard(range(0, len(tokens) - length, length))",
                stacklevel=2,
            )
        known = Samples(torch.zeros(count, 1), given)
        part = self._partition.split(known, self.size, self._seed)[self.rank]
        return torch.utils.data.Subset(samples, part.tolist())

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A context in which others wait for this rank ten times `failures.deadline`, such as an evaluation.

        The launcher does not take it for hung either.
        """
        participant = self._participant
        with _beating(participant.scheduler.heartbeat, participant.exchange.endpoint):
            yield

    @property
    def _turn(self) -> Turn:
        return self._steps.turn

    def _before_step(self) -> None:
        """Is called before each step of the optimizer."""

    def _note_step(self, loss: Tensor | float | None) -> bool:
        """Counts a step; returns whether it is the participant's turn. Raises RunFailed and RoundsEnded."""
        self.round_ended = False
        self._refuse_the_past("step()")
        self._send_scores()
        if self.is_server:
            raise RunFailed(f"rank {self.rank} is the server, which makes no steps; call serve()")
        if not self._steps.is_step():
            return False
        self._steps.count(loss)
        return not self._turn.is_loops

    def _refuse_after_end(self, call: str) -> None:
        if self._has_left:
            raise RunFailed(f"rank {self.rank}: {call} after leave(); join the model again for another run")
        self._raise_failure()

    def _refuse_the_past(self, call: str) -> None:
        self._refuse_after_end(call)
        if self.is_over:
            rounds = counted(self.rounds, "round")
            if not self._was_told:
                return
            if self._participant.scheduler.is_cut_short:
                # A loop that does not look at what step() returns must end, too.
                raise SystemExit(f"rank {self.rank}: the run was stopped after {rounds}")
            raise RoundsEnded(
                f"rank {self.rank}: {call} after the last round ({rounds}); end the loop where step() "
                "returns False, or give more rounds"
            )

    def _raise_failure(self) -> None:
        if (failure := self._participant.failure) is not None:
            if isinstance(failure, DecentnodeError):
                raise failure
            raise RunFailed(f"rank {self.rank}: {failure!r}") from failure

    def _after_turn(self, rounds: int) -> bool:
        self.round_ended = self.rounds > rounds
        self._raise_failure()
        self._was_told = self._was_told or self.is_over
        return not self.is_over

    async def _mean(self) -> dict[str, Tensor]:
        round = self.rounds - 1
        if round < 0:
            raise RunFailed(
                f"rank {self.rank}: mean_model() before the first round; a round has to end first"
            )
        if self._is_sharded:
            raise RunFailed(
                f"rank {self.rank}: mean_model() of shards: each rank has a part of its node's model"
            )
        self._means = self._means + 2 if self._mean_round == round else 0
        self._mean_round = round
        participant, rank = self._participant, self.rank
        vector, others = participant.vector, [other for other in range(self.size) if other != rank]
        with_all = participant.exchange.with_all
        inbox = await with_all(vector.shared, others, self._means)
        # In rank order, so that all have the same sum bit for bit.
        models = {source: payload["vector"] for source, payload in inbox.items()} | {rank: vector.shared}
        total = sum(models[source].to(torch.float64) for source in sorted(models))
        mean = (total / len(models)).to(vector.shared.dtype)  # type: ignore[union-attr]
        inbox.release()
        # Peers may read the model in place: nobody trains before all have read all.
        (await with_all(torch.zeros(1), others, self._means + 1)).release()
        found = {entry.name: entry.view(mean).clone() for entry in vector.layout.shared.entries}
        # A tied parameter has several names in a state_dict.
        named = {id(tensor): name for name, tensor in self.model.named_parameters() if name in found}
        aliases = self.model.named_parameters(remove_duplicate=False)
        return found | {name: found[named[id(tensor)]] for name, tensor in aliases if id(tensor) in named}

    async def _log(self, metrics: Mapping[str, float]) -> None:
        round = self.rounds - 1
        if round < 0:
            raise RunFailed(f"rank {self.rank}: log() before the first round; a round has to end first")
        participant, resources = self._participant, self._resources
        scores = {name: float(value) for name, value in metrics.items()}
        if self._logged.round == round:
            scores = self._logged.scores | scores
        if (needed := report_bytes(scores)) > MOST_BYTES:
            raise RunFailed(
                f"rank {self.rank}: log() of {counted(len(scores), 'number')} after one round needs {needed} "
                f"bytes of a report, which has {MOST_BYTES}; log fewer, or with shorter names"
            )
        records = participant.records
        # Shards have no mean that the observer could compute.
        published = (
            self._logged.round < round
            and not self._is_sharded
            and await resources.snapshots.publish(
                self.rank, round, participant.vector.shared, clock=participant.exchange.clock
            )
        )
        if self._logged.round < round:
            resources.reporter.send(
                Published(
                    rank=self.rank, round=round, train_loss=self._steps.loss,
                    bytes_sent=participant.exchange.endpoint.counters.sent, seconds=records.seconds,
                    published=published, evaluation="here",
                    wall_seconds=records.wall_seconds if records.are_virtual else None,
                )
            )  # fmt: skip
        self._logged.round, self._logged.scores = round, scores
        self._logged.peak_memory_mb = max(self._logged.peak_memory_mb, private_megabytes())
        self._logged.evaluated = Evaluated(self.rank, round, scores)

    def _send_scores(self) -> None:
        """Reports what was logged after the last round: the loop goes on."""
        if (evaluated := self._logged.evaluated) is not None:
            self._logged.evaluated = None
            self._resources.reporter.send(evaluated)


class AwaitedNode(LoopNode):
    """The node of a loop that is a coroutine, and shares a process with others.

    ```
    async def train(node):
        optimizer = node.use(torch.optim.SGD(node.model.parameters(), lr=0.1))
        while not node.is_over:
            inputs, labels = node.batch()
            optimizer.zero_grad()
            node.loss(node.model(inputs), labels).backward()
            optimizer.step()
            await node.step()
    ```
    """

    async def step(self, loss: Tensor | float | None = None) -> bool:
        """Ends a step of the loop: every `steps_per_round`-th one ends in a round; False if the run is over.

        `loss`: recorded as training loss.
        """
        if self._note_step(loss):
            return await self._pass_on()
        # Between steps, other nodes of the event loop get their turn.
        await self._participant.exchange.clock.sleep(0)
        return not self.is_over

    async def round(self) -> bool:
        """Exchanges and mixes now, whatever steps were made; returns False if the run is over."""
        self._refuse_the_past("round()")
        return await self._pass_on(asks=True)

    async def begin(self) -> None:
        """Waits for the first turn."""
        await self._turn.pass_on()

    def leave(self) -> None:
        """Ends this rank's part: the others go on without it, or end, too."""
        self._has_left = True
        self._send_scores()
        self._participant.scheduler.end()
        self._turn.leave()

    async def elapsed(self, seconds: float) -> None:
        """Lets so much time pass; in virtual time that is how long the loop's own work takes."""
        await self._participant.exchange.clock.sleep(seconds)

    async def log(self, **metrics: float) -> None:
        """Records an evaluation of the model after the last round."""
        self._refuse_after_end("log()")
        await self._log(metrics)

    async def mean_model(self) -> dict[str, Tensor]:
        """Returns the mean of the models of all ranks, by name; all ranks call it after the same round."""
        self._raise_failure()
        return await self._mean()

    async def serve(self) -> None:
        """Takes part in all rounds without a step, until the run is over."""
        while await self._pass_on():
            pass

    async def _pass_on(self, asks: bool = False) -> bool:
        self._send_scores()
        rounds = self.rounds
        await self._turn.pass_on(asks)
        return self._after_turn(rounds)


class BlockingNode(LoopNode):
    """The node of a loop in a thread of its own; its methods wait."""

    def __init__(
        self, *args: Any, run: Callable[[Participant], Coroutine[Any, Any, ExitCode]],
        closes: Callable[[ExitCode], None] = lambda code: None, **more: Any,
    ) -> None:  # fmt: skip
        """`run`: runs the participant to its end; `closes`: is called after it, once."""
        super().__init__(*args, **more)
        self._loop = asyncio.new_event_loop()
        self._run_participant, self._closes = run, closes
        self._task: asyncio.Task[None] | None = None
        self._code = ExitCode.OK

    @property
    def must_start_at_once(self) -> bool:
        """Whether the first step must not be made before the node takes part.

        It may rest in the first round, or exchange the model of the round's start while it is trained.
        """
        participant = self._participant
        rests = participant.graph.graph.has_rests
        overlaps = isinstance(participant.adaptation, AdaptWhileCommunicating)
        return not self.is_server and (rests or (overlaps and not self._steps.optimizers))

    def count_steps_of(self, optimizer: Optimizer) -> None:
        """Makes every step of an optimizer a step of the loop, which need not call `step`."""

        def count(*_: Any) -> None:
            self.step()

        optimizer.register_step_post_hook(count)

    def state_dict(self) -> dict[str, Any]:
        """Returns what the node continues with, beside the states of the model and of the optimizer.

        Tensors are copies. Raises RunFailed within a round that cannot be continued from its midst.
        """
        participant = self._participant
        why = ""
        if isinstance(participant.adaptation, AdaptWhileCommunicating):
            why = "whose exchange is in progress (communication.overlap)"
        elif participant.sharing.adjust_gradient is not None:
            why = f"in which {name_of(participant.sharing)} changes gradients"
        if why and self._turn.made:
            raise RunFailed(
                f"rank {self.rank}: state_dict() within a round, {why}; take it where round_ended is true"
            )
        return {
            "rank": self.rank,
            "size": self.size,
            "rounds": self.rounds,
            "steps": self._turn.made,
            "sharing": deepcopy(participant.sharing.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with what `state_dict` returned, before the first step; all ranks do so.

        The loop loads the states of its model and its optimizer itself. Raises RunFailed and BadInput.
        """
        if self._task is not None:
            raise RunFailed(f"rank {self.rank}: load_state_dict() after the first step; call it before")
        if (state["rank"], state["size"]) != (self.rank, self.size):
            raise BadInput(
                f"rank {self.rank} of {self.size}: the saved state is of rank {state['rank']} of "
                f"{state['size']}"
            )
        participant = self._participant
        participant.vector.adopt_replaced()
        participant.continue_after(state["rounds"] - 1, state["sharing"])
        self._steps.rounds = state["rounds"]
        self._turn.made = state["steps"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._has_left:
            self.leave(error is not None, error if isinstance(error, Exception) else None)

    def start(self) -> None:
        """Begins: the node takes part from here on. By itself it does so at the first step."""
        if self._task is None:
            self._task = self._loop.create_task(self._run_to_end())
            self._wait(self._turn.pass_on())
            self._raise_failure()

    def step(self, loss: Tensor | float | None = None) -> bool:
        """Ends a step of the loop: every `steps_per_round`-th one ends in a round; False if the run is over.

        With an optimizer, a call without a step of it since the last one counts nothing: gradients are
        accumulated, or the step was skipped. `loss`: recorded as training loss. Raises RunFailed, and
        SystemExit in a loop that goes on although the run was stopped.
        """
        return self._pass_on() if self._note_step(loss) else not self.is_over

    def round(self) -> bool:
        """Exchanges and mixes now, whatever steps were made; returns False if the run is over."""
        self._refuse_the_past("round()")
        return self._pass_on(asks=True)

    def serve(self) -> None:
        """Takes part in all rounds without a step, until the run is over: for a server or a standby."""
        self._refuse_the_past("serve()")
        while self._pass_on():
            pass

    def log(self, **metrics: float) -> None:
        """Records an evaluation of the model after the last round."""
        self._refuse_after_end("log()")
        self._wait(self._log(metrics))

    def mean_model(self) -> dict[str, Tensor]:
        """Returns the mean of the models of all ranks, by name; all ranks call it after the same round.

        Of ranks that have left it has no model. It is the same on all ranks, bit for bit.
        """
        self._refuse_after_end("mean_model()")
        return self._wait(self._mean())

    def leave(self, failed: bool = False, error: Exception | None = None) -> None:
        """Ends this rank's part: the others go on without it, or end, too.

        `failed`: the loop has failed, by this `error` if it is known.
        """
        if self._has_left:
            return
        self._has_left = True
        self._send_scores()
        self._participant.scheduler.end()
        if not failed and self._steps.never_steps:
            failed, error = True, self._steps.lacks_steps()
        if failed and self._participant.failure is None:
            self._participant.failure = error or RunFailed(f"rank {self.rank}: its loop has failed")
        self._turn.leave()
        if self._task is None:
            self._task = self._loop.create_task(self._run_to_end())
        self._wait(self._ended(self._task))
        self._loop.close()
        self._closes(self._code)

    def _pass_on(self, asks: bool = False) -> bool:
        self._send_scores()
        rounds = self.rounds
        if self._task is None:
            self._task = self._loop.create_task(self._run_to_end())
        self._wait(self._turn.pass_on(asks))
        return self._after_turn(rounds)

    def _before_step(self) -> None:
        # Before the first step changes the model.
        self.start()

    async def _run_to_end(self) -> None:
        try:
            self._code = await self._run_participant(self._participant)
        finally:
            self._turn.end()

    async def _ended(self, task: "asyncio.Task[None]") -> None:
        await asyncio.wait([task])

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the event loop of this node until the work is done."""
        # A notebook has one that runs in this thread, and waits while this one does.
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self._loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(running)


@contextlib.contextmanager
def _beating(heartbeat: HeartbeatSlot, endpoint: Endpoint) -> Iterator[None]:
    done = threading.Event()

    def beat() -> None:
        while not done.wait(Timeouts.busy_beat):
            heartbeat.beat()
            endpoint.show_alive()

    thread = threading.Thread(target=beat, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
