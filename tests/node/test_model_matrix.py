"""What torch allows in a network is trained, evaluated, recorded, saved and resumed, or is refused."""

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from decentnode.communication.launcher_link.snapshots import SnapshotBuffers
from decentnode.config.settings import CheckpointSettings
from decentnode.errors import BadInput
from decentnode.formats.model_files import read_model
from decentnode.models.module_state import equal
from decentnode.node import dry_round
from decentnode.node.checkpoint.packed_state import packed, unpacked
from decentnode.node.checkpoint.safetensors_io import holds
from decentnode.node.experiment import Experiment, average_model_test, vector_test
from tests.support.in_process import Nodes
from tests.support.in_threads import Ranks

CONFIG = """
rounds: 3
graph: {name: ring, nodes: 3}
dataset: {name: digits, train_size: 60, test_size: 24}
model: {name: 'networks:MODEL'}
training: {optimizer: {name: SGD, lr: 0.05, momentum: 0.9}, batch_size: 8, steps_per_round: 2}
communication: inproc
checkpoint: {every: 1}
records: {models: {}}
evaluation: {every: 1, batch_size: 16}
"""


@pytest.fixture
def networks(monkeypatch):
    # Another test of this process may have imported another module of that name.
    monkeypatch.delitem(sys.modules, "networks", raising=False)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "eval" / "models"))
    import networks

    return networks


def experiment_of(folder, name, *overrides):
    path = folder / "x.yaml"
    path.write_text(CONFIG.replace("MODEL", name))
    return Experiment.from_yaml(path, overrides)


def test_what_torch_allows_trains_and_continues_bit_for_bit(networks, tmp_path):
    for cls in networks.CORE:
        check_whole_run(cls.__name__, tmp_path)


def check_whole_run(name, tmp_path):
    """Trial, rounds, evaluations, records, a checkpoint, resumed, evaluated elsewhere, pretrained."""
    folder = tmp_path / name
    folder.mkdir()
    experiment = experiment_of(folder, name)
    result = dry_round.findings(experiment, saves=True)
    assert result.defects == [] and all("gradient of" in notice for notice in result.notices), (name, result)
    straight = Nodes(experiment, folder / "straight").begin().run(0, 3)
    assert straight.models.isfinite().all(), name
    stopped = Nodes(experiment, folder / "stopped").begin().run(0, 2)
    resumed = Nodes(experiment, folder / "resumed").load(stopped.saved()).run(2, 3)
    assert torch.equal(resumed.models, straight.models), name
    for one, other in zip(straight.nodes, resumed.nodes, strict=True):
        state = one.training.module_state.state_dict()
        assert equal(state, other.training.module_state.state_dict()), name
        assert one.evaluation.scores == other.evaluation.scores, name
    # As in a process that evaluates in the background.
    test, vector = vector_test(experiment), one.training.vector.values
    test.load(vector)
    test.module_state.load_state_dict(unpacked(packed(state)))
    one.training.prepare_evaluation(2)
    assert experiment.plan.measured(2, lambda samples: test.run(samples, 16)) == one.evaluation.scores, name
    if (measured := average_model_test(experiment)) is not None:
        assert measured(vector, 2).keys() == one.evaluation.scores.keys()
    # A recorded model is a start for others.
    assert one.records.close() == "", name
    recorded = next(folder.rglob("models/00002/00000002.safetensors"))
    plain = read_model(recorded.parents[2], 2, 2)
    assert plain.keys() == {key for key, value in one.training.module.state_dict().items() if holds(value)}, (
        name
    )
    again = experiment_of(folder, name, f"model.pretrained={recorded}")
    own_state, started = one.training.module.state_dict(), again.network.state_dict()
    assert own_state.keys() >= started.keys(), name
    assert all(equal(own_state[key], started[key]) for key in started), name


def test_all_reduce_trains_one_model_whatever_its_buffers_do(networks, tmp_path):
    ddp = ["training.name=ddp", "sharing=none", "communication=zeromq"]
    (tmp_path / "x.yaml").write_text(CONFIG.replace("MODEL", "Composite"))
    ranks = Ranks(tmp_path / "x.yaml", tmp_path / "run", *ddp).meet().run(0, 2)
    assert ranks.models.isfinite().all() and all(torch.equal(ranks.models[0], x) for x in ranks.models)
    # Those that it can send are equal, too; a table that grows is each node's own.
    modules = [node.training.module for node in ranks.nodes]
    assert len({tuple(module.parts[6].calls.flatten().tolist()) for module in modules}) == 1
    assert [len(module.parts[2].table) for module in modules] == [16, 16, 16]
    ranks.close()
    for name, words in (
        ("FunctionalEmbedding", "gradient of 'table' is sparse"),
        ("Unused", "find_unused_parameters"),
    ):
        assert words in dry_round.defects(experiment_of(tmp_path, name, *ddp))[0]


