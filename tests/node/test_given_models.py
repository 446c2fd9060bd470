"""What a node that comes back goes on from: its checkpoint, or a neighbor's model where one is given."""

from itertools import product
from pathlib import Path

import pytest
import torch

from decentnode.communication.launcher_link.heartbeats import Activity
from decentnode.communication.launcher_link.reports import Rejoined
from decentnode.errors import StartError
from decentnode.formats.records import read_records
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.checkpoint_file import CheckpointFile
from decentnode.node.experiment import Experiment
from decentnode.node.rejoin import rejoin_nodes
from tests.support import checkpoints
from tests.support.in_process import Nodes

CONFIGS = Path(__file__).parents[2] / "configs"
INPROC = ["communication=inproc"]


def may_fetch(directory, config, *overrides):
    """For each pair of ranks whether the second gets the model of the first; and who are partners."""
    experiment = Experiment.from_yaml(CONFIGS / config, [*INPROC, *overrides])
    nodes, graph = Nodes(experiment, directory / "run").nodes, experiment.graph.graph
    pairs = [(i, j) for i in range(len(nodes)) for j in range(len(nodes)) if i != j]
    allowed = {(i, j) for i, j in pairs if nodes[i].exchange.may_fetch(j)}
    return allowed, {(i, j) for i, j in pairs if j in graph.partners(i)}


def test_partners_in_the_graph_get_the_model_and_nobody_else(tmp_path):
    allowed, partners = may_fetch(tmp_path, "quickstart.yaml")
    assert allowed == partners
    assert len(partners) == 16 * 4


@pytest.mark.parametrize("config", ["secure_aggregation.yaml", "private.yaml", "choco.yaml"])
def test_where_models_are_masked_or_protected_or_nobody_rejoins_none_is_given(tmp_path, config):
    allowed, partners = may_fetch(tmp_path, config)
    assert partners
    assert not allowed


class Neighbors:
    """A transport over which rank 0 comes back, to neighbors that are where a test wants them."""

    def __init__(self, round, seen=None, model=None):
        """`seen`: where they were when it looked, unless in `round`; `model`: what they give."""
        self.round, self.model = round, model
        self.seen = round if seen is None else seen
        self.asked = []
        """Of whom a model was fetched, and when: before they counted on the node."""
        self.seconds = 0.0
        """How long models were waited for."""

    def locate(self, peers, enough, timeout):
        self.asked.append("where")
        return self.seen

    def fetch(self, rank, peer, timeout):
        self.asked.append(peer)
        self.seconds += timeout
        return self.model

    def rejoin(self, peers, timeout):
        self.asked.append("round")
        return self.round

    def start_at(self, round):
        self.asked.append(f"alone from {round}")


@pytest.fixture
def experiment():
    return Experiment.from_yaml(
        CONFIGS / "quickstart.yaml",
        [*INPROC, "graph={name: ring, nodes: 6}", "training.scheduler={name: StepLR, step_size: 1}"],
    )


class Returned:
    """Rank 0 of nodes that were saved after some rounds of six, before its neighbors went back to others."""

    def __init__(self, experiment, directory, neighbors, saved, ended=False):
        """`ended`: whether another node of the machine has done its last round."""
        gone = Nodes(experiment, directory).begin()
        self.models = {}
        for round in range(6):
            gone.run(round, round + 1)
            self.models[round] = gone.models[0]
            if round in saved:
                gone.saved()
        gone.nodes[0].records.close()
        self.directory, self.reports = gone.identity.directory, []
        self.path = directory / "00000.jsonl"
        self.nodes = Nodes(experiment, directory / "again")
        self.node = self.nodes.nodes[0]
        self.node.records._file.path = self.path
        self.node.checkpoints.identity = gone.identity
        self.node.checkpoints.reporter.send = self.reports.append
        if ended:
            self.nodes.nodes[1].scheduler.heartbeat.mark(5, Activity.END)
        rejoin_nodes([self.node], {0: [1]}, neighbors, gone.identity, 1.0)

    @property
    def model(self):
        return self.node.training.vector.values

    @property
    def recorded(self):
        return [record.round for record in read_records(self.path)]

    @property
    def saved(self):
        return checkpoint.rounds(self.directory, 0)


def test_who_has_got_further_than_its_neighbors_continues_from_before_where_they_are(experiment, tmp_path):
    """Else they would wait for rounds that it never does; nothing is left of what it had done of these."""
    neighbors = Neighbors(4)
    back = Returned(experiment, tmp_path / "run", neighbors, saved=(1, 2, 5))
    assert back.node.round == 2 and torch.equal(back.model, back.models[2])
    assert back.node.training.scheduler.last_epoch == 3
    assert back.saved == [1, 2]
    assert back.recorded == [0, 1, 2, 3]
    assert back.reports == [Rejoined(0, 4)]
    assert neighbors.asked == ["where", "round"]


