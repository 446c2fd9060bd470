"""How the nodes of a host process that was started again come back into a run that goes on."""

from collections.abc import Iterable, Mapping, Sequence

from decentnode import checkpoint
from decentnode.checkpointing import Lineage, keep_time
from decentnode.communication.base import Communication
from decentnode.errors import BadInput, RunFailed
from decentnode.node import Node
from decentnode.registry import name_of

PASSES = 10
"""How often each neighbor is asked for its model."""


def bring_back(
    nodes: Sequence[Node], peers: Mapping[int, Iterable[int]], communication: Communication, lineage: Lineage,
    deadline: float,
) -> None:  # fmt: skip
    """Gives each node a model and all of them the round to go on in; raises StartError and RunFailed.

    A node has its last checkpoint of a round that its neighbors have come to, too, or else the model of a
    neighbor where those are given, or else the one that all started from; `deadline` is for each wait, in
    seconds.
    """
    for node in nodes:
        refuse_strangers(node)
    saved = [round for node in nodes for round in checkpoint.rounds(lineage.directory, node.rank)]
    # Before anybody counts on the nodes: reading a checkpoint and fetching a model may take long.
    before = communication.locate(peers, max(saved), deadline) if saved else 0
    for node in nodes:
        if not _restored(node, lineage, before):
            _take_model(node, peers[node.rank], communication, deadline)
    round = communication.come_back(peers, deadline)
    for node in nodes:
        _undo(node, lineage, round)
        # A machine that comes late knows less of it than a checkpoint.
        keep_time(node, max(node.records.seconds, lineage.seconds))
        node.course.start_at(round)
        print(f"rank {node.rank} is back from round {round + 1} on", flush=True)


def refuse_strangers(node: Node) -> None:
    """Raises RunFailed when the others' scheme cannot take the node back."""
    sharing = node.sharing
    if not (sharing.tolerates_loss and sharing.takes_back):
        raise RunFailed(f"rank {node.rank}: {name_of(sharing)} does not take a node back that was lost")


def _restored(node: Node, lineage: Lineage, before: int) -> bool:
    """Whether there was a checkpoint of this run to go on from, of a round before that one."""
    device = node.exchange.endpoint.device
    try:
        found = checkpoint.newest(lineage.directory, node.rank, device, before=before)
    except BadInput as error:
        print(f"{error}; a neighbor's model is taken", flush=True)
        return False
    if found is None or found.stamp.run_id != lineage.stamp.run_id:
        return False
    node.checkpoints.go_on(node, found)
    print(f"rank {node.rank} has its checkpoint of round {found.round + 1}", flush=True)
    return True


def _undo(node: Node, lineage: Lineage, round: int) -> None:
    """Takes away what the node has done of `round` and later ones, which it does again with the others.

    It went on alone in another part of the network, or the others went on from an earlier round.
    """
    if node.round >= round and not _restored(node, lineage, round):
        # Whoever was as far is gone since; the neighbors wait for a model now, and this one is a good one.
        node.round = round - 1
    try:
        node.checkpoints.undo(node, round)
        node.records.cut_back(round - 1)
    except (BadInput, OSError) as error:
        print(
            f"rank {node.rank}: what it had done from round {round + 1} on is still there: {error}",
            flush=True,
        )


def _take_model(node: Node, peers: Iterable[int], communication: Communication, deadline: float) -> None:
    # A neighbor that comes back itself answers only when it takes part.
    candidates = PASSES * sorted(peers) if node.sharing.gives_model else []
    for peer in candidates:
        model = communication.fetch(node.rank, peer, deadline / len(candidates))
        if model is not None and model.shape == node.training.vector.values.shape and model.isfinite().all():
            node.training.vector.values.copy_(model)
            print(f"rank {node.rank} has the model of rank {peer}", flush=True)
            return
    print(f"rank {node.rank} has the model that all nodes started from: no neighbor gave one", flush=True)
