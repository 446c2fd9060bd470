"""The example of a SLURM job: the command that it starts, which is the same when it is requeued."""

import os
import subprocess

from tests.integration.running import ROOT


def test_the_job_has_a_secret_of_its_own_and_repeats_one_command(tmp_path):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s|" "$@" "$DECENTNODE_SECRET" >>commands; echo >>commands\n')
    srun.chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for more in ({}, {"SLURM_RESTART_COUNT": "1"}, {"SLURM_HET_SIZE": "3", "DECENTNODE_SECRET": "given"}):
        script = ["bash", ROOT / "eval/slurm/run.sbatch", "c.yaml", "graph.nodes=8"]
        subprocess.run(script, cwd=tmp_path, env=os.environ | variables | more, check=True)
    command = [
        "python", "-m", "decentnode", "run", "c.yaml", "--continue",
        "mapping={name: environment, nodes_per_machine: 4}", "graph.nodes=8",
    ]  # fmt: skip
    lines = [line.split("|")[:-1] for line in (tmp_path / "commands").read_text().splitlines()]
    assert [line[:-1] for line in lines[:2]] == [
        ["--label", "--no-kill", "--kill-on-bad-exit=0", *command]
    ] * 2
    assert len({line[-1] for line in lines}) == 3 and [len(line[-1]) for line in lines] == [64, 64, 5]
    assert lines[2][:-1] == ["--label", "--no-kill", "--kill-on-bad-exit=0", "--het-group=0-2", *command]


def test_the_page_and_the_script_name_a_chain_as_slurm_joins_it_and_keep_what_a_crash_leaves():
    """`--dependency=singleton` joins jobs of one name; a job that loses a machine is killed by default."""
    script, page = ((ROOT / path).read_text() for path in ("eval/slurm/run.sbatch", "docs/clusters.md"))
    for text in (script, page):
        assert "DECENTNODE_JOB=night sbatch --job-name=night --dependency=singleton" in text
        assert "checkpoint.every" in text and "--no-kill" in text
    assert "\n#SBATCH --no-kill\n" in script
