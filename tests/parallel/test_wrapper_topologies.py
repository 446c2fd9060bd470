"""Topologies with options, and our optimizers, under DecentralizedDataParallel: as the equations say."""

import pytest
import torch

from decentnode.errors import BadInput
from decentnode.parallel.topology import weighted_graph
from decentnode.training.optim import AccumAdam, AccumAdamW
from tests.support.wrapper_ranks import Run

LATE = {"scheme": "adapt_then_combine", "bucket_mb": 1e-4}
EARLY = {"scheme": "communicate_while_adapt", "bucket_mb": 1e-4}


def ring_of_machines(k, between="all"):
    return {"name": "alternating_exponential_ring", "per_machine": k, "between": between}


def worst_error(run, size):
    graph = weighted_graph(run.topology, None, size)
    return (run.models(size) - run.oracle(size, lambda step: torch.tensor(graph.matrix(step)))).abs().max()


@pytest.mark.parametrize(
    ("topology", "size", "options"),
    [
        (ring_of_machines(1), 1, EARLY),
        (ring_of_machines(1), 4, LATE),
        (ring_of_machines(4), 4, EARLY),
        (ring_of_machines(2), 8, EARLY),
        (ring_of_machines(2, "one"), 8, LATE),
        ({"name": "base_k_plus_one", "degree": 2}, 5, EARLY),
        ({"name": "base_k_plus_one", "simple": True}, 6, LATE),
    ],
    ids=str,
)
def test_options_of_topologies(topology, size, options):
    assert worst_error(Run(topology=topology, steps=6, options=options), size) < 1e-13


@pytest.mark.parametrize("topology", ["alternating_ring", "one_peer_exponential", "base_k_plus_one"])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: AccumAdam(p, lr=0.01, accum_iter=3),
        lambda p: AccumAdam(p, lr=0.01, accum_iter=2, weight_decay=0.1, implementation="for_loop"),
        lambda p: AccumAdamW(p, lr=0.01, accum_iter=2, weight_decay=0.1),
    ],
    ids=["plain", "decayed", "decoupled"],
)
def test_windows_of_steps_on_graphs_that_change(topology, optimizer):
    """5 ranks, 5 steps: windows end elsewhere than periods."""
    run = Run(topology=topology, steps=5, optimizer=optimizer, options=EARLY)
    assert worst_error(run, 5) < 1e-13


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        ("hypercube", "graph hypercube: dimension: missing; it must be a whole number"),
        ({"name": "regular", "degree": "x"}, "graph regular: degree: must be a whole number >= 0, not 'x'"),
    ],
)
def test_an_option_that_is_missing_or_of_another_type_is_named(topology, told):
    with pytest.raises(BadInput) as raised:
        weighted_graph(topology, None, 4)
    assert str(raised.value).startswith(told)


def test_a_graph_in_which_nodes_rest_is_refused():
    with pytest.raises(BadInput, match=r"^topology: nodes of teleport rest in some rounds"):
        weighted_graph({"name": "teleport", "active": 2}, None, 4)
