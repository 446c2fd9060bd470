"""The algorithm: the order in which buckets are mixed and sent, and their inputs.

communicate_while_adapt: x(t) is sent as soon as it is ready, and mixed when its gradient is ready: x(t+1) = W
x(t) + d(x(t)). adapt_then_combine: the result of the step is sent, and mixed at the end: x(t+1) = W (x(t) +
d(x(t))). Here d is the update of the optimizer; with mixing strength a, W is (1 - a) I + a W. The order of
buckets is the same on all ranks.

Where W = 11^T / n, one all-reduce computes the mix of all ranks, if the transport has one and all ranks have
agreed on it. Otherwise every model travels along every edge.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from decentnode.communication.base import Inbox
from decentnode.core.vector import accumulator, is_finite
from decentnode.errors import RunFailed
from decentnode.graph.base import View
from decentnode.graph.mixing import WeightedGraph, live_weights
from decentnode.graph.strength import at_strength
from decentnode.parallel.bucket_optimizers import BucketOptimizer
from decentnode.parallel.buckets import Bucket, BucketMemory
from decentnode.parallel.exchange_queue import ExchangeQueue
from decentnode.parallel.finite_check import check_finite
from decentnode.parallel.mixture import MixInput
from decentnode.parallel.options import Options
from decentnode.parallel.topology import averages_all


class MixingEngine:
    """The steps of one rank."""

    def __init__(
        self,
        buckets: Sequence[BucketMemory],
        optimizers: Sequence[BucketOptimizer],
        graph: WeightedGraph,
        exchanges: ExchangeQueue,
        options: Options,
    ) -> None:
        """The optimizers belong to the first blocks; the other blocks hold buffers."""
        self.buckets = buckets
        self.optimizers = optimizers
        self.exchanges = exchanges
        self.options = options
        self.step = 0
        """The number t of steps so far; the topology's round."""
        self.updated = 0
        """The number of blocks of this step that are done."""
        self.begun = False
        """Whether a step has started and not ended: the other ranks wait for the rest of it."""
        self.joint = False
        """Whether all ranks announce in each step whether they have a batch for it."""
        self.mixed = [i for i, b in enumerate(buckets) if not b.layout.is_buffers or options.buffers == "mix"]
        """The blocks that are mixed in every step, in order."""
        self._graph = graph
        self.has_means = self._agree_on_means()
        """Whether all ranks mix by all-reduces, where a block allows it."""
        self._view = self._next_view = graph.view(exchanges.rank, 0)
        self._strength = 1.0

    def _agree_on_means(self) -> bool:
        """Whether all ranks can mix by all-reduces; asks the others if the common settings allow it.

        Lost ranks cannot be left out of an all-reduce, and a hook reads each neighbor's model.
        """
        if self._graph.num_nodes == 1 or self.options.on_loss != "stop" or not averages_all(self._graph):
            return False
        collectives = self.exchanges.endpoint.collectives
        is_able = collectives is not None and collectives.are_open and self.options.before_mixing is None
        return self.exchanges.all_agree(is_able)

    def _is_mean(self, bucket: Bucket) -> bool:
        """Whether a block is mixed by an all-reduce, on all ranks alike.

        An all-reduce would round every partial sum of halves, and buffers have the own weight (`mix_into`).
        """
        return self.has_means and not bucket.is_buffers and accumulator(bucket.dtype) == bucket.dtype

    @property
    def publishes_early(self) -> bool:
        """Whether x(t) travels while the gradient at x(t) is computed."""
        return self.options.scheme == "communicate_while_adapt"

    def start(self) -> None:
        """Sends x(t) if that is still due: at the very first step, and after a change."""
        self.exchanges.step = self.step
        if self.publishes_early and not self.exchanges.handles and not self.begun:
            for i in self.mixed:
                self.buckets[i].adopt_replaced()
            self.launch_all()

    def withdraw(self) -> None:
        """Withdraws x(t) after it was sent; call it on all ranks between steps. Raises RunFailed otherwise.

        Raises BadInput if the module's parameters were replaced.
        """
        # A forward pass on one rank alone may have sent x(t): all must make the same exchanges.
        self.start()
        self.exchanges.drop_all()
        # Ranks at different steps time out here; otherwise they would mix models of different steps.
        self.exchanges.settle([])
        for block in self.buckets:
            block.adopt_replaced()

    def launch_all(self) -> None:
        """Sends x(t) from the blocks."""
        for i in self.mixed:
            self._launch(i, self._view)

    def update_next(self, skip: bool = False) -> None:
        """Updates the next block of this step; `skip`: its optimizer makes no step."""
        if not self.begun:
            self._begin_step()
            self._strength = self.options.strength(self.step)
        i = self.mixed[self.updated]
        if self.publishes_early:
            self._adapt_while_combining(self.buckets[i], i, skip)
        else:
            self.buckets[i].adopt_replaced()
            if not self.buckets[i].layout.is_buffers:
                self._make_step(i, skip)
            if self.exchanges.is_full:
                self._combine_next()
        self._pass_on(i)

    def finish(self, skip: bool = False) -> None:
        """Updates the remaining blocks, and ends the step."""
        while self.updated < len(self.mixed):
            self.update_next(skip)
        if not self.publishes_early:
            while self.exchanges.handles:
                self._combine_next()
        self._end_step()

    def follow(self) -> None:
        """Makes the steps that others have batches for, without the optimizer, until no rank has one."""
        while True:
            self._begin_step(has_batch=False)
            if not self.exchanges.any_has_batch():
                break
            self._strength = self.options.strength(self.step)
            self.finish(skip=True)
        self.begun = self.joint = False
        # The flags can only be released after x(t), which is in flight: it is received, and sent again.
        self.withdraw()

    def abandon(self) -> None:
        """Ends a failed step at any point: sends what other ranks wait for, and mixes nothing.

        The model is not valid afterwards.
        """
        if not self.begun:
            self._begin_step()
        while self.updated < len(self.mixed):
            i = self.mixed[self.updated]
            if self.publishes_early:
                self.exchanges.drop(i)
            elif self.exchanges.is_full:
                self.exchanges.drop(next(iter(self.exchanges.handles)))
            self._pass_on(i)
        if not self.publishes_early:
            self.exchanges.drop_all()
        self._end_step()

    def continue_at(self, step: int) -> None:
        """Continues with this step; nothing may be in flight."""
        self.step = self.exchanges.step = step
        self._view = self._graph.view(self.exchanges.rank, step)

    def _begin_step(self, has_batch: bool = True) -> None:
        self.start()
        # With `publishes_early`, finished blocks are sent to the neighbors of the next step already.
        self._next_view = self._graph.view(self.exchanges.rank, self.step + 1)
        self.begun = True
        if self.joint:
            self.exchanges.announce(has_batch)

    def _end_step(self) -> None:
        self.step += 1
        self.updated, self.begun, self._view = 0, False, self._next_view

    def _pass_on(self, i: int) -> None:
        """Sends the block that is done, and moves to the next one."""
        self._launch(i, self._next_view if self.publishes_early else self._view)
        self.updated += 1

    def _launch(self, i: int, view: View) -> None:
        block = self.buckets[i]
        if self._is_mean(block.layout):
            # No rank reads the slots of such a block, so the spare one is free already.
            self.exchanges.launch_mean(i, block.values, block.spare)
        else:
            self.exchanges.launch(i, block.payload, view.targets, view.sources)

    def _adapt_while_combining(self, bucket: BucketMemory, i: int, skip: bool) -> None:
        if self._is_mean(bucket.layout):
            self._adapt_while_averaging(bucket, i, skip)
            return
        with self._mixture(bucket, i) as mixture:
            if bucket.layout.is_buffers:
                # The own buffer, changed by the forward pass, has the own weight, so that a variance stays
                # positive.
                bucket.adopt_replaced(spare=True)
                self._mix(mixture.mix_into, bucket.spare)
                bucket.flip()
            elif skip or self._starts_from_mix(i):
                # The step reads no parameters, or starts from W x(t): one pass over memory less.
                self._mix(mixture.write, bucket.spare)
                bucket.flip()
                self._make_step(i, skip)
            else:
                # The step must start from x(t), which neighbors still read in the other slot: step on a copy.
                bucket.spare.copy_(bucket.values)
                bucket.flip()
                self._make_step(i, skip)
                self._mix(mixture.add_change, bucket.values)

    def _adapt_while_averaging(self, bucket: BucketMemory, i: int, skip: bool) -> None:
        """Makes the step of a bucket and moves to the mean of all models, which is in its spare slot."""
        mean = self._mean(bucket, i)
        if skip or self._starts_from_mix(i):
            self._write_mix(bucket, mean)
            self._make_step(i, skip)
        else:
            # No rank reads x(t), so it becomes x(t) + d(x(t)) in place.
            change = mean.sub_(bucket.values)
            self._make_step(i, skip)
            bucket.values.add_(change, alpha=self._strength)
            bucket.show()

    def _starts_from_mix(self, i: int) -> bool:
        """Whether the step may start from W x(t), because it is the same there, or has to."""
        return self.options.step_from == "mix" or self.optimizers[i].by_gradient_alone

    def _mean(self, bucket: BucketMemory, i: int) -> Tensor:
        """Waits for the mean of a block in its spare slot; raises RunFailed, also if it is not finite."""
        self.exchanges.collect_mean(i)
        if not is_finite(bucket.spare):
            # All ranks have the same mean, so all of them search for the cause.
            check_finite(self.buckets, self.exchanges, self.exchanges.living())
            raise RunFailed(f"{self.exchanges.here}: the mean of all models is not finite")
        return bucket.spare

    def _write_mix(self, bucket: BucketMemory, mean: Tensor) -> None:
        """Makes (1 - a) x + a mean, which replaces the mean, the current values."""
        if self._strength != 1:
            torch.lerp(bucket.values, mean, self._strength, out=mean)
        bucket.flip()

    def _combine_next(self) -> None:
        # The first in flight, because a release acknowledges all exchanges before it.
        i = next(iter(self.exchanges.handles))
        block = self.buckets[i]
        if self._is_mean(block.layout):
            self._write_mix(block, self._mean(block, i))
            return
        with self._mixture(block, i) as mixture:
            self._mix(mixture.write, block.spare)
        block.flip()

    def _make_step(self, i: int, skip: bool) -> None:
        if not skip:
            self.optimizers[i].step()

    @contextmanager
    def _mixture(self, bucket: BucketMemory, i: int) -> Iterator[MixInput]:
        """The inputs of a block's mix. Releases their memory at the end, also after an error.

        Raises RunFailed when that memory was invalidated meanwhile.
        """
        inbox = self.exchanges.collect(i, bucket.payload.layout)
        try:
            yield self._weighed(bucket, inbox)
        finally:
            is_valid = self.exchanges.release(inbox)
        if not is_valid:
            raise RunFailed(
                f"rank {self._view.rank}, step {self.step}: was suspended for so long that a peer "
                "timed out on it; a longer deadline is needed"
            )

    def _weighed(self, bucket: BucketMemory, inbox: Inbox) -> MixInput:
        received = {j: payload["vector"] for j, payload in inbox.items()}
        rank, a = self._view.rank, self._strength
        weights = at_strength(a, live_weights(self._view.weights, rank, received), rank)
        mixture = MixInput(
            self.step, rank, dict(weights), own=bucket.values, received=received, bucket=bucket
        )
        if self.options.before_mixing is not None:
            self.options.before_mixing(mixture)
            # The Triton kernel would misread number types of numpy and torch.
            mixture.weights = {j: float(w) for j, w in mixture.weights.items()}
        return mixture

    def _mix(self, mix: Callable[[Tensor], None], out: Tensor) -> None:
        try:
            mix(out)
        except ValueError as error:
            raise self.exchanges.failure(error) from error