def test_who_has_only_later_checkpoints_takes_a_model_before_anybody_counts_on_it(experiment, tmp_path):
    model = torch.full((experiment.layout.numel,), 0.5)
    neighbors = Neighbors(4, model=model)
    back = Returned(experiment, tmp_path / "run", neighbors, saved=(4, 5))
    assert back.node.round == -1 and torch.equal(back.model, model)
    assert back.node.training.scheduler.last_epoch == 0
    assert (back.saved, back.recorded) == ([], [0, 1, 2, 3])
    assert neighbors.asked == ["where", 1, "round"]


class Ended(Neighbors):
    """Neighbors that have done their last round, and closed their links."""

    def locate(self, peers, enough, timeout):
        raise StartError("no neighbor agreed on a round to rejoin in")

    def rejoin(self, peers, timeout):
        raise StartError("no neighbor agreed on a round to rejoin in")


def test_who_comes_back_after_the_others_have_ended_ends_as_it_was_saved(experiment, tmp_path):
    neighbors = Ended(0)
    back = Returned(experiment, tmp_path / "run", neighbors, saved=(1, 2, 5), ended=True)
    assert back.node.round == 5 and torch.equal(back.model, back.models[5])
    assert (back.saved, neighbors.asked) == ([1, 2, 5], ["alone from 6"])
    for saved, ended in (((), True), ((1,), False)):
        with pytest.raises(StartError):
            Returned(experiment, tmp_path / f"{ended}", Ended(0), saved=saved, ended=ended)


