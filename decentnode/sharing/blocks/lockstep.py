"""Runs the exchanges of several nodes one by one in one caller, without a transport."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import coroutine

from torch import Tensor

from decentnode.core.payload import Payload
from decentnode.graph.base import View
from decentnode.sharing.base import Incoming, Sharing


@dataclass(frozen=True)
class PendingExchange:
    """One exchange that a node waits for."""

    outgoing: Mapping[int, Payload]
    sources: Sequence[int]


Requests = Mapping[int, PendingExchange]
"""The exchanges that nodes wait for at the same time, by rank."""
Deliver = Callable[[Requests], Mapping[int, Incoming]]
"""Returns what each of these nodes receives."""


@coroutine
def exchange(
    outgoing: Mapping[int, Payload], sources: Sequence[int]
) -> Generator[PendingExchange, Incoming, Incoming]:
    """Hands the request to `share_all`, which drives the coroutines."""
    return (yield PendingExchange(outgoing, sources))


def delivered(requests: Requests) -> dict[int, Incoming]:
    """Delivers everything; receivers read the senders' memory."""
    sent = {j: request.outgoing for j, request in requests.items()}
    return {
        rank: {j: sent[j][rank] for j in request.sources if rank in sent.get(j, ())}
        for rank, request in requests.items()
    }


def share_all(
    schemes: Mapping[int, Sharing], vectors: Mapping[int, Tensor], views: Mapping[int, View],
    out: Mapping[int, Tensor], deliver: Deliver = delivered,
) -> None:  # fmt: skip
    """Runs one round of communication of these ranks: writes each new model, shape (d,), into its `out`."""
    waiting = {i: scheme.share(vectors[i], views[i], exchange, out=out[i]) for i, scheme in schemes.items()}
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
