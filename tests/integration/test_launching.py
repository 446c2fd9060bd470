"""The same file under torchrun and srun: two machines that are this host, each with two nodes."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.running import QUICKSTART, ROOT, call, run_command, start_command, wait_until
from tests.integration.spawner import Command, Spawner

PORTS = {"plain": 31270, "torchrun": 31274, "srun": 31278, "stopped": 31282}
SMALL = ["graph={name: ring, nodes: 4}", "rounds=5", "evaluation={every: 0, figures: false}"]


def words(run_dir: Path, base_port: int, *overrides: str) -> list[str]:
    ports = f"communication={{name: zeromq, base_port: {base_port}}}"
    return ["run", str(QUICKSTART), f"run_dir={run_dir}", *SMALL, ports, *overrides]


def rendezvous(port: int) -> str:
    return f"mapping={{name: environment, nodes_per_machine: 2, rendezvous_port: {port}}}"


def model_hash(run_dir: Path) -> str:
    return json.loads((run_dir / "summary.json").read_text())["model_hash"]


def step(machine: int, tasks: int, job: str) -> dict[str, str]:
    """What srun would say to the first task of a machine."""
    return {
        "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_NODEID": str(machine),
        "SLURM_STEP_NODELIST": "127.0.0.1,127.0.0.2", "SLURM_STEP_TASKS_PER_NODE": f"{tasks}(x2)",
    }  # fmt: skip


def start_tasks(out: Path, arguments: list[str], tasks: int = 1) -> list[Command]:
    return [
        start_command(
            out.with_suffix(f".{machine}"), *arguments, **step(machine, tasks, f"{os.getpid()}{out.name}")
        )
        for machine in range(2)
    ]


def ended(tasks: list[Command]) -> list[int]:
    return [task.wait(120) for task in tasks]


def test_torchrun_and_srun_give_the_models_of_a_plain_run(tmp_path):
    agents, python = [], str(Spawner.of_this_process().python())
    for machine in range(2):
        command = [python, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={machine}"]
        command += [
            "--nproc-per-node=1",
            "--master-addr=127.0.0.1",
            "--master-port=31286",
            "-m",
            "decentnode",
        ]
        with (tmp_path / f"agent{machine}.out").open("wb") as out:
            agents.append(
                subprocess.Popen(
                    [*command, *words(tmp_path / "torchrun", PORTS["torchrun"], rendezvous(31287))],
                    stdout=out, stderr=subprocess.STDOUT,
                    env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHON_EXEC": python},
                )
            )  # fmt: skip
    srun = words(tmp_path / "srun", PORTS["srun"], rendezvous(31288))
    tasks = start_tasks(tmp_path / "tasks", srun)
    assert run_command(tmp_path / "plain.out", *words(tmp_path / "plain", PORTS["plain"])) == 0
    assert ended(tasks) == [0] * 2, (tmp_path / "tasks.0").read_text()
    codes = [agent.wait(120) for agent in agents]
    assert codes == [0, 0], (tmp_path / "agent0.out").read_text()
    hashes = {model_hash(tmp_path / name) for name in ("plain", "torchrun/machine-0", "srun/machine-0")}
    assert len(hashes) == 1


@pytest.mark.parametrize("starter", ["run", "torchrun"])
def test_printed_commands_start_the_machines(tmp_path, starter):
    """A shell gets what `decentnode commands` has printed, a line for each of two machines."""
    python = str(Spawner.of_this_process().python())
    for name, module in (("decentnode", "decentnode"), ("torchrun", "torch.distributed.run")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {python} -m {module} "$@"\n')
        (tmp_path / name).chmod(0o755)
    machines = "[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]"
    base = {"run": 31290, "torchrun": 31300}[starter]
    mapping = f"mapping={{machines: {machines}, rendezvous_port: {base}}}"
    arguments = words(tmp_path / "run", base + 2, mapping)[1:]
    printed = call(
        "commands", *arguments, "--with", starter, *(["--port", f"{base + 8}"] * (starter != "run"))
    )
    assert printed.returncode == 0, printed.stderr
    variables = {"PYTHONPATH": str(ROOT), "PYTHON_EXEC": python, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    shells, commands = [], printed.stdout.splitlines()[1::2]
    for machine, command in enumerate(commands):
        with (tmp_path / f"{machine}.out").open("wb") as out:
            shells.append(
                subprocess.Popen(
                    ["bash", "-c", command], stdout=out, stderr=subprocess.STDOUT, env=os.environ | variables
                )
            )
    codes = [shell.wait(120) for shell in shells]
    assert codes == [0, 0], (tmp_path / "0.out").read_text() + (tmp_path / "1.out").read_text()
    summaries = [path.read_text() for path in (tmp_path / "run").rglob("summary.json")]
    assert len(summaries) == 2 and {json.loads(text)["nodes"] for text in summaries} == {4}


def test_all_processes_end_when_the_job_is_asked_to(tmp_path):
    forever = words(tmp_path / "run", PORTS["stopped"], "rounds=1000000", rendezvous(31289))
    tasks = start_tasks(tmp_path / "tasks", forever)
    record = tmp_path / "run" / "machine-0" / "records" / "00000.jsonl"
    wait_until(
        lambda: record.exists() and record.stat().st_size, 60, lambda: (tmp_path / "tasks.0").read_text()
    )
    for task in tasks:
        task.send_signal(signal.SIGTERM)
    assert ended(tasks) == [143] * 2
    assert "resume with" in (tmp_path / "tasks.0").read_text()


def test_several_tasks_on_a_machine_are_refused_in_one_line(tmp_path):
    arguments = words(tmp_path / "run", PORTS["stopped"])
    assert ended(start_tasks(tmp_path / "tasks", arguments, tasks=2)) == [2] * 2
    logs = [path.read_text() for path in tmp_path.glob("tasks.*")]
    line = "srun has started 2 + 2 processes on 2 machines; start one task per machine, with mapping: "
    assert logs == [f"{line}{{name: environment, nodes_per_machine: N}}\n"] * 2


def test_a_mistake_in_the_words_of_one_task_ends_the_other(tmp_path):
    """Their addresses are those of the job, so nobody publishes one."""
    common = words(tmp_path / "run", 31690, rendezvous(31686))
    mistaken = [*common, "roudns=5"]
    tasks = [
        start_command(tmp_path / f"task.{machine}", *own, **step(machine, 1, f"{os.getpid()}early"))
        for machine, own in enumerate((common, mistaken))
    ]
    assert ended(tasks) == [2, 2]
    line = "machine 1 (127.0.0.2, ranks 2-3) has ended before the run began: command line: roudns: "
    assert line in (tmp_path / "task.0").read_text()
