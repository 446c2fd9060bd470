"""Which backend carries a process group, and what is refused before a run."""

import pytest
import torch
from msgspec.msgpack import encode as pack
from msgspec.structs import replace

from decentnode.communication.torch_distributed.backend_choice import (
    RECIPE,
    BackendChoice,
    Capabilities,
    backend_defect,
)
from decentnode.communication.torch_distributed.messages import Closed, Done, GroupControl, Size
from decentnode.communication.torch_distributed.plugin import Hybrid
from decentnode.communication.torch_distributed.process_group import tag_of
from decentnode.communication.wire import WireError, unpack
from decentnode.config import link_security
from decentnode.config import loader as config
from decentnode.errors import ConfigError
from tests.integration.running import QUICKSTART

GPUS = {rank: Capabilities(True, f"machine 0: gpu {rank}", "2.28.9", True) for rank in range(3)}
SHARED = {rank: Capabilities(True, "machine 0: gpu 0", "2.28.9", True) for rank in range(3)}
MIXED = GPUS | {1: Capabilities(True, "", "2.28.9", True)}
UNLIKE = GPUS | {2: Capabilities(True, "machine 1: gpu 0", "2.29.7", True)}
UNFIT = {rank: replace(facts, nccl="2.26.2") for rank, facts in GPUS.items()}
HALF = GPUS | {3: Capabilities(False, "", "", True)}


def read_note(body):
    return unpack(body, GroupControl, "group note")


@pytest.mark.parametrize(
    ("facts", "shares", "backend", "reason"),
    [
        (GPUS, False, "nccl", "every node has a GPU of its own"),
        (HALF, False, "nccl", "every node has a GPU of its own"),
        (SHARED, True, "nccl", "every node has a GPU"),
        (SHARED, False, "gloo", f"ranks 0, 1, 2 share one GPU ({RECIPE})"),
        (MIXED, False, "gloo", "rank 1 is on no GPU"),
        (
            UNFIT, False, "gloo",
            "NCCL 2.26: it may hang at any time (pytorch issue 153960); install a torch with another",
        ),
        (
            UNLIKE, False, "gloo",
            "the versions of NCCL differ: 2.29.7 (rank 2), 2.28.9 (rank 0); "
            "install the same torch everywhere",
        ),
    ],
)  # fmt: skip
def test_auto_takes_nccl_where_every_node_has_a_gpu(facts, shares, backend, reason):
    plan = BackendChoice("auto", shares)(facts)
    assert (plan.backend, plan.reason, plan.error) == (backend, reason, "")
    assert plan.members == [0, 1, 2]
    if backend == "gloo":
        refused = BackendChoice("nccl", shares)(facts)
        assert refused.error == f"communication.backend: nccl: {reason}"


def test_a_group_of_one_is_none():
    plan = BackendChoice("auto", False)({0: GPUS[0], 1: HALF[3]})
    assert (plan.members, plan.backend) == ([], "")
    assert plan.reason == "fewer than two of the 2 nodes take part in a group"


def test_what_a_machine_lacks_is_known_before_the_start(monkeypatch):
    assert backend_defect("nccl", "cuda", 2).startswith("nccl: this torch has no NCCL; ")
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert backend_defect("nccl", "cpu", 2).startswith("nccl: it carries what lies on GPUs; ")
    assert backend_defect("nccl", "cuda", 2) == "nccl: torch finds no GPU here; use gloo"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert backend_defect("nccl", "cuda", 2).startswith("nccl: 2 nodes here, but 1 of the GPUs they need; ")
    assert backend_defect("nccl", "cuda", 1) == backend_defect("auto", "cuda", 2) == ""


def test_members_of_a_hybrid_that_are_named_need_what_the_backend_needs():
    named = Hybrid(backend="nccl", group_ranks=(0, 1)).plan
    (defect,) = named.defects("cpu", (0, 1, 2))
    assert defect.key == ("backend",) and defect.what.startswith("nccl: ")
    assert [*named.defects("cpu", (2, 3)), *Hybrid(backend="nccl").plan.defects("cpu", (0, 1))] == []


APART = "mapping={machines: [{address: 10.0.0.1, nodes: 2}, {address: 10.0.0.2, nodes: 2}]}"


@pytest.mark.parametrize(
    ("override", "defect"),
    [
        ("communication={name: hybrid, nodes_per_process: 2}", "communication.nodes_per_process: a process"),
        ("communication={name: torch_distributed, backend: mpi}", "communication.backend: must be 'auto' or"),
        ("faults=[{name: drop, probability: 0.1}]", "faults[0]: drop acts on ZeroMQ messages"),
        (APART, "communication.trusted_network: gloo and NCCL send in plain between machines"),
        (
            "communication={name: torch_distributed, trusted_network: true, group_port: 29601}",
            "communication.group_port: the ports 29601..29602 are needed, but 29601 has another use",
        ),
    ],
)  # fmt: skip
def test_what_a_process_group_cannot_do_is_a_defect_of_the_configuration(override, defect):
    overrides = ["communication=torch_distributed", "graph={name: ring, nodes: 4}"]
    if "group_port" in override:
        overrides.append(APART)
    with pytest.raises(ConfigError) as refused:
        config.load(QUICKSTART, [*overrides, override])
    assert [line for line in refused.value.lines if defect in line], refused.value.defects


@pytest.mark.parametrize(
    "note",
    [Closed("rank 1 is lost"), Closed("no GPU", fails_start=True), Size(12, 99), Done()],
)
def test_notes_come_back_as_they_were(note):
    assert read_note(pack(note)) == note


BAD_NOTES = [Size(-5, 99), Size(5, "99"), Closed(1), Closed("", 2)]
NOT_TEXT = pack(Closed("gloo")).replace(b"gloo", b"gl\xffo")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc1", b"\x81\xa4type\xa4eval", b"\x91" * 50_000, bytes(1 << 17), NOT_TEXT,
        *map(pack, BAD_NOTES),
    ],
)  # fmt: skip
def test_other_bodies_are_refused(body):
    with pytest.raises(WireError):
        read_note(body)


def test_exchanges_that_are_near_each_other_have_their_own_tags():
    keys = [(round, phase, part) for round in range(40) for phase in range(4) for part in range(4)]
    assert len({tag_of(key) for key in keys}) == len(keys)
    assert tag_of((1 << 30, 3, 3)) < (1 << 31)


def test_ports_of_groups_between_machines_are_looked_at_before_the_start():
    near = "mapping={machines: [{address: 127.0.0.1, nodes: 3}, {address: 127.0.0.2, nodes: 1}]}"
    settings = config.load(
        QUICKSTART, ["communication=torch_distributed", "graph={name: ring, nodes: 4}", near]
    )
    needed = [(ports.key, ports.first, ports.count) for ports in link_security.ports_needed(settings, 0)]
    assert ("communication.group_port", 29700, 3) in needed
    alone = config.load(QUICKSTART, ["communication=torch_distributed"])
    assert link_security.ports_needed(alone, 0) == []