def test_who_was_saved_before_the_round_that_its_neighbors_begin_keeps_that(experiment, tmp_path):
    back = Returned(experiment, tmp_path / "run", Neighbors(6), saved=(4, 5))
    assert back.node.round == 5 and torch.equal(back.model, back.models[5])
    assert (back.saved, back.recorded) == ([4, 5], [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(("saved", "model"), [((1, 5), 1), ((4, 5), 5)])
def test_where_the_furthest_neighbor_ends_meanwhile_the_round_agreed_on_counts(
    experiment, tmp_path, saved, model
):
    """It is too late to fetch a model then: whoever could give one waits in that round."""
    neighbors = Neighbors(3, seen=6)
    back = Returned(experiment, tmp_path / "run", neighbors, saved)
    assert back.node.round == min(model, 2) and torch.equal(back.model, back.models[model])
    assert back.saved == [round for round in saved if round < 3]
    assert back.recorded == [0, 1, 2]
    assert neighbors.asked == ["where", "round"]


def test_a_node_without_checkpoints_need_not_look_where_its_neighbors_are(experiment, tmp_path):
    neighbors = Neighbors(7)
    back = Returned(experiment, tmp_path / "run", neighbors, saved=())
    assert neighbors.asked == [*10 * [1], "round"]
    assert back.recorded == [0, 1, 2, 3, 4, 5]


def test_who_rejoins_and_is_stopped_before_a_new_round_is_not_saved_again(tmp_path, monkeypatch):
    experiment = Experiment.from_yaml(CONFIGS / "quickstart.yaml", INPROC)
    nodes = Nodes(experiment, tmp_path / "run").begin().run(0, 2)
    nodes.saved()
    back = Nodes(experiment, tmp_path / "again")
    rejoin_nodes(back.nodes[:1], {0: [1]}, Neighbors(5), nodes.identity, 1.0)
    assert back.nodes[0].round == 1
    monkeypatch.setattr(type(back.nodes[0].scheduler), "is_cut_short", True)
    monkeypatch.setattr(CheckpointFile, "add", None)
    back.nodes[0].checkpoints.at_the_end(1, back.nodes[0].snapshot)


def models_of(nodes):
    return [node.training.vector.values for node in nodes]


def test_a_node_whose_neighbors_are_all_in_its_process_has_the_model_that_a_sibling_got(experiment, tmp_path):
    """Nobody in the process knows more than the node itself, and nobody there would answer."""
    back = Nodes(experiment, tmp_path / "run")
    neighbors = Neighbors(4, model=torch.full((experiment.layout.numel,), 0.5))
    rejoin_nodes(back.nodes[:3], {0: [1, 2], 1: [0, 5], 2: [0, 1]}, neighbors, back.identity, 1.0)
    assert neighbors.asked == [5, "round"]
    assert all(torch.equal(model, neighbors.model) for model in models_of(back.nodes[:3]))
    assert not torch.equal(back.models[3], neighbors.model)


def test_where_no_neighbor_gives_a_model_a_sibling_gives_that_of_its_checkpoint(experiment, tmp_path):
    gone = Nodes(experiment, tmp_path / "run").begin().run(0, 2)
    checkpoints.save(gone.identity.directory, 1, 1, gone.nodes[1].snapshot(), gone.identity.stamp)
    back, neighbors = Nodes(experiment, tmp_path / "again"), Neighbors(4)
    rejoin_nodes(back.nodes[:2], {0: [1, 5], 1: [0, 5]}, neighbors, gone.identity, 1.0)
    assert neighbors.asked == ["where", *10 * [5], "round"]
    assert all(torch.equal(model, gone.models[1]) for model in models_of(back.nodes[:2]))
    assert [node.round for node in back.nodes[:2]] == [-1, 1]


def test_all_nodes_of_a_process_have_one_deadline_to_fetch_models(experiment, tmp_path):
    back, neighbors = Nodes(experiment, tmp_path / "run"), Neighbors(4)
    rejoin_nodes(back.nodes[:3], {0: [1, 7, 8], 1: [5], 2: [6]}, neighbors, back.identity, 3.0)
    assert neighbors.asked == [*10 * [7, 5, 6, 8], "round"]
    assert neighbors.seconds == pytest.approx(3.0)


def test_where_no_models_are_given_no_sibling_gives_one_either(experiment, tmp_path, monkeypatch):
    back, neighbors = Nodes(experiment, tmp_path / "run"), Neighbors(4)
    gone = Nodes(experiment, tmp_path / "gone").begin().run(0, 2)
    checkpoints.save(back.identity.directory, 1, 1, gone.nodes[1].snapshot(), back.identity.stamp)
    monkeypatch.setattr(type(back.nodes[0].sharing), "gives_model", False)
    began = back.models[0]
    rejoin_nodes(back.nodes[:2], {0: [1, 5], 1: [0, 5]}, neighbors, back.identity, 1.0)
    assert neighbors.asked == ["where", "round"]
    assert torch.equal(back.models[0], began) and torch.equal(back.models[1], gone.models[1])


class Together:
    """All nodes of a run, in one process, after four rounds; saved after the first three."""

    def __init__(self, experiment, directory):
        self.experiment, self.directory = experiment, directory
        self.gone = Nodes(experiment, directory / "run").begin()
        self.models = {}
        for round in range(4):
            self.gone.run(round, round + 1)
            self.models[round] = self.gone.models
            if round < 3:
                self.saved = self.gone.saved()

    def rejoin(self):
        """They ask nobody, as there is nobody to be asked."""
        back, neighbors = Nodes(self.experiment, self.directory / "again"), Neighbors(9)
        graph = self.experiment.graph.graph
        peers = {node.rank: graph.partners(node.rank) for node in back.nodes}
        for node in back.nodes:
            node.checkpoints.identity = self.gone.identity
        rejoin_nodes(back.nodes, peers, neighbors, self.gone.identity, 1.0)
        (asked,) = neighbors.asked
        return back, asked


@pytest.fixture
def together(experiment, tmp_path):
    return Together(experiment, tmp_path)


def test_where_all_nodes_share_a_process_they_continue_after_the_newest_round_that_all_have(together):
    checkpoint.delete(together.saved, [3], 2)
    back, asked = together.rejoin()
    assert asked == "alone from 2"
    assert {node.round for node in back.nodes} == {1} and torch.equal(back.models, together.models[1])
    assert all(checkpoint.rounds(together.saved, node.rank) == [0, 1] for node in back.nodes)
    back.run(2, 4)
    assert torch.equal(back.models, together.models[3])


def test_a_round_of_which_one_of_them_has_a_bad_checkpoint_does_not_count(together):
    path = together.saved / "00005" / "00000002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    back, asked = together.rejoin()
    assert asked == "alone from 2" and torch.equal(back.models, together.models[1])


@pytest.mark.parametrize("saved", ["by nobody", "by others than rank 0", "in another run"])
def test_nodes_that_were_never_saved_together_begin_again(together, saved):
    ranks = {"by nobody": range(16), "by others than rank 0": [0]}.get(saved, [])
    for rank, round in product(ranks, range(3)):
        checkpoint.delete(together.saved, [rank], round)
    if saved == "in another run":
        together.gone.identity.settle(7, 0)
    back, asked = together.rejoin()
    assert asked == "alone from 0" and {node.round for node in back.nodes} == {-1}
    back.begin().run(0, 1)
    assert torch.equal(back.models, together.models[0])
