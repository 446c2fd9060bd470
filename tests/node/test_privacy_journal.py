"""What a node has spent, over the death of its process and the restart of its machine."""

import json

import pytest

from decentnode.node.checkpoint import privacy_journal
from decentnode.node.checkpoint.privacy_journal import PrivacyJournal
from decentnode.node.experiment import Experiment
from decentnode.training.privacy.base import PrivateSteps
from tests.support.in_process import Nodes

CONFIG = """\
graph: {name: ring, nodes: 3}
dataset: {name: digits, train_size: 90, test_size: 10, mean: 4.9, std: 6}
model: logistic_regression
training:
  optimizer: {name: SGD, lr: 0.1}
  steps_per_round: 2
  privacy: {name: dp_sgd, clip: 1.0, noise: 2.0, delta: 1.0e-3}
communication: inproc
rounds: 9
evaluation: {every: 0}
"""


class Steps(PrivateSteps):
    epsilon = 1.0

    def begin(self, steps):
        return steps

    def gradient(self, batches):
        raise NotImplementedError

    def after(self, steps):
        return [*self.history, (0.5, 1.0, steps)]


def kept(folder, rank=1):
    steps, journal = Steps(), PrivacyJournal(folder, rank)
    journal.keep(steps)
    return steps, journal


def test_it_is_read_again_and_a_line_that_was_cut_off_is_not(tmp_path):
    first, journal = kept(tmp_path)
    assert first.history == [] and first.doubts == ()
    journal.spend([(0.5, 1.0, 4)])
    journal.spend([(0.5, 1.0, 8)])
    with (tmp_path / "privacy/00001.jsonl").open("ab") as file:
        file.write(b'{"history": [[0.5')
    again, other = kept(tmp_path)
    assert again.history == [(0.5, 1.0, 8)] and again.doubts == ()
    other.close()
    assert json.loads((tmp_path / "privacy/00001.jsonl").read_bytes().splitlines()[-1])["ended"]
    assert kept(tmp_path, rank=2)[0].history == []


def test_a_restarted_machine_may_have_lost_lines(tmp_path, monkeypatch):
    _, journal = kept(tmp_path)
    journal.spend([(0.5, 1.0, 4)])
    monkeypatch.setattr(privacy_journal, "boot", lambda: "another")
    again, other = kept(tmp_path)
    assert "its machine was restarted" in again.doubts[0]
    again.history = [(0.5, 1.0, 4)]
    other.close()
    assert kept(tmp_path)[0].doubts == again.doubts, "a doubt stays"


def test_what_a_node_wrote_that_ended_is_whole(tmp_path, monkeypatch):
    first, journal = kept(tmp_path)
    first.history = [(0.5, 1.0, 4)]
    journal.close()
    monkeypatch.setattr(privacy_journal, "boot", lambda: "another")
    assert kept(tmp_path)[0].doubts == ()


def test_it_says_so_where_it_cannot_be_written_or_read(tmp_path):
    (tmp_path / "privacy").write_text("in the way")
    steps, journal = kept(tmp_path)
    journal.spend([(0.5, 1.0, 4)])
    assert "could not be written" in steps.doubts[0]
    (tmp_path / "privacy").unlink()
    (tmp_path / "privacy").mkdir()
    (tmp_path / "privacy/00001.jsonl").write_text("nothing\nof\nours\n")
    assert kept(tmp_path)[0].doubts == ("its journal cannot be read",)


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "x.yaml").write_text(CONFIG)
    return Experiment.from_yaml(tmp_path / "x.yaml")


def spent(nodes):
    return [node.training.private.history[0][2] for node in nodes.nodes]


def test_a_resumed_run_counts_the_rounds_that_it_repeats(tmp_path, experiment):
    """Saved after 2 rounds of 2 steps and killed in the 5th, a node has spent 10 steps."""
    nodes = Nodes(experiment, tmp_path / "first").begin().run(0, 2)
    saved = nodes.saved()
    before = nodes.run(2, 4).models
    for node in nodes.nodes:
        node.training.hooks.spends(node.training.private.after(2))
    resumed = Nodes(experiment, tmp_path / "second").load(saved)
    assert spent(resumed) == [10, 10, 10]
    assert spent(resumed.run(2, 4)) == [14, 14, 14]
    assert not (resumed.models == before).all()
    assert [node.training.private.doubts for node in resumed.nodes] == [()] * 3
    claims = [node.training.private.claimed for node in resumed.nodes]
    assert min(claims) > nodes.nodes[0].training.private.epsilon


def test_without_its_journal_a_resumed_node_claims_nothing(tmp_path, experiment):
    saved = Nodes(experiment, tmp_path / "first").begin().run(0, 1).saved()
    (tmp_path / "privacy/00001.jsonl").unlink()
    resumed = Nodes(experiment, tmp_path / "second").load(saved)
    doubts = [node.training.private.doubts for node in resumed.nodes]
    assert doubts == [(), ("its journal lacks steps that its checkpoint has",), ()]
    assert spent(resumed) == [2, 2, 2]
