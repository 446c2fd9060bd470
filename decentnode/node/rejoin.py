"""How the nodes of a restarted host process rejoin a run in progress."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from decentnode.communication.base import Communication
from decentnode.core.rng import generator
from decentnode.core.timeouts import Timeouts
from decentnode.errors import BadInput, StartError
from decentnode.graph.base import Graph
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.node_checkpoints import FROM_THE_START, RunIdentity
from decentnode.node.checkpoint.store import BadCheckpoint, Checkpoint
from decentnode.node.participant import Participant

MOST_REJOIN_PEERS = 32
"""Peers that a restarted node asks where the graph changes: enough that some of them live."""
PASSES = 10
"""Requests to each neighbor for its model."""


def rejoin_peers(graph: Graph, rank: int, others: set[int], seed: int, incarnation: int) -> set[int]:
    """Peers that a restarted node asks for a round and a model: all but `others`, or some of them.

    With the rest it agrees on a round when a round needs them.
    """
    peers = sorted(graph.partners(rank) - others)
    if graph.static or len(peers) <= MOST_REJOIN_PEERS:
        return set(peers)
    random = generator(seed, "met_again", rank, incarnation)
    return set(random.choice(peers, MOST_REJOIN_PEERS, replace=False).tolist())


def rejoin_nodes(
    nodes: Sequence[Participant], peers: Mapping[int, Iterable[int]], communication: Communication,
    identity: RunIdentity, deadline: float,
) -> None:  # fmt: skip
    """Gives each node a model, and all of them the round to continue in; raises StartError.

    Asks only neighbors in other processes, since those in this one rejoin, too. If all are in this one, the
    nodes continue as in a resumed run. If no neighbor answers because the run is over, they load their last
    checkpoints. `deadline` is the timeout of each wait for all nodes together, in seconds.
    """
    local_ranks = {node.rank for node in nodes}
    elsewhere = {node.rank: sorted(set(peers[node.rank]) - local_ranks) for node in nodes}
    if any(elsewhere.values()):
        try:
            _find_models(nodes, elsewhere, communication, identity=identity, deadline=deadline)
            # Models first, the round last: peers wait for this node from the agreed round on.
            round = communication.rejoin(elsewhere, deadline)
        except StartError:
            # Others have done their last round, and closed their links: the nodes end as they were saved.
            round = nodes[0].scheduler.first_not_done
            if not round or not all(_restored(node, identity, round) for node in nodes):
                raise
            communication.start_at(round)
    else:
        round = _resume(nodes, identity) + 1
        communication.start_at(round)
    for node in nodes:
        _go_back(node, identity, round)
    for node in nodes:
        _discard(node, round)
        # Not before its checkpoint: after a resume the machines' times differ a little.
        node.set_elapsed(max(node.records.wall_seconds, identity.seconds))
        node.scheduler.start_at(round)
        print(f"rank {node.rank} is back from round {round + 1} on", flush=True)


def _resume(nodes: Sequence[Participant], identity: RunIdentity) -> int:
    """Restores all nodes to the newest round that each has a valid checkpoint of; returns that round."""
    saved = checkpoint.rounds_of(identity.directory, [node.rank for node in nodes])
    for round in sorted(set.intersection(*map(set, saved.values())), reverse=True):
        try:
            # All are read before any node is restored: all must continue after one round.
            checkpoints = [_read(node, identity, round) for node in nodes]
        except BadCheckpoint as error:
            print(f"{error}; the round before it is tried", flush=True)
            continue
        for node, newest in zip(nodes, checkpoints, strict=True):
            _continue(node, newest)
        return round
    for node in nodes:
        print(
            f"rank {node.rank} starts from the initial model: no round was saved by all nodes of its process",
            flush=True,
        )
    return FROM_THE_START


def _read(node: Participant, identity: RunIdentity, round: int) -> Checkpoint:
    """Reads one checkpoint; raises BadCheckpoint, also for a checkpoint of another run."""
    saved = checkpoint.read(identity.directory, node.rank, round, device=node.exchange.endpoint.device)
    if saved.stamp.run_id != identity.stamp.run_id:
        raise BadCheckpoint(f"rank {node.rank}: its checkpoint of round {round + 1} is of another run")
    return saved


def _find_models(
    nodes: Sequence[Participant], peers: Mapping[int, Sequence[int]], communication: Communication,
    identity: RunIdentity, deadline: float,
) -> None:  # fmt: skip
    """Restores each node from its last checkpoint of a round that its neighbors have reached, or gives it a
    model.

    That is a neighbor's model if one is sent, otherwise that of another node of this process, otherwise the
    initial model.
    """
    saved = checkpoint.rounds_of(identity.directory, [node.rank for node in nodes])
    # Before any agreement on a round: to read checkpoints and fetch models may take long.
    last = max((rounds[-1] for rounds in saved.values() if rounds), default=None)
    before = 0 if last is None else communication.locate(peers, last, deadline)
    restored = {node.rank for node in nodes if _restored(node, identity, before)}
    lacking = [node for node in nodes if node.rank not in restored]
    fetched = _fetch_models(lacking, peers, communication, deadline=deadline)
    givers = [node for node in nodes if node.rank in (fetched or restored)]
    for node in lacking:
        if node.rank in fetched:
            continue
        # The same condition as for a neighbor's model.
        if givers and node.sharing.gives_model:
            _take_model(node, givers[0].vector.shared, givers[0].rank)
        else:
            print(f"rank {node.rank}: no neighbor sent a model; starting from the initial model", flush=True)


def _fetch_models(
    nodes: Iterable[Participant],
    peers: Mapping[int, Sequence[int]],
    communication: Communication,
    deadline: float,
) -> set[int]:
    """Requests models from the neighbors of these nodes; returns the ranks that received one."""
    asking = {node.rank: node for node in nodes if node.sharing.gives_model}
    # Every node's first neighbor, then every node's second: a late answer is used at the node's next turn. A
    # neighbor that rejoins itself answers only when it takes part.
    turns = sorted((turn, rank, peer) for rank in asking for turn, peer in enumerate(peers[rank]))
    fetched = set[int]()
    for _, rank, peer in PASSES * turns:
        if rank in fetched:
            continue
        model = communication.fetch(rank, peer, Timeouts.model_request(deadline, PASSES * len(turns)))
        shape = asking[rank].vector.shared.shape
        # A model of another shape, or with NaN, would spread to all neighbors.
        if model is not None and model.shape == shape and model.isfinite().all():
            _take_model(asking[rank], model, peer)
            fetched.add(rank)
    return fetched


def _take_model(node: Participant, model: Tensor, giver: int) -> None:
    node.vector.shared.copy_(model)
    print(f"rank {node.rank} has the model of rank {giver}", flush=True)


def _restored(node: Participant, identity: RunIdentity, before: int) -> bool:
    """Whether a checkpoint of this run from before round `before` was loaded."""
    device = node.exchange.endpoint.device
    try:
        saved = checkpoint.newest(identity.directory, node.rank, device, before=before)
    except BadInput as error:
        print(f"{error}; a neighbor's model is taken", flush=True)
        return False
    # Only the run must match: its checkpoints outlive restarts.
    if saved is None or saved.stamp.run_id != identity.stamp.run_id:
        return False
    _continue(node, saved)
    return True


def _continue(node: Participant, checkpoint: Checkpoint) -> None:
    node.restore(checkpoint.state)
    print(f"rank {node.rank} has its checkpoint of round {checkpoint.round + 1}", flush=True)


def _go_back(node: Participant, identity: RunIdentity, round: int) -> None:
    """Takes the node to before `round`, which it repeats with the others.

    It had continued alone in another partition, or the others continued from an earlier round.
    """
    if node.round >= round and not _restored(node, identity, round):
        # All peers that were as far are lost. The neighbors wait for a model now, and this one is valid.
        node.round = round - 1
    node.checkpoints.go_back_to(round)


def _discard(node: Participant, round: int) -> None:
    """Deletes what the node had saved of `round` and later."""
    try:
        # Checkpoints first: none may be left without the records that it implies.
        node.checkpoints.undo(round)
        node.records.cut_back(round - 1)
    except (BadInput, OSError) as error:
        print(
            f"rank {node.rank}: what it had done from round {round + 1} on is still there: {error}",
            flush=True,
        )
