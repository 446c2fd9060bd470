"""Many nodes of a process in one file of a round: it counts as a whole, and each node is checked alone."""

import errno
import os
from pathlib import Path

import pytest
import torch

from decentnode.core import atomic_files
from decentnode.formats.records import RecordFile
from decentnode.launcher.recovery.checkpoint_retention import CheckpointRetention
from decentnode.node.checkpoint import checkpoint_file, store
from decentnode.node.checkpoint.checkpoint_file import CheckpointFile
from decentnode.node.checkpoint.store import BadCheckpoint, RunStamp
from tests.support import checkpoints

STAMP = RunStamp(run_id=77, incarnation=2, settings="ab" * 32)


def state_of(rank, round=9):
    return {"vector": torch.full((5,), float(rank)), "texts": ['"rank":99,', "\n"], "round": round}


class Saving:
    """Nodes that share a file."""

    def __init__(self, directory, ranks, records=None):
        self.directory, self.file, self.said = directory, CheckpointFile(ranks, records), {}

    def add(self, *ranks, round=9):
        for rank in ranks:
            self.file.add(
                self.directory, rank, round, state_of(rank, round), STAMP,
                lambda problem, rank=rank: self.said.update({rank: problem}),
            )  # fmt: skip
        return self


def read(directory, rank, round=9):
    state = store.read(directory, rank, round).state
    assert torch.equal(state.pop("vector"), torch.full((5,), float(rank)))
    assert state == {"texts": ['"rank":99,', "\n"], "round": round}


def test_nodes_count_together_and_the_disk_is_waited_for_once(tmp_path, monkeypatch):
    synced = []
    for sync in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            atomic_files.os, sync, lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        )
    records = RecordFile(tmp_path, range(4))
    saving = Saving(tmp_path / "saved", range(4), records)
    for rank in (2, 0, 3):
        records.append(b"{}")
        saving.add(rank)
    folder = tmp_path / "saved" / "00000-00003"
    assert (saving.said, store.rounds_of(tmp_path / "saved")) == ({}, {})
    made = [str(tmp_path), str(folder.parent)]
    assert synced == made, "only the folders, which were made"
    saving.add(1)
    assert saving.said == dict.fromkeys(range(4), "")
    # Records first: a resume does not repeat them.
    of_round = [str(records.path), str(folder / "00000009.safetensors"), str(folder / "00000009.json.tmp")]
    assert synced == [*made, *of_round, str(folder)]
    assert sorted(path.name for path in folder.iterdir()) == ["00000009.json", "00000009.safetensors"]
    for rank in range(4):
        read(tmp_path / "saved", rank)


