"""Checkpoints come back bit for bit, and whatever is wrong with one is found before it is used."""

import errno
import hashlib
import json
import math
import os
import random
import struct
from collections import Counter, OrderedDict, deque
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.communication.launcher_link.heartbeats import HeartbeatBoard
from decentnode.communication.launcher_link.reports import NotCheckpointed
from decentnode.core import atomic_files as durable
from decentnode.core import line_file
from decentnode.core.byte_counters import ByteCounters
from decentnode.errors import BadInput
from decentnode.formats.records import RecordFile, Records, RoundRecord, read_records
from decentnode.models.module_state import equal
from decentnode.models.state_encoding import UnknownKind
from decentnode.node.checkpoint import checkpoint_file
from decentnode.node.checkpoint import node_checkpoints as checkpointing
from decentnode.node.checkpoint import safetensors_io as tensor_file
from decentnode.node.checkpoint import store as checkpoint
from decentnode.node.checkpoint.store import BadCheckpoint, RunStamp
from tests.support import checkpoints

STAMP = RunStamp(run_id=77, incarnation=2, settings="ab" * 32)


def same(one, other):
    """Equal values of equal types, floats and tensors bit for bit, memory order included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bytes(tensor_file.content_of(one)) == bytes(tensor_file.content_of(other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, dict):
        keys = zip(one, other, strict=True) if len(one) == len(other) else [(0, 1)]
        return all(same(a, b) for a, b in keys) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def store(tmp_path, state, rank=3, round=9):
    checkpoints.save(tmp_path, rank, round, state, STAMP)
    return (
        tmp_path / f"{rank:05d}" / f"{round:08d}.safetensors",
        tmp_path / f"{rank:05d}" / f"{round:08d}.json",
    )


def tensors_of_all_kinds():
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return {
        "types": [torch.arange(5).to(dtype) for dtype in tensor_file._NAMES],
        "nothing": [torch.empty(0), torch.empty(3, 0, dtype=torch.int64)],
        "one": torch.tensor(-0.0),
        "not finite": torch.tensor([math.inf, -math.inf, math.nan]),
        "not contiguous": torch.arange(12.0).view(3, 4).t()[::2],
        "spread": torch.ones(1).expand(4),
        "image": image,
        "parameter": torch.nn.Parameter(torch.ones(2)).data,
    }


def test_tensors_of_every_type_and_shape_come_back(tmp_path):
    state = tensors_of_all_kinds()
    store(tmp_path, state)
    back = checkpoint.read(tmp_path, 3, 9).state
    assert same(state, back)
    assert back["image"].stride() == state["image"].stride()


def test_tensors_that_the_format_lacks_come_back_from_their_parts(tmp_path):
    ones = torch.eye(4).index_fill(0, torch.tensor([2]), 0.0)
    state = {
        "complex": torch.randn(3, 2, dtype=torch.complex128),
        "conjugate": torch.ones(2, dtype=torch.cfloat).conj(),
        "imaginary": torch.tensor([1j]).conj().imag, "ordered": OrderedDict(b=1, a=OrderedDict()),
        "coordinates": torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (3,), dtype=torch.float64),
        "csr": ones.to_sparse_csr(), "csc": ones.to_sparse_csc(), "bsr": ones.to_sparse_bsr((2, 2)),
        "bsc": ones.to_sparse_bsc((2, 2)),
    }  # fmt: skip
    store(tmp_path, state)
    back = checkpoint.read(tmp_path, 3, 9).state
    assert equal(state, back) and back.keys() == state.keys() and type(back["ordered"]) is OrderedDict
    assert not back["coordinates"].is_coalesced() and back["coordinates"].to_dense().tolist() == [0, 5, 0]


def test_what_it_was_made_in_comes_back(tmp_path):
    store(tmp_path, {"round": 9})
    saved = checkpoint.read(tmp_path, 3, 9)
    assert (saved.rank, saved.round, saved.stamp, saved.state) == (3, 9, STAMP, {"round": 9})


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.integers(-(1 << 90), 1 << 90),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(lambda items: deque(items, maxlen=7))
        | st.dictionaries(
            st.integers() | st.text() | st.none() | st.tuples(st.integers(), st.booleans()), inner
        )
        | st.dictionaries(st.integers(), st.integers()).map(Counter)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(values)
def test_plain_values_come_back(tmp_path_factory, value):
    directory = tmp_path_factory.mktemp("plain")
    store(directory, value)
    assert same(value, checkpoint.read(directory, 3, 9).state)


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": [1, {2: object()}]}, r"state\['a'\]\[1\]\[2\] is of type builtins.object"),
        ({"a": lambda: 0}, "builtins.function"),
        ({"s": torch.ones(2, 2).to_mkldnn()}, r"state\['s'\] is a tensor in the layout torch._mkldnn"),
        ({"a": {1, 2}}, "builtins.set"),
    ],
)
def test_what_cannot_be_held_is_refused_by_name(tmp_path, state, where):
    with pytest.raises(UnknownKind, match=where):
        store(tmp_path, state)
    assert not list(tmp_path.rglob("*.*"))


def test_a_state_that_lies_too_deep_is_refused(tmp_path):
    state = []
    for _ in range(100):
        state = [state]
    with pytest.raises(UnknownKind, match="levels deep"):
        store(tmp_path, state)


STATE = {"vector": torch.arange(3.0), "step": 7, "rate": 0.1}


def test_any_byte_that_changed_is_noticed(tmp_path):
    """Every byte of both files, each to another random one."""
    chance = random.Random(1)
    for path in store(tmp_path, STATE):
        whole = path.read_bytes()
        for position in range(len(whole)):
            broken = bytearray(whole)
            broken[position] ^= chance.randrange(1, 256)
            path.write_bytes(broken)
            with pytest.raises(BadCheckpoint, match=path.name):
                checkpoint.read(tmp_path, 3, 9)
        path.write_bytes(whole)
    assert same(checkpoint.read(tmp_path, 3, 9).state, STATE)


def test_a_file_that_was_cut_off_is_noticed_and_a_manifest_that_grew(tmp_path):
    """Tensors of other nodes may follow."""
    tensors, manifest = store(tmp_path, STATE)
    for path, ends in ((tensors, ()), (manifest, (b"\0", b"\n"))):
        whole = path.read_bytes()
        for broken in (*(whole[:length] for length in range(len(whole))), *(whole + end for end in ends)):
            path.write_bytes(broken)
            with pytest.raises(BadCheckpoint, match=path.name):
                checkpoint.read(tmp_path, 3, 9)
        path.write_bytes(whole)


def test_tensors_without_a_manifest_are_no_checkpoint(tmp_path):
    tensors, manifest = store(tmp_path, STATE)
    manifest.unlink()
    assert checkpoint.rounds(tmp_path, 3) == []
    assert checkpoint.newest(tmp_path, 3) is None
    (tmp_path / "00003" / "00000011.json.tmp").write_bytes(b"{")
    checkpoint.clean_up(tmp_path / "00003")
    assert not tensors.exists() and not list((tmp_path / "00003").iterdir())


def test_a_manifest_without_tensors_is_bad(tmp_path):
    tensors, _ = store(tmp_path, STATE)
    tensors.unlink()
    with pytest.raises(BadCheckpoint, match="cannot be read: No such file"):
        checkpoint.read(tmp_path, 3, 9)


def test_the_newest_good_one_is_taken(tmp_path):
    for round in (4, 9, 14):
        files = store(tmp_path, STATE | {"step": round}, round=round)
    files[0].write_bytes(b"")
    lines = []
    assert checkpoint.newest(tmp_path, 3, report_damage=lines.append).state["step"] == 9
    assert len(lines) == 1 and "00000014.safetensors: has 0 bytes" in lines[0]
    assert checkpoint.newest(tmp_path, 3, report_damage=lines.append, before=9).state["step"] == 4
    assert checkpoint.newest(tmp_path, 3, report_damage=lines.append, before=4) is None
    assert len(lines) == 1
    for path in (tmp_path / "00003").glob("*.json"):
        path.write_bytes(b"{}")
    with pytest.raises(
        BadInput, match=r"no checkpoint of rank 3 can be used: .*00000014.json: is no manifest"
    ):
        checkpoint.newest(tmp_path, 3, report_damage=lines.append)


def forged(tmp_path, tensors=None, **changes):
    """A checkpoint whose hashes are right, whatever it says; as only an enemy writes one."""
    path, manifest_path = store(tmp_path, STATE)
    content = path.read_bytes() if tensors is None else tensors
    path.write_bytes(content)
    manifest = json.loads(manifest_path.read_bytes())["manifest"]
    manifest |= {"offset": 0, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} | changes
    text = msgspec.json.encode(manifest)
    sealed = {"sha256": hashlib.sha256(text).hexdigest(), "manifest": msgspec.Raw(text)}
    manifest_path.write_bytes(msgspec.json.encode(sealed) + b"\n")


def safetensors(header, content=b"\0" * 12):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def entry(start, end, shape=(3,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "tensors",
    [
        b"",
        b"\0" * 7,
        (1 << 63).to_bytes(8, "little") + b"{}",
        (100_000_001).to_bytes(8, "little") + b"{}",
        safetensors(b"[" * 10_000),
        safetensors(b'{"0":' * 10_000),
        safetensors({"0": entry(0, 8)}),
        safetensors({"0": entry(0, 12), "1": entry(0, 12)}),
        safetensors({"0": entry(0, 12), "1": entry(8, 20)}, b"\0" * 20),
        safetensors({"0": entry(4, 16)}, b"\0" * 16),
        safetensors({"0": entry(12, 0)}),
        safetensors({"0": entry(0, 12, (1 << 62, 4))}),
        safetensors({"0": entry(0, 12, (-3,))}),
        safetensors({"0": entry(0, 12, dtype="O8")}),
        safetensors({"0": entry(0, 12)}, b"\0" * 13),
        safetensors({"1": entry(0, 12)}),
        safetensors({"../../0": entry(0, 12)}),
        safetensors({"0": entry(0, 12), "1": entry(12, 24)}, b"\0" * 24),
    ],
)
def test_tensors_of_an_enemy_are_refused(tmp_path, tensors):
    forged(tmp_path, tensors)
    with pytest.raises(BadCheckpoint, match=r"00000009.safetensors: "):
        checkpoint.read(tmp_path, 3, 9)


def deep(levels):
    tree = []
    for _ in range(levels):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 1},
        {"schema": 2},
        {"schema": "1"},
        {"rank": 4},
        {"round": 10},
        {"round": 9.5},
        {"bytes": -1},
        {"bytes": 1 << 70},
        {"offset": -1},
        {"offset": 1 << 70},
        {"file": "../../etc/passwd"},
        {"sha256": None},
        {"state": {"tensor": ["../../x", [0], False]}},
        {"state": {"tensor": ["0", [0, 0], False]}},
        {"state": {"tensor": ["0", [1], False]}},
        {"state": {"tensor": ["0", ["0"], False]}},
        {"state": {"tensor": []}},
        {"state": [{"tensor": ["0", [0], False]}, {"tensor": ["0", [0], False]}]},
        {"state": None},
        {"state": {"object": "os.system"}},
        {"state": {"dict": [[{"dict": []}, 1]]}},
        {"state": {"dict": [1]}},
        {"state": {"dict": {}, "tuple": []}},
        {"state": {"float": "zz"}},
        {"state": {"float": "00"}},
        {"state": {"int": "ten"}},
        {"state": {"bytes": "\u00e9"}},
        {"state": {"deque": [-1, []]}},
        {"state": {"deque": [1 << 63, []]}},
        {"state": deep(90)},
        {"state": deep(400)},
    ],
)  # fmt: skip
def test_manifests_of_an_enemy_are_refused(tmp_path, changes):
    forged(tmp_path, **changes)
    with pytest.raises(BadCheckpoint, match=r"00000009\.(json|safetensors): "):
        checkpoint.read(tmp_path, 3, 9)


def test_a_very_deep_manifest_is_refused(tmp_path):
    _, path = store(tmp_path, STATE)
    path.write_bytes(b'{"sha256":"","manifest":' + b"[" * 200_000)
    with pytest.raises(BadCheckpoint, match="is no manifest"):
        checkpoint.read(tmp_path, 3, 9)


def test_a_full_disk_tears_nothing(tmp_path, monkeypatch):
    store(tmp_path, STATE, round=4)
    written = 0

    def write(fd, piece):
        nonlocal written
        written += len(piece)
        if written > 50:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, piece)

    real = os.write
    monkeypatch.setattr(durable.os, "write", write)
    with pytest.raises(OSError, match="No space"):
        store(tmp_path, STATE, round=9)
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "00003").iterdir()) == [
        "00000004.json", "00000004.safetensors"
    ]  # fmt: skip
    assert same(checkpoint.newest(tmp_path, 3).state, STATE)


@pytest.mark.parametrize("step", ["write_durably", "sync_folder", "os.fsync"])
def test_tensors_for_whose_manifest_there_is_no_room_do_not_stay(tmp_path, monkeypatch, step):
    store(tmp_path, STATE, round=4)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    module, name = (checkpoint_file.os, "fsync") if step == "os.fsync" else (checkpoint_file, step)
    monkeypatch.setattr(module, name, refuse)
    with pytest.raises(OSError, match="No space"):
        store(tmp_path, STATE, round=9)
    assert sorted(path.name for path in (tmp_path / "00003").iterdir()) == [
        "00000004.json", "00000004.safetensors"
    ]  # fmt: skip


def checkpoints_of(identity, records, said):
    """Those of rank 3 after every tenth round, in a run that is stopped."""
    scheduler = SimpleNamespace(heartbeat=HeartbeatBoard([3]).of(3), is_cut_short=True)
    reporter = SimpleNamespace(send=said.append)
    return checkpointing.NodeCheckpoints(
        identity, 10, False, reporter, rank=3, scheduler=scheduler, records=records
    )


def test_what_was_undone_and_could_not_be_removed_is_written_again(tmp_path, monkeypatch):
    lines = []
    identity = checkpointing.RunIdentity(tmp_path, STAMP.settings)
    identity.settle(STAMP.run_id, STAMP.incarnation)
    saved = checkpoints_of(identity, Records(RecordFile(tmp_path, [3])), lines)
    for round in (9, 19, 29):
        saved.after(round, lambda: {"of": 1})
    with monkeypatch.context() as readonly:
        unlink = Path.unlink

        def refuse(path, missing_ok=False):
            if path.stem == "00000019":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            unlink(path, missing_ok=missing_ok)

        readonly.setattr(Path, "unlink", refuse)
        saved.go_back_to(12)
        with pytest.raises(OSError, match="Read-only"):
            saved.undo(12)
    assert checkpoint.rounds(tmp_path, 3) == [9, 19]
    saved.after(19, lambda: {"of": 2})
    assert checkpoint.read(tmp_path, 3, 19).state == {"of": 2}
    assert [report.round for report in lines] == [9, 19, 29, 12, 19]


def test_records_are_on_the_disk_before_the_checkpoint_that_stands_for_them(tmp_path, monkeypatch):
    """Else a loss of power would leave a hole that nobody fills."""
    path, synced = tmp_path / "00003.jsonl", []
    records = Records(RecordFile(tmp_path, [3]))
    records.write(RoundRecord(3, 9), ByteCounters())
    sync = os.fdatasync

    def record_sync(fd):
        synced.append((path.samefile(f"/proc/self/fd/{fd}"), checkpoint.rounds(tmp_path / "saved", 3)))
        sync(fd)

    monkeypatch.setattr(line_file.os, "fdatasync", record_sync)
    identity = checkpointing.RunIdentity(tmp_path / "saved", STAMP.settings)
    checkpoints_of(identity, records, []).after(9, dict)
    assert synced == [(True, [])]
    assert checkpoint.rounds(tmp_path / "saved", 3) == [9]


@pytest.mark.parametrize("is_cut_short", [True, False])
def test_a_finished_run_keeps_its_state_without_waiting_for_the_disk(tmp_path, monkeypatch, is_cut_short):
    """Thousands of nodes in a process would wait for it one by one; a stop waits, and all is kept once."""
    synced = []
    for sync in ("fsync", "fdatasync"):
        monkeypatch.setattr(durable.os, sync, synced.append)
    identity = checkpointing.RunIdentity(tmp_path / "saved", STAMP.settings)
    saved = checkpoints_of(identity, Records(RecordFile(tmp_path, [3])), lines := [])
    saved.scheduler.is_cut_short = is_cut_short
    saved.at_the_end(11, dict)
    kept = [11] if is_cut_short else []
    assert (checkpoint.rounds(tmp_path / "saved", 3), bool(synced)) == (kept, is_cut_short)
    saved.final = True
    synced.clear()
    saved.at_the_end(12, dict)
    saved.at_the_end(12, dict)
    assert checkpoint.read(tmp_path / "saved", 3, 12).state == {}
    assert (bool(synced), [report.round for report in lines]) == (is_cut_short, [*kept, 12])


def test_a_node_whose_records_wait_is_not_saved(tmp_path, monkeypatch):
    """Who goes on from the checkpoint would not make them again."""
    lines, write, is_full = [], os.write, True

    def write_if_there_is_room(fd, content):
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, content)

    monkeypatch.setattr(line_file.os, "write", write_if_there_is_room)
    records = Records(RecordFile(tmp_path, [3]))
    records.write(RoundRecord(3, 9), ByteCounters())
    identity = checkpointing.RunIdentity(tmp_path / "saved", STAMP.settings)
    saved = checkpoints_of(identity, records, lines)
    saved.after(9, dict)
    assert checkpoint.rounds(tmp_path / "saved", 3) == []
    (complaint,) = lines
    assert (complaint.round, type(complaint)) == (9, NotCheckpointed)
    assert complaint.reason.endswith("could not be written (1 missing): No space left on device")
    is_full = False
    saved.at_the_end(9, dict)
    assert checkpoint.rounds(tmp_path / "saved", 3) == [9]
    assert [record.round for record in read_records(tmp_path / "00003.jsonl")] == [9]


def test_one_that_is_bad_or_of_another_run_is_written_again(tmp_path):
    tensors, _ = store(tmp_path, STATE)
    tensors.write_bytes(b"")
    store(tmp_path, STATE)
    assert same(checkpoint.read(tmp_path, 3, 9).state, STATE)
    for stamp in (RunStamp(78, 0, STAMP.settings), RunStamp(78, 0, "other")):
        checkpoints.save(tmp_path, 3, 9, {"of": stamp.settings}, stamp)
        assert checkpoint.read(tmp_path, 3, 9).state == {"of": stamp.settings}


def test_the_state_of_every_scheduler_of_torch_can_be_held(tmp_path):
    module = torch.optim.lr_scheduler
    made = {
        "StepLR": {"step_size": 2},
        "MultiStepLR": {"milestones": [2, 4]},
        "ConstantLR": {},
        "LinearLR": {},
        "ExponentialLR": {"gamma": 0.9},
        "PolynomialLR": {},
        "CosineAnnealingLR": {"T_max": 5},
        "CosineAnnealingWarmRestarts": {"T_0": 5},
        "OneCycleLR": {"max_lr": 0.1, "total_steps": 9},
        "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2},
        "ReduceLROnPlateau": {},
    }
    for round, (name, options) in enumerate(made.items()):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        scheduler = getattr(module, name)(optimizer, **options)
        state = scheduler.state_dict()
        store(tmp_path, state, round=round)
        assert same(checkpoint.read(tmp_path, 3, round).state, state), name


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Rprop", "NAdam", "LBFGS", "ASGD"]
)
def test_the_state_of_optimizers_can_be_held(tmp_path, name):
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 2)
    optimizer = getattr(torch.optim, name)(layer.parameters())

    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(4, 3)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state_dict()
    store(tmp_path, state)
    assert same(checkpoint.read(tmp_path, 3, 9).state, state)
