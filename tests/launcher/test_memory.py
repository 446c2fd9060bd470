"""What a machine's nodes need, beside what there is."""

from pathlib import Path

import pytest

from decentnode.communication.launcher_link.reports import Exited, Failed
from decentnode.core import control_groups
from decentnode.launcher.monitoring import memory_estimate as memory
from decentnode.launcher.monitoring.memory_estimate import (
    EVALUATOR_BYTES,
    FRAMES_PER_SOURCE,
    NODE_BYTES,
    PROCESS_BYTES,
    TEMPORARY_COPIES,
    MemoryEstimate,
    available_bytes,
    bytes_needed,
    times_run_out,
)
from decentnode.node.experiment import Experiment

CONFIGS = Path(__file__).parents[2] / "configs"
D = 4 * 4810  # bytes of the quickstart's model


def experiment(*overrides):
    return Experiment.from_yaml(CONFIGS / "quickstart.yaml", overrides)


def of_vectors(made):
    """What is left when processes, objects of nodes and staging are taken away, in vectors."""
    nodes = made.graph.num_nodes
    staging = sum(made.schemes.memory(rank).payload_bytes for rank in range(nodes))
    processes = len(made.processes) * (PROCESS_BYTES + TEMPORARY_COPIES * D)
    return (bytes_needed(made, 0) - staging - nodes * NODE_BYTES - processes) / D


def test_a_node_needs_its_slots_gradient_snapshot_and_what_the_optimizer_keeps():
    momentum = experiment("training.optimizer={name: SGD, lr: 0.1, momentum: 0.9}")
    assert of_vectors(momentum) / 16 == 5
    plain = experiment("training.optimizer={name: SGD, lr: 0.1}")
    assert of_vectors(plain) / 16 == 4
    assert of_vectors(experiment("training.optimizer={name: Adam, lr: 0.1}")) / 16 == 6


def test_a_scheme_counts_with_its_state():
    plain = "training.optimizer={name: SGD, lr: 0.1}"
    base = of_vectors(experiment(plain))
    choco = of_vectors(experiment(plain, "sharing={name: choco, gamma: 0.5}"))
    assert choco - base == 16 * 2


def test_payloads_that_come_through_sockets_take_memory():
    links = 16 * 4
    more = bytes_needed(experiment("communication={name: zeromq, local: tcp}"), 0) - bytes_needed(
        experiment(), 0
    )
    assert more == links * FRAMES_PER_SOURCE * experiment().schemes.most_payload_bytes


def test_nodes_of_a_process_share_what_a_process_needs():
    apart = bytes_needed(experiment(), 0)
    process = PROCESS_BYTES + TEMPORARY_COPIES * D
    in_pairs = bytes_needed(experiment("communication={name: zeromq, nodes_per_process: 2}"), 0)
    assert apart - in_pairs == 8 * process
    together = experiment("communication=inproc")
    assert bytes_needed(together, 0) < apart - 14 * process
    evaluated = experiment("communication=inproc", "evaluation.background=2")
    copies = 16  # a snapshot of each node for the evaluators
    more = bytes_needed(evaluated, 0, evaluators=2) - bytes_needed(together, 0)
    assert more == 2 * (EVALUATOR_BYTES + D) + copies * D


@pytest.mark.parametrize("name", ["secure_aggregation", "gradient_tracking", "quasi_global", "none"])
def test_schemes_can_be_asked_without_a_run_around_them(name):
    assert bytes_needed(experiment("training.optimizer={name: SGD, lr: 0.1}", f"sharing={name}"), 0) > 0


def test_what_may_not_be_enough_is_reported(monkeypatch):
    made = experiment()
    needed = bytes_needed(made, 0)
    monkeypatch.setattr(memory, "available_bytes", lambda: int(needed / 0.79))
    assert MemoryEstimate(made, 0).shortage == ""
    monkeypatch.setattr(memory, "available_bytes", lambda: int(needed / 0.81))
    line = MemoryEstimate(made, 0).shortage
    assert line.startswith("memory: 16 nodes here need about 2")
    assert "\n" not in line


def test_there_is_some_memory():
    assert 1 << 20 < available_bytes() < 1 << 50


def test_a_kill_by_the_kernel_is_distinguished_from_any_other(monkeypatch):
    times = [3]
    monkeypatch.setattr(memory, "times_run_out", lambda: times[0])
    account = MemoryEstimate(experiment(), 0)
    killed = Exited(5, -9)
    assert account.explain(killed) == [killed]
    times[0] = 4
    failed, same = account.explain(killed)
    assert same == killed
    assert (failed.rank, failed.out_of_memory) == (5, True)
    assert failed.error.startswith(
        "killed by the kernel, which had run out of memory; all nodes here need about 2"
    )
    assert account.explain(killed) == [killed]
    assert account.explain(Exited(5, 1)) == [Exited(5, 1)]


def test_only_kills_in_the_own_group_count_where_they_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "control_group", lambda: tmp_path)
    (tmp_path / "memory.events").write_text("low 0\noom 9\noom_kill 2\noom_group_kill 7\n")
    assert times_run_out() == 2
    (tmp_path / "memory.events").unlink()
    whole = Path("/proc/vmstat").read_text().split()
    assert times_run_out() == int(whole[whole.index("oom_kill") + 1] if "oom_kill" in whole else 0)


def test_a_node_that_ran_out_of_memory_gets_the_figures():
    account = MemoryEstimate(experiment(), 0)
    (failed,) = account.explain(Failed(2, "MemoryError: no", out_of_memory=True))
    assert failed.out_of_memory
    assert failed.error.startswith("MemoryError: no; all nodes here need about 2")
    other = Failed(2, "ValueError: no")
    assert account.explain(other) == [other]


def test_the_limit_of_the_own_group_counts_and_none_is_no_limit(monkeypatch, tmp_path):
    whole = available_bytes()
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "control_group", lambda: tmp_path)
    (tmp_path / "memory.max").write_text(f"{3 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 20}\n")
    assert available_bytes() == 2 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() > whole / 2