def test_what_was_changed_is_noticed_at_its_node_alone(tmp_path):
    Saving(tmp_path, range(3)).add(0, 1, 2)
    folder = tmp_path / "00000-00002"
    for path in (folder / "00000009.safetensors", folder / "00000009.json"):
        whole = path.read_bytes()
        # In the middle of the node that was second.
        broken = bytearray(whole)
        broken[len(whole) // 2] ^= 1
        path.write_bytes(broken)
        with pytest.raises(BadCheckpoint, match=path.name):
            store.read(tmp_path, 1, 9)
        read(tmp_path, 0)
        read(tmp_path, 2)
        path.write_bytes(whole[:-3])
        with pytest.raises(BadCheckpoint, match=path.name):
            store.read(tmp_path, 2, 9)
        read(tmp_path, 1)
        # As after a loss of power: no node is forgotten in silence.
        path.write_bytes(b"\0" * len(whole))
        assert store.rounds_of(tmp_path) == {0: [9], 1: [9], 2: [9]}
        for rank in range(3):
            with pytest.raises(BadCheckpoint, match=path.name):
                store.read(tmp_path, rank, 9)
        path.write_bytes(whole)


def test_nodes_do_not_wait_for_others_for_ever_and_a_full_disk_loses_no_earlier_one(tmp_path, monkeypatch):
    saving, folder = Saving(tmp_path, range(4)).add(0, 1), tmp_path / "00000-00003"
    assert store.rounds_of(tmp_path) == {}
    monkeypatch.setattr(checkpoint_file, "COMMIT_INTERVAL", 0.0)
    saving.file.tend()
    assert store.rounds_of(tmp_path) == {0: [9], 1: [9]}
    size = (folder / "00000009.safetensors").stat().st_size

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(checkpoint_file, "sync_folder", refuse)
        saving.add(2)
        saving.add(2, round=19)
    assert saving.said == {0: "", 1: "", 2: "No space left on device"}
    assert store.rounds_of(tmp_path) == {0: [9], 1: [9]}
    assert (folder / "00000009.safetensors").stat().st_size == size and len([*folder.iterdir()]) == 2
    saving.add(3)
    assert store.rounds_of(tmp_path) == {0: [9], 1: [9], 3: [9]}
    for rank in (0, 1, 3):
        read(tmp_path, rank)
    monkeypatch.undo()
    saving.add(2)
    assert store.rounds(tmp_path, 2) == [9], "the last one waits for nobody"
    # Nodes that have ended are not waited for.
    saving.add(0, round=19)
    saving.file.commit()
    assert store.rounds(tmp_path, 0) == [9, 19]


def test_a_process_discards_its_nodes_alone_from_the_file_of_an_earlier_one(tmp_path):
    """A run of one process was resumed with two; each goes on in files of its own."""
    for round in (9, 19):
        Saving(tmp_path, range(4)).add(0, 1, 2, 3, round=round)
    Saving(tmp_path, range(2)).add(0, 1, round=29).file.undo(tmp_path, 19)
    assert store.rounds_of(tmp_path) == {0: [9], 1: [9], 2: [9, 19], 3: [9, 19]}
    Saving(tmp_path, range(2)).add(0, 1, round=19)
    checkpoints.save(tmp_path, 2, 29, state_of(2, 29), STAMP)
    assert store.rounds_of(tmp_path) == {0: [9, 19], 1: [9, 19], 2: [9, 19, 29], 3: [9, 19]}
    for rank, round in ((0, 19), (1, 9), (2, 19), (2, 29), (3, 19)):
        read(tmp_path, rank, round)
    store.delete(tmp_path, range(4), 19)
    assert store.rounds_of(tmp_path, [1, 2, 5]) == {1: [9], 2: [9, 29], 5: []}
    assert sorted(path.parent.name for path in tmp_path.glob("*/*.json")) == ["00000-00003", "00002"]


def test_a_file_stays_as_long_as_one_of_its_nodes_needs_it(tmp_path):
    retention = CheckpointRetention(tmp_path, range(3), range(3))
    for round in range(5):
        ranks = (0, 1, 2) if round < 2 else (0, 1)
        Saving(tmp_path, ranks if round < 2 else range(3)).add(*ranks, round=round).file.commit()
        for rank in ranks:
            retention.note(rank, round)
        retention.tend(lost=[2] if round >= 2 else [])
    # Round 1 is the last one of all, and that of the lost node.
    assert store.rounds_of(tmp_path) == {0: [1, 3, 4], 1: [1, 3, 4], 2: [1]}
    assert retention.newest_round == 1


def test_what_cannot_be_read_is_deleted_only_for_all_ranks_of_its_name(tmp_path):
    Saving(tmp_path, range(3)).add(0, 1, 2)
    Saving(tmp_path, range(3, 6)).add(3, 4, 5)
    manifest = tmp_path / "00000-00002" / "00000009.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"rank":1,', b'"rang":1,', 1))
    store.delete(tmp_path, {0, 2}, 9, only_files=True)
    assert manifest.exists(), "a line may be of rank 1"
    store.delete(tmp_path, {2}, 9)
    assert manifest.read_bytes() == b"".join(
        line.replace(b'"rank":1,', b'"rang":1,', 1)
        for line in whole.splitlines(keepends=True)
        if b'"rank":2,' not in line
    )
    manifest.chmod(0)
    store.delete(tmp_path, {0, 1, 2}, 9)
    assert not manifest.exists()
    for rank in (3, 4, 5):
        read(tmp_path, rank)


def test_nothing_counts_whose_tensors_were_deleted_meanwhile(tmp_path):
    saving = Saving(tmp_path, range(2)).add(0)
    store.remove(tmp_path / "00000-00001" / "00000009.json")
    saving.add(1)
    assert set(saving.said.values()) == {"its tensors were deleted meanwhile"}
    assert store.rounds_of(tmp_path) == {}
