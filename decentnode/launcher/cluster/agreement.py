"""What all machines agree on before the first round: the run, its handshakes, where it continues."""

import secrets
from collections.abc import Iterable

import msgspec

from decentnode.errors import BadInput, StartError
from decentnode.launcher.state.messages import RUN_STARTS, Join, Presence, Start
from decentnode.mapping.base import Mapping
from decentnode.node.checkpoint.node_checkpoints import FROM_THE_START

MOST_NAMED = 5


def agreed(joins: dict[int, Join], mapping: Mapping, absent: list[int]) -> Start:
    """Returns the start of a new run, or of one that resumes after the newest round that all ranks have.

    `joins`: what each machine that is here has said; a run is resumed where one of them has it.
    Raises BadInput where no round suits all.
    """
    joins = dict(sorted(joins.items()))
    # A machine cannot announce handshakes or checkpoints of another one's nodes.
    of_ranks = [(r, join) for machine, join in joins.items() for r in mapping.ranks_of(machine)]
    handshakes = {r: join.handshakes[r] for r, join in of_ranks if r in join.handshakes}
    signatures = {machine: join.signature for machine, join in joins.items() if join.signature}
    addresses = {machine: join.address for machine, join in joins.items() if join.address}
    start = Start(
        secrets.randbits(62) + 1, handshakes, signatures=signatures, absent=absent, addresses=addresses,
        presences=dict.fromkeys(joins, Presence()),
    )  # fmt: skip
    resumed = next((join.run_id for join in joins.values() if join.run_id), "")
    if not resumed:
        return start
    incarnation = max(join.incarnation for join in joins.values())
    if incarnation == RUN_STARTS[-1]:
        raise StartError(f"the run was started again {incarnation} times, the limit")
    # The machine with the longest list took part in every start.
    starts = max((join.starts for join in joins.values()), key=len)
    offers: dict[int, list[int]] = {}
    for rank, join in of_ranks:
        # In starts that this machine missed, the others have discarded later rounds.
        missed = starts[len(join.starts) :]
        offers[rank] = [r for r in join.offers.get(rank, []) if r <= min(missed, default=r)]
    round = newest_of_all(offers, offers)
    new = [machine for machine, join in joins.items() if not join.run_id]
    if new and round == FROM_THE_START and any(max(rounds) > round for rounds in offers.values()):
        # To begin again would discard what the others have saved.
        raise BadInput(
            f"{mapping.describe(new[0])} has nothing of the run that the others resume; restore its "
            "directory, or name another run_dir to begin a new run"
        )
    return msgspec.structs.replace(
        start, run_id=int(resumed, 16), incarnation=incarnation + 1, round=round, starts=[*starts, round]
    )


def newest_of_all(offers: dict[int, list[int]], ranks: Iterable[int]) -> int:
    """Returns the newest round with checkpoints of all ranks; raises BadInput that names missing ones."""
    have = {rank: sorted(set(offers.get(rank, ()))) for rank in ranks}
    shared = set.intersection(*map(set, have.values()))
    if shared:
        return max(shared)
    latest = max((rounds[-1] for rounds in have.values() if rounds), default=None)
    if latest is None:
        raise BadInput("no rank has a checkpoint to resume from")
    lacking = [rank for rank, rounds in have.items() if latest not in rounds]
    listed = {rank: ", ".join(str(round + 1) for round in have[rank]) for rank in lacking[:MOST_NAMED]}
    named = "; ".join(f"rank {rank} has {f'round {own}' if own else 'none'}" for rank, own in listed.items())
    more = f"; and {len(lacking) - MOST_NAMED} more ranks" if len(lacking) > MOST_NAMED else ""
    raise BadInput(
        "there is no round that all ranks have a checkpoint of; "
        f"round {latest + 1} is missing here: {named}{more}"
    )
