"""`decentnode commands`: what is printed to be pasted on each machine, and what is checked before."""

import shlex
import socket
from pathlib import Path

import pytest

from decentnode.mapping import base

TWO = """
name: two
rounds: 2
graph: {name: ring, nodes: 5}
dataset: digits
model: {name: mlp, hidden: [8]}
training: {optimizer: {name: SGD, lr: 0.1}, steps_per_round: 1}
communication: {name: zeromq, base_port: 30560}
mapping:
  rendezvous_port: 30550
  machines: [{address: 127.0.0.1, nodes: 3}, {address: 127.0.0.2, nodes: 2}]
"""
ELSEWHERE = "mapping.machines=[{address: 203.0.113.1, nodes: 3}, {address: 203.0.113.2, nodes: 2}]"
NAMES = "mapping.machines=[{address: first, nodes: 3}, {address: second, nodes: 2}]"


@pytest.fixture
def two(tmp_path) -> Path:
    path = tmp_path / "two machines.yaml"
    path.write_text(TWO)
    return path


@pytest.fixture
def printed(call, two):
    """The lines of the command."""

    def run(*words: str) -> list[str]:
        code, out, err = call("commands", two, *words)
        assert (code, err) == (0, ""), err
        return out.splitlines()

    return run


@pytest.fixture
def refused(call, two):
    """The one line with which the command ends."""

    def run(*words: str) -> str:
        code, out, err = call("commands", two, *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    return run


def test_each_machine_gets_its_command_with_its_ports(printed, two):
    optimizer = "training.optimizer={name: SGD, lr: 0.2}"
    first, command, second, other = printed(optimizer, "machine=1")
    assert first == "# machine 0 (127.0.0.1, ranks 0-2), this host; ports 30550, 30560-30562 are free"
    assert second == "# machine 1 (127.0.0.2, ranks 3-4), this host; ports 30550, 30560-30561 are free"
    assert shlex.split(command) == ["decentnode", "run", str(two), optimizer, "machine=0"]
    assert shlex.split(other) == ["decentnode", "run", str(two), optimizer, "machine=1"]


def test_torchrun_gets_ranks_and_a_port_that_the_run_does_not_need(printed, two):
    commands = printed("--with", "torchrun", "communication.base_port=29400")[1::2]
    for machine, command in enumerate(commands):
        torchrun, words = command.split(" -m decentnode ")
        assert torchrun == (
            f"torchrun --nnodes=2 --node-rank={machine} --nproc-per-node=1 --master-addr=127.0.0.1 "
            "--master-port=29403"
        )
        assert shlex.split(words) == [
            "run", str(two), "communication.base_port=29400", f"machine={machine}",
        ]  # fmt: skip
    assert "--master-port=30571 " in printed("--with", "torchrun", "--port", "30571")[1]


def test_one_machine_needs_one_command(printed):
    alone = "mapping.machines=[{address: 127.0.0.1, nodes: 5}]"
    for starter, start in {
        "run": "decentnode", "torchrun": "torchrun --standalone --nproc-per-node=1 -m decentnode",
        "srun": "srun --label --nodes=1 --ntasks-per-node=1 decentnode",
    }.items():  # fmt: skip
        comment, command = printed(alone, "--with", starter)
        assert comment == "# machine 0 (127.0.0.1, ranks 0-4), this host"
        assert command.startswith(f"{start} run ") and "machine=" not in command


def test_one_srun_starts_all_machines_which_find_themselves(printed, monkeypatch):
    lines = printed(ELSEWHERE, "security=none", "--with", "srun")
    assert lines[0] == "# machine 0 (203.0.113.1, ranks 0-2); ports 30550, 30560-30562 must be free"
    assert (
        lines[2].startswith("srun --label --nodes=2 --ntasks-per-node=1 decentnode run ") and len(lines) == 3
    )
    found = {"first": ["203.0.113.1"], "second": ["203.0.113.2"]}
    monkeypatch.setattr(base, "resolve_names", lambda names: {name: found[name] for name in names})
    command = printed(NAMES, "security=none", "--with", "srun")[2]
    tasks = "srun --label --nodes=2 --ntasks-per-node=1 --nodelist=first,second"
    assert command.startswith(f"{tasks} decentnode run ")


def test_srun_is_refused_where_machines_could_not_find_themselves(refused):
    line = refused("--with", "srun")
    assert "machine 0 (127.0.0.1) and machine 1 (127.0.0.2) are this host" in line
    behind = ELSEWHERE.replace("203.0.113.2,", "203.0.113.2, listen: 0.0.0.0,")
    assert "mapping.machines[1].listen: 0.0.0.0: no machine finds" in refused(
        behind, "security=none", "--with", "srun"
    )


def test_a_port_in_use_is_refused_before_anything_is_printed(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"mapping.rendezvous_port: port {port} at 127.0.0.1 is in use" in refused(
            f"mapping.rendezvous_port={port}"
        )
        assert f"--port: {port} at 127.0.0.1 cannot be bound: Address already in use" in refused(
            "--with", "torchrun", "--port", str(port)
        )
    assert "the run itself needs port 30550" in refused("--with", "torchrun", "--port", "30550")
    assert "add --with torchrun" in refused("--port", "30571")


def test_keys_are_checked_before_anything_is_printed(call, refused, printed, two):
    assert "there is no folder 'keys' beside the configuration" in refused(ELSEWHERE)
    assert call("keys", two, ELSEWHERE)[0] == 0
    keys = two.parent / "keys"
    for machine, line in enumerate(printed(ELSEWHERE)[::2]):
        assert line.endswith(f"must be free; keys {keys}/machine-{machine}.secret and {keys}/machines.json")
    third = ELSEWHERE.replace("]", ", {address: 203.0.113.3, nodes: 1}]")
    assert "lists 2 machines, the mapping has 3" in refused(third, "graph={name: ring, nodes: 6}")
