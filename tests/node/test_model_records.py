"""Models as results: kept beside the rounds, whole or not at all, and read without torch."""

import errno
import threading

import numpy as np
import pytest
import torch
from torch import nn

from decentnode.communication.base import ByteCounters
from decentnode.core.atomic_files import write_durably
from decentnode.errors import BadInput
from decentnode.formats.model_files import model_rounds, path_of, read_model, rounds_of
from decentnode.formats.records import RecordFile, Records, RoundRecord
from decentnode.node.recording import tensor_records
from decentnode.node.recording.model_records import ModelRecords


@pytest.fixture
def module() -> nn.Module:
    """With what a vector does not have: statistics, a counter, and a tensor in half of the bytes."""
    made = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    made.register_buffer("scale", torch.tensor([1.5, -2.0, 1e-30], dtype=torch.bfloat16))
    return made


def kept(tmp_path, module, warn=print, every=2) -> ModelRecords:
    return ModelRecords(tmp_path, 7, module, lambda round: (round + 1) % every == 0, warn)


def test_a_model_reads_as_it_was_after_its_round(tmp_path, module) -> None:
    models = kept(tmp_path, module)
    expected = {}
    for round in range(4):
        with torch.no_grad():
            module[0].weight.add_(1.0)
        models.after(round)
        expected[round] = {name: t.float().numpy().copy() for name, t in module.state_dict().items()}
    assert models.sync() == ""
    assert model_rounds(str(tmp_path)) == {7: [1, 3]}
    for round in (1, 3):
        model = read_model(str(tmp_path), 7, round)
        assert model.keys() == expected[round].keys()
        assert all(np.array_equal(model[name], array) for name, array in expected[round].items())
    assert model["0.weight"].dtype == model["scale"].dtype == np.float32
    assert model["1.num_batches_tracked"].dtype == np.int64


def test_a_round_does_not_wait_for_the_disk(tmp_path, module, monkeypatch) -> None:
    free = threading.Event()

    def slow(path, pieces) -> None:
        free.wait(30)
        write_durably(path, pieces)

    monkeypatch.setattr(tensor_records, "write_durably", slow)
    models = kept(tmp_path, module, every=1)
    models.after(0)
    weight = module[0].weight.detach().clone()
    with torch.no_grad():
        module[0].weight.zero_()  # the next round trains
    assert rounds_of(tmp_path, 7) == []
    free.set()
    assert models.sync() == ""
    assert np.array_equal(read_model(tmp_path, 7, 0)["0.weight"], weight.numpy())


def test_what_the_disk_does_not_take_is_tried_again_and_then_reported(tmp_path, module, monkeypatch) -> None:
    """So no checkpoint is made that would go on after a model that is not there."""
    told, full = [], True

    def write(path, pieces) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_durably(path, pieces)

    monkeypatch.setattr(tensor_records, "write_durably", write)
    records = Records(RecordFile(tmp_path, [7], told.append), [kept(tmp_path, module, told.append, every=1)])
    records.write(RoundRecord(7, 0), ByteCounters())
    folder = path_of(tmp_path, 7, 0).parent
    missing = "model could not be written: No space left on device"
    assert records.sync() == f"{folder}: 1 {missing}"
    assert told[0] == f"{path_of(tmp_path, 7, 0)} cannot be written: No space left on device"
    full = False
    assert records.sync() == "" and rounds_of(tmp_path, 7) == [0]
    full = True
    for round in (1, 2):
        records.write(RoundRecord(7, round), ByteCounters())
    full = False
    assert records.close() == f"{folder}: 1 {missing}" and rounds_of(tmp_path, 7) == [0, 2]


def test_models_of_rounds_that_are_undone_go(tmp_path, module) -> None:
    models = kept(tmp_path, module, every=1)
    for round in range(3):
        models.after(round)
    models.sync()
    (path_of(tmp_path, 7, 9).with_suffix(".safetensors.tmp")).touch()
    Records(RecordFile(tmp_path, [7]), auxiliary=[models]).cut_back(0)
    assert [path.name for path in path_of(tmp_path, 7, 0).parent.iterdir()] == ["00000000.safetensors"]


def test_a_model_that_cannot_be_read_is_one_line(tmp_path, module) -> None:
    models = kept(tmp_path, module, every=1)
    models.after(0)
    models.sync()
    path = path_of(tmp_path, 7, 5)
    with pytest.raises(BadInput, match=r"00000005.safetensors: No such file .*models of 1 other round$"):
        read_model(tmp_path, 7, 5)
    path.write_bytes(path_of(tmp_path, 7, 0).read_bytes()[:-1])
    with pytest.raises(BadInput, match=rf"^{path}: not in the safetensors format: [^\n]*$"):
        read_model(tmp_path, 7, 5)
