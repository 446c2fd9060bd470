"""A loop of one's own that continues from the states that it saved, and what join leaves as it was."""

import pytest
import torch
from torch import nn

import decentnode
from decentnode.errors import BadInput
from tests.support.framework_loops import flat, samples_of, small_classifier
from tests.support.rank_threads import in_threads

SIZE = 3


def joined(model, optimizer, rank, folder, **options):
    return decentnode.join(
        model, optimizer=optimizer, graph="ring", rank=rank, size=SIZE, quiet=True, run_dir=str(folder),
        **{"sharing": "gradient_tracking", "steps_per_round": 2} | options,
    )  # fmt: skip


class Loop:
    """One rank's training of so many steps, from a saved state or from the start."""

    def __init__(self, rank, folder, steps, saved=None, closure=False, **options):
        self.model = small_classifier()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if saved is not None:
            self.model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        self.node = joined(self.model, optimizer, rank, folder, state=saved and saved["node"], **options)
        first = saved["steps"] if saved else 0
        self.ends = []
        inputs, labels = samples_of(rank)
        with self.node:
            for step in range(first, steps):
                rows = slice(4 * step, 4 * step + 4)

                def backward(rows=rows):
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(self.model(inputs[rows]), labels[rows])
                    loss.backward()
                    return loss

                if closure:
                    optimizer.step(backward)
                else:
                    backward()
                    optimizer.step()
                goes_on = self.node.step()
                self.ends.append(self.node.round_ended)
                if not goes_on:
                    break
            self.saved = {
                "model": {name: value.clone() for name, value in self.model.state_dict().items()},
                "optimizer": optimizer.state_dict(), "node": self.node.state_dict(),
                "steps": first + len(self.ends),
            }  # fmt: skip

    @property
    def rounds(self):
        return self.saved["node"]["rounds"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Loops that were not broken off."""
    folder = tmp_path_factory.mktemp("whole")
    return in_threads(SIZE, lambda rank: Loop(rank, folder, 6))


def ends_as(whole, loops):
    equal = [torch.equal(flat(a.model), flat(b.model)) for a, b in zip(whole, loops, strict=True)]
    return (equal, [loop.rounds for loop in loops]) == ([True] * SIZE, [3] * SIZE)


def test_a_loop_continues_within_a_round_with_models_that_differ(tmp_path):
    options = {"sharing": "choco"}
    whole = in_threads(SIZE, lambda rank: Loop(rank, tmp_path / "whole", 6, **options))
    assert [loop.ends for loop in whole] == [[False, True] * 3] * SIZE
    parts = in_threads(SIZE, lambda rank: Loop(rank, tmp_path / "first", 3, **options))
    assert len({flat(loop.model).sum().item() for loop in parts}) == SIZE
    resumed = in_threads(SIZE, lambda rank: Loop(rank, tmp_path / "second", 6, parts[rank].saved, **options))
    assert ends_as(whole, resumed)


def test_a_loop_continues_after_the_last_round(whole, tmp_path):
    parts = in_threads(SIZE, lambda rank: Loop(rank, tmp_path / "first", 6, rounds=2))
    assert [loop.ends for loop in parts] == [[False, True] * 2] * SIZE
    # The gradient of a closure is computed inside of the optimizer's step, and changed all the same.
    resumed = in_threads(
        SIZE, lambda rank: Loop(rank, tmp_path / "second", 6, parts[rank].saved, closure=True)
    )
    assert ends_as(whole, resumed)


def test_all_ranks_continue_from_the_same_place(whole, tmp_path):
    def work(rank):
        state = dict(whole[rank].saved["node"], steps=rank // 2)
        return joined(small_classifier(), None, rank, tmp_path, state=state, sharing="gossip")

    with pytest.raises(
        BadInput, match="rank 2: its saved state is after 3 rounds and 1 steps, that of rank 0"
    ):
        in_threads(SIZE, work)


def test_join_leaves_the_generators_of_the_loop(tmp_path):
    models = [small_classifier() for _ in range(SIZE)]
    before = torch.get_rng_state()

    def work(rank):
        with joined(models[rank], None, rank, tmp_path, sharing="gossip"):
            return torch.get_rng_state()

    assert [torch.equal(before, after) for after in in_threads(SIZE, work)] == [True] * SIZE
