"""What `decentnode.testing` offers the authors of schemes, and that it notices what they do wrong."""

from dataclasses import dataclass

import pytest
import torch

from decentnode.graph.families import Ring
from decentnode.graph.mixing import Uniform
from decentnode.sharing import Choco, DeepSqueeze, Gossip, PushSum
from decentnode.testing import Lockstep, Quadratics, push_weights, random_models, residuals, tracker_gap
from decentnode.transforms.sparsify.top_k import TopK
from tests.sharing.test_sharings import documented


def test_the_documented_example_holds_in_two_dtypes(tmp_path, monkeypatch):
    example = documented(2, tmp_path, monkeypatch)
    example.test_it_is_the_recursion_and_keeps_the_mean()
    example.test_it_is_the_recursion_and_keeps_the_mean(torch.float32, 1e-5)
    example.test_it_comes_as_near_to_the_optimum_as_gossip()


@dataclass
class Forgetful(Gossip):
    def mix(self, vector, incoming, view, out):
        out[1:] = vector[1:]


@dataclass
class Hasty(Gossip):
    def mix(self, vector, incoming, view, out):
        super().mix(vector, incoming, view, out)
        vector.copy_(out)


@dataclass
class Talkative(Gossip):
    async def share(self, vector, view, exchange, out):
        for _ in range(2):
            self.mix(vector, await exchange(self.outgoing(vector, view), view.sources), view, out)


@dataclass
class Misled(Gossip):
    def outgoing(self, vector, view):
        return {view.rank: next(iter(super().outgoing(vector, view).values()))}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Forgetful, "left elements of out unwritten"),
        (Hasty, "wrote to the vector"),
        (Talkative, "more exchanges"),
        (Misled, "no target"),
    ],
)
def test_a_scheme_that_breaks_a_rule_learns_which(wrong, words):
    with pytest.raises(AssertionError, match=words):
        Lockstep(wrong, Ring(4), random_models(4)).mix()


def test_invariants_have_names_and_say_who_has_them():
    models, problem = torch.zeros(8, 10), Quadratics(torch.ones(8), random_models(8, 10))
    pushed = Lockstep(PushSum, Ring(8), models, weights=Uniform())
    pushed.run(3)
    assert push_weights(pushed).sum() == pytest.approx(8, abs=1e-12)
    for make in (lambda: Choco(gamma=0.05), lambda: DeepSqueeze(gamma=0.05)):
        kept = Lockstep(make, Ring(8), models, lambda: (TopK(0.5),))
        kept.run(40, problem.gradient, 0.05)
        assert residuals(kept).shape == models.shape and 0 < residuals(kept).norm() < problem.b.norm()
    by_edge = Lockstep(lambda: Choco(copies="edge"), Ring(4), random_models(4), lambda: (TopK(0.5),))
    with pytest.raises(ValueError, match="choco with copies by edge"):
        residuals(by_edge)
    owners = {tracker_gap: "beer", push_weights: "push_sum", residuals: "error_feedback"}
    for invariant, owner in owners.items():
        with pytest.raises(ValueError, match=f"gossip .*{owner}"):
            invariant(Lockstep(Gossip, Ring(4), random_models(4)))


def test_the_models_that_a_caller_gives_are_not_changed():
    models = random_models(4)
    network = Lockstep(Gossip, Ring(4), models, scribbles=True)
    network.run(2, lambda i, x: x, 0.1)
    assert torch.equal(models, random_models(4))
