"""Runs the exchanges of several nodes one by one in one caller, without a transport."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming, Sharing


@dataclass(frozen=True)
class PendingExchange:
    """One exchange that a node waits for."""

    outgoing: Mapping[int, Payload]
    sources: Sequence[int]

    def __await__(self) -> Generator["PendingExchange", Incoming, Incoming]:
        return (yield self)


Requests = Mapping[int, PendingExchange]
"""The exchanges that nodes wait for at the same time, by rank."""
Deliver = Callable[[Requests], Mapping[int, Incoming]]
"""Returns what each of these nodes receives."""


async def exchange(outgoing: Mapping[int, Payload], sources: Sequence[int]) -> Incoming:
    """Hands the request to `share_all`, which drives the coroutines."""
    return await PendingExchange(outgoing, sources)


def delivered(requests: Requests) -> dict[int, Incoming]:
    """Delivers everything; receivers read the senders' memory."""
    return {rank: _arrived(rank, request, requests) for rank, request in requests.items()}


def _arrived(rank: int, request: PendingExchange, requests: Requests) -> Incoming:
    sent = {j: requests[j].outgoing for j in request.sources if j in requests}
    return {j: outgoing[rank] for j, outgoing in sent.items() if rank in outgoing}


def share_all(
    schemes: Mapping[int, Sharing], vectors: Mapping[int, Tensor], views: Mapping[int, View],
    out: Mapping[int, Tensor], deliver: Deliver = delivered,
) -> None:  # fmt: skip
    """Runs one round of communication of these ranks: writes each new model, shape (d,), into its `out`."""
    waiting = {i: scheme.share(vectors[i], views[i], exchange, out[i]) for i, scheme in schemes.items()}
    replies: Mapping[int, Incoming | None] = dict.fromkeys(waiting)
    try:
        while waiting:
            requests: dict[int, PendingExchange] = {}
            for rank, node in list(waiting.items()):
                try:
                    requests[rank] = node.send(replies[rank])
                except StopIteration:
                    del waiting[rank]
            replies = deliver(requests)
    finally:
        for node in waiting.values():  # what one node raises ends the round of all
            node.close()
