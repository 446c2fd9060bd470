"""The example of a SLURM job: which commands it starts, at first and when it is requeued."""

import os
import subprocess

import pytest

from tests.integration.running import ROOT


@pytest.fixture
def job(tmp_path):
    """Starts the script as job 7; gives the commands that it starts, without the program."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    (tmp_path / "bin").mkdir()
    for name, skipped in {"python": 2, "srun": 4}.items():
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nshift {skipped}\nprintf "%s|" "$@" >>commands; echo >>commands\n')
        command.chmod(0o755)

    def start(*arguments, restarts=""):
        variables = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        variables |= {"SLURM_RESTART_COUNT": restarts} if restarts else {}
        (tmp_path / "commands").unlink(missing_ok=True)
        script = ["bash", ROOT / "eval/slurm/run.sbatch", *arguments]
        subprocess.run(script, cwd=tmp_path, env=os.environ | variables, check=True)
        return [line.rstrip("|").split("|") for line in (tmp_path / "commands").read_text().splitlines()]

    return start


def test_the_job_makes_keys_of_its_own_and_continues_when_it_is_requeued(job, tmp_path):
    """Another job of the same folder may have another number of machines, and start at the same time."""
    machines, nodes = "mapping={name: environment, nodes_per_machine: 4}", "graph.nodes=8"
    of_job = "security={keys: runs/keys-7}"
    keys, run = job("c.yaml", nodes)
    assert keys == ["keys", "c.yaml", machines, of_job, nodes]
    assert run == ["run", "c.yaml", machines, of_job, "run_dir=runs/7", nodes]
    (tmp_path / "runs/keys-7").mkdir(parents=True)
    # Another job's checkpoints are not this one's.
    for directory in ("runs/7/machine-0/records", "runs/77/machine-0/checkpoints/00000"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "runs/77/machine-0/checkpoints/00000/00000001.json").touch()
    again = ["run", "c.yaml", machines, of_job, "run_dir=runs/7-1", nodes]
    assert job("c.yaml", nodes, restarts="1") == [again]
    (tmp_path / "runs/7-1/machine-1/checkpoints/00004").mkdir(parents=True)
    (tmp_path / "runs/7-1/machine-1/checkpoints/00004/00000001.json").touch()
    for restarts in "23":
        assert job("c.yaml", nodes, restarts=restarts) == [["resume", "runs/7-1", machines, nodes]]
    # A later job continues what has reached its limit of time, whatever its own number and restarts.
    for restarts in ("", "1"):
        assert job("runs/7-1", "rounds=9", restarts=restarts) == [
            ["resume", "runs/7-1", machines, "rounds=9"]
        ]
