"""Collectives of all ranks: the model that they start with, and the average of all models."""

import math
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from decentnode.core.payload import Payload, as_bytes, dense_layout
from decentnode.errors import BadInput
from decentnode.parallel.buckets import ALIGNMENT, BucketMemory
from decentnode.parallel.engine import MixingEngine
from decentnode.parallel.exchange_queue import ExchangeQueue
from decentnode.parallel.finite_check import check_finite
from decentnode.parallel.mixture import MixInput


def broadcast(tensors: Sequence[Tensor], area: Tensor, exchanges: ExchangeQueue) -> None:
    """Copies rank 0's tensors to all ranks through `area`, bytes that no rank reads yet."""
    half = area.numel() // 2 // ALIGNMENT * ALIGNMENT
    for turn, pieces in enumerate(_batches(tensors, half)):
        # The half that is written was sent two exchanges ago, and all ranks had read it before the last one
        # ended.
        place = area[half * (turn % 2) :][: sum(piece.numel() for piece in pieces)]
        if exchanges.rank == 0:
            torch.cat(pieces, out=place)
        outgoing = exchanges.to_others(place) if exchanges.rank == 0 else {}
        layout = dense_layout(place.numel(), torch.uint8)
        inbox = exchanges.with_all(outgoing, [] if exchanges.rank == 0 else [0], layout)
        if 0 in inbox:
            parts = torch.split(inbox[0]["vector"], [piece.numel() for piece in pieces])
            for piece, part in zip(pieces, parts, strict=True):
                piece.copy_(part)
        inbox.release()
    exchanges.settle([])
    # The gaps between tensors are mixed as well: values other than zero would grow in every step.
    area.zero_()


def _batches(tensors: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The tensors' memory as bytes, in lists of pieces that are together at most `most` bytes long."""
    batch: list[Tensor] = []
    room = most
    for tensor in tensors:
        left = _memory_of(tensor)
        while left.numel():
            piece, left = left[:room], left[room:]
            batch.append(piece)
            room -= piece.numel()
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def _memory_of(tensor: Tensor) -> Tensor:
    """A dense tensor's elements as bytes, in memory order; raises BadInput."""
    detached = tensor.detach()
    strides = detached.stride()
    flat = detached.permute(sorted(range(len(strides)), key=lambda i: -strides[i])).reshape(-1)
    if flat.numel() and flat.data_ptr() != detached.data_ptr():
        raise BadInput(f"a tensor of shape {tuple(tensor.shape)} is no block of memory; make it contiguous")
    return as_bytes(flat)


def average_all(engine: MixingEngine) -> float:
    """Writes the mean of all ranks' blocks into the spare slots; returns the own model's distance from it."""
    exchanges, blocks = engine.exchanges, engine.buckets
    engine.start()  # else a forward pass on one rank alone would have made other exchanges
    launched = exchanges.launched
    # A release acknowledges all exchanges before it, so none of them may be in flight.
    exchanges.drop_all()
    # The mean is written to the spare slots, where neighbors may still read the last model.
    exchanges.settle(range(len(blocks)))
    for i, block in enumerate(blocks):
        if not (block.layout.is_buffers and i in launched):  # which are being mixed as they were sent
            block.adopt_replaced()
    living = exchanges.living()
    check_finite(blocks, exchanges, living)
    for block in blocks:
        average(block, exchanges, living)
    exchanges.settle([])
    if launched and not engine.has_means:  # which would need the spare slots; the next step starts them
        engine.launch_all()
    return distance(blocks)


def average(bucket: BucketMemory, exchanges: ExchangeQueue, living: Sequence[int]) -> None:
    """Writes the mean of a block over the live ranks into its spare slot, which no rank may read meanwhile.

    Each rank sums its share of the elements and sends the means to all: 2 (n - 1) / n vectors are sent. If a
    rank is lost meanwhile, its share keeps this rank's own values, with a warning.
    """
    shares, means = _shares(bucket.values, living), _shares(bucket.spare, living)
    layout = dense_layout(shares[living[0]].numel(), bucket.layout.dtype)
    rank, others = exchanges.rank, [j for j in living if j != exchanges.rank]
    takes_part = rank in shares
    outgoing = {j: Payload.dense(shares[j]) for j in others} if takes_part else {}
    inbox = exchanges.with_all(outgoing, others if takes_part else [], layout)
    if takes_part:
        received = {j: payload["vector"] for j, payload in inbox.items()}
        weights = dict.fromkeys(sorted((*received, rank)), 1 / (1 + len(received)))
        start = int(shares[rank].storage_offset() - bucket.values.storage_offset())
        try:
            MixInput(
                step=exchanges.step,
                rank=rank,
                weights=weights,
                own=shares[rank],
                received=received,
                bucket=bucket,
                start=start,
            ).write(means[rank])
        except ValueError as error:
            raise exchanges.failure(error) from error
    inbox.release()
    inbox = exchanges.with_all(exchanges.to_others(means[rank]) if takes_part else {}, others, layout)
    for j in others:
        means[j].copy_(inbox[j]["vector"] if j in inbox else shares[j])
    lost = [j for j in others if j not in inbox]
    inbox.release()
    if lost:
        warnings.warn(f"{exchanges.here}: ranks {lost} were lost amid an average", stacklevel=2)


def _shares(flat: Tensor, ranks: Sequence[int]) -> dict[int, Tensor]:
    """A piece for each rank, all of one length; the last ones overlap where it cannot be divided."""
    length = -(-flat.numel() // len(ranks))
    starts = {j: min(i * length, flat.numel() - length) for i, j in enumerate(ranks)}
    return {j: flat[start : start + length] for j, start in starts.items()}


def distance(buckets: Sequence[BucketMemory]) -> float:
    """The Euclidean norm of the difference between current and spare values, over all parameters."""
    squares = [
        float((block.values.double() - block.spare.double()).square().sum())
        for block in buckets
        if not block.layout.is_buffers
    ]
    return math.sqrt(math.fsum(squares))