def test_ranks_of_the_wrapper_take_the_same_networks(networks, tmp_path):
    import model_matrix

    with pytest.warns(UserWarning, match="'table' got another shape|'parts.2.table' got another shape"):
        for name in ("Composite", "GrowingBuffer", "LateBuffer", "Complex"):
            model_matrix.wrapped(name, tmp_path)


def test_an_evaluator_is_not_given_what_it_has_no_room_for(networks, tmp_path):
    experiment = experiment_of(tmp_path, "ExtraState")
    (node,) = Nodes(experiment, tmp_path / "run").nodes[:1]
    board = SnapshotBuffers([0], experiment.layout.numel, room=experiment.module_state_bytes)
    vector = node.training.vector.values

    def publish():
        module_state = packed(node.training.module_state.state_dict())
        return asyncio.run(board.publish(0, 0, vector, node.exchange.clock, module_state))

    assert publish() and unpacked(board.module_state(0))["extra"][""]["calls"] == 0
    board.release(0, 0)
    node.training.module.sums = [torch.zeros(1 << 20)]
    assert not publish()


def test_what_cannot_run_is_refused_before_the_start(networks, tmp_path):
    for cls, words in networks.REFUSED.items():
        try:
            defects = [
                *map(str, dry_round.findings(experiment_of(tmp_path, cls.__name__), saves=True).defects)
            ]
        except BadInput as error:
            defects = str(error).splitlines()
        assert len(defects) == 1 and defects[0].startswith("model: ") and words in defects[0], (cls, defects)


def test_what_only_a_resumed_run_would_miss_is_a_notice_without_checkpoints(networks, tmp_path):
    tried, other = experiment_of(tmp_path, "PlainCounter"), experiment_of(tmp_path, "Unseeded")
    result = dry_round.findings(replaced(tried))
    assert result.defects == [] and "'calls' in a plain attribute" in result.notices[0]
    assert "a source that no seed sets" in dry_round.findings(other, saves=True).notices[0]


def test_what_no_step_changes_is_pointed_out(networks, tmp_path):
    for cls, words in networks.NOTED.items():
        result = dry_round.findings(experiment_of(tmp_path, cls.__name__), saves=True)
        assert result.defects == [] and words in result.notices[0], (cls, result)


def replaced(experiment):
    return replace(experiment, settings=replace(experiment.settings, checkpoint=CheckpointSettings()))


def test_buffers_that_a_network_replaces_are_mixed(networks, tmp_path):
    experiment = experiment_of(tmp_path, "SharedBuffer", "training.mix_buffers=true")
    nodes = Nodes(experiment, tmp_path / "run").begin().run(0, 1).nodes
    entry = next(entry for entry in experiment.layout.entries if entry.name == "seen")
    seen = [node.training.module.seen for node in nodes]
    assert [x.tolist() for x in seen] == [entry.view(n.training.vector.values).tolist() for n in nodes]
    assert seen[0].any() and all(n.training.module.last.seen is n.training.module.seen for n in nodes)
    # Each node's own, averaged with two neighbors of three: all have the mean.
    assert torch.allclose(seen[0], seen[1])
    longer = experiment_of(tmp_path, "GrowingBuffer", "training.mix_buffers=true")
    assert "'table' began as" in dry_round.defects(longer)[0]


def test_all_generators_are_seeded_by_rank_round_and_step(networks, tmp_path):
    def draws(folder):
        scores = []
        nodes = Nodes(experiment_of(tmp_path, "OtherNoise"), tmp_path / folder).nodes
        for node in nodes:
            node.training.module.register_forward_hook(
                lambda *_: scores.append((np.random.rand(), random.random()))
            )
            tally = node.training.begin(0)
            for _ in range(2):
                asyncio.run(node.training.step(tally))
        return scores

    first = draws("a")
    np.random.seed(1), random.seed(1)
    assert draws("b") == first and len(set(first)) == 6


def test_a_batch_of_one_is_merged_where_a_function_normalizes(networks, tmp_path):
    sizes = "dataset.partition={name: sizes, sizes: [42, 9, 9]}"
    experiment = experiment_of(tmp_path, "FunctionalBatchNorm", sizes)
    assert experiment.samples.least_batch == 2 and dry_round.defects(experiment) == []
    with pytest.raises(BadInput, match="rank 1 has a single sample"):
        experiment_of(tmp_path, "FunctionalBatchNorm", "dataset.partition={name: sizes, sizes: [58, 1, 1]}")
