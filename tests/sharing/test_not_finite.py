"""What is not finite is never mixed: the sender is named and left out, or the run ends with who it was."""

import itertools
import math

import pytest
import torch

from decentnode.core.payload import NotFinite
from decentnode.errors import RunFailed
from decentnode.graph.families import Ring
from decentnode.sharing import Gossip
from decentnode.testing import Lockstep
from tests.support.scheme_cases import CASES, random_models, zipped

COMPANIONS = {"weight"}
"""Numbers beside the signal, which have checks of their own."""
SENDING = {name: case for name, case in CASES.items() if name != "none"}
SERVED = {name for name, case in CASES.items() if case.graphs[0].servers}
"""Without its server no node continues: tests/sharing/test_servers.py."""
OF_FLOATS = {
    name: case
    for name, case in SENDING.items()
    if not name.startswith(("cesar", "moniqua", "secure_aggregation", "shatter"))
    and name not in SERVED
    # Two nodes that start from other models first agree where to start: a loss there is another one.
    and name != "choco_per_edge"
}
"""The others send integers, which are always finite, or chunks of an unknown node."""
CHAINED = [(name, chain) for name, case in OF_FLOATS.items() for chain in case.chains if chain is not zipped]

WITH_A_VALUE = [
    (*case, value)
    for case, value in zip(CHAINED, itertools.cycle((math.nan, math.inf, -math.inf)), strict=False)
]


def play(case, transforms, is_live=lambda i, j: True):
    graph = case.graphs[0]
    models = random_models(graph.num_nodes, case.length)
    return Lockstep(
        case.make, graph, models, transforms, case.weights, is_live=is_live, parameters=case.parameters
    )


def poison(lockstep, victim, sender, value):
    """Puts `value` into a float of everything that `victim` gets from `sender`."""
    share = lockstep.schemes[victim].share

    async def poisoned(vector, view, exchange, out):
        async def hostile(outgoing, sources):
            incoming = await exchange(outgoing, sources)
            for field in incoming[sender].layout.fields if sender in incoming else ():
                numbers = incoming[sender][field.name]
                if field.dtype.is_floating_point and field.name not in COMPANIONS and numbers.numel():
                    numbers[-1] = value
            return incoming

        await share(vector, view, hostile, out)

    lockstep.schemes[victim].share = poisoned


@pytest.mark.parametrize(("name", "chain", "value"), WITH_A_VALUE)
def test_a_neighbor_that_sends_it_is_named_and_counts_as_missing(name, chain, value, capsys):
    case = OF_FLOATS[name]
    victim = 1
    sender = min(case.graphs[0].sources(victim, 0))
    hostile, lossy = (
        play(case, chain),
        play(case, chain, lambda i, j: (i, j) != (victim, sender)),
    )
    poison(hostile, victim, sender, value)
    if not hostile.schemes[victim].promises.tolerates_loss:
        with pytest.raises(
            RunFailed, match=rf"^rank {victim}, round 1: what rank {sender} sent makes no sense"
        ):
            hostile.run(1)
        return
    assert torch.equal(hostile.run(2), lossy.run(2))
    refusals = hostile.schemes[victim].refusals
    assert {refusal.rank for refusal in refusals} == {sender}
    assert all(scheme.refusals == [] for i, scheme in enumerate(hostile.schemes) if i != victim)
    assert f": discarded the payload of rank {sender}: " in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(SENDING.keys() - SERVED))
def test_a_node_whose_own_model_is_not_finite_ends_by_name(name):
    case = SENDING[name]
    lockstep = play(case, case.chains[0])
    lockstep.models[2, -1] = float("nan")
    with pytest.raises(RunFailed, match=r"rank 2\b"):
        lockstep.run(1)


@pytest.mark.parametrize("first", [float("inf"), float("nan")])
def test_all_that_are_unsound_are_left_out_at_once_and_the_first_element_is_named(first):
    lockstep = Lockstep(Gossip, Ring(5), random_models(5, 9))
    poison(lockstep, 1, 0, float("nan"))
    poison(lockstep, 1, 2, first)
    own_model = lockstep.models[1].clone()
    assert torch.equal(lockstep.run(1)[1], own_model)
    refusals = lockstep.schemes[1].refusals
    assert [r.rank for r in refusals] == [0, 2]
    assert all(isinstance(r.error, NotFinite) for r in refusals)
    assert str(refusals[1].error) == f"its vector is not finite: {first} in element 8"


def test_numbers_so_large_that_their_sum_is_not_finite_are_nobodys_fault():
    models = torch.full((3, 7), 1e308, dtype=torch.float64)
    lockstep = Lockstep(Gossip, Ring(3), models.clone())
    assert not models[0].sum().isfinite()
    assert torch.allclose(lockstep.run(2), models, rtol=1e-15, atol=0)
    assert all(scheme.refusals == [] for scheme in lockstep.schemes)
