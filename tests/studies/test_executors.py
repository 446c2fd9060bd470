"""Executors: what each is given, what it refuses, and that it ends with what it started."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from decentnode.core.registry import EXECUTORS
from decentnode.errors import BadInput, RunFailed
from decentnode.studies.executors import slurm
from decentnode.studies.executors.base import RunTask
from decentnode.studies.executors.slurm import Slurm

BASE = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
STUDY = f"""
base: {BASE}
set: {{rounds: 3, evaluation.every: 0, dataset: {{name: digits, train_size: 60, test_size: 30}}}}
axes: {{sharing: [gossip, push_sum]}}
out: out
"""


def commands(folder: Path, count: int = 3, **more) -> list[RunTask]:
    """Commands that leave a line each."""
    return [
        RunTask(
            f"run-{i}", [sys.executable, "-c", f"print('it is {i}')"], folder, folder / f"{i}.log", **more
        )
        for i in range(count)
    ]


class Calls(dict):
    """What the stand-ins for the libraries were asked for."""


@pytest.fixture
def libraries(monkeypatch):
    """Stand-ins for ray, distributed and submitit that start everything in this process."""
    calls = Calls(closed=[])

    def library(name: str, **content) -> None:
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    def remote(**options):
        calls["retries"] = options["max_retries"]
        return lambda function: SimpleNamespace(
            options=lambda num_cpus: SimpleNamespace(
                remote=lambda task: calls.setdefault("cpus", []).append(num_cpus) or (function, task)
            )
        )

    library(
        "ray", init=lambda **options: calls.update(address=options["address"]), remote=remote,
        nodes=lambda: [{"Alive": cpus < 9, "Resources": {"CPU": cpus}} for cpus in (2.0, 9.0)],
        wait=lambda waiting: (waiting[:1], waiting[1:]), get=lambda refs: [f(task) for f, task in refs],
        shutdown=lambda: calls["closed"].append("ray"),
    )  # fmt: skip

    class Client:
        def __init__(self, **options):
            calls["client"] = options

        def __enter__(self):
            return self

        def __exit__(self, *_):
            calls["closed"].append("dask")

        def map(self, function, tasks, pure):
            assert not pure
            return [(function, task) for task in tasks]

    library("distributed", Client=Client, as_completed=lambda futures, with_results: (
        (future, future[0](future[1])) for future in futures
    ))  # fmt: skip

    class AutoExecutor:
        def __init__(self, folder, cluster):
            calls["folder"] = folder

        def update_parameters(self, **parameters):
            calls["parameters"] = parameters

        def map_array(self, function, tasks):
            return [
                SimpleNamespace(result=lambda task=task: function(task), done=lambda: True) for task in tasks
            ]

    library("submitit", AutoExecutor=AutoExecutor, helpers=SimpleNamespace(as_completed=lambda jobs: jobs))
    return calls


OWN = """
from dataclasses import dataclass
from decentnode.studies.executors.base import Executor, run_task


@dataclass
class Queue(Executor):
    limit: int = 9

    def submit(self, study, tasks, out):
        for task in tasks[:self.limit]:
            yield run_task(task)

    def queued(self, out):
        return ["push_sum/seed-1"]
"""


def test_an_executor_of_ones_own_is_named_as_any_plugin_and_states_are_read_from_folders(
    tmp_path, monkeypatch, call
):
    monkeypatch.chdir(tmp_path)
    Path("queue_of_ours.py").write_text(OWN)
    Path("s.yaml").write_text(f"{STUDY}on: {{name: 'queue_of_ours:Queue', limit: 1}}\nseeds: 2\n")
    code, text, _ = call("sweep", "s.yaml")
    log = (tmp_path / "out/gossip/seed-0.task.log").read_text()
    assert code == 0 and "1 run in progress or submitted before\n1 of 4  gossip/seed-0: done\n" in text, log
    assert "s: 1 of 4 runs done, 3 submitted or in progress (exit code 0)\n" in text
    assert json.loads((tmp_path / "out/gossip/seed-0/study.json").read_text())["alone"] is False
    states = [run["state"] for run in json.loads(call("sweep", "s.yaml", "--list", "--json")[1])]
    assert states == ["done", "to do", "to do", "queued"]


@pytest.mark.parametrize("name", ["local", "ray", "dask", "submitit"])
def test_every_executor_starts_all_commands_and_names_those_that_ended(tmp_path, libraries, name):
    executor = EXECUTORS.find(name)()
    ended = [*executor.submit("s", commands(tmp_path, processes=8), tmp_path)]
    assert ended == ["run-0", "run-1", "run-2"]
    assert [(tmp_path / f"{i}.log").read_text() for i in range(3)] == [f"it is {i}\n" for i in range(3)]
    assert libraries["closed"] == ([name] if name in ("ray", "dask") else [])
    # A run with more processes than any machine has processors would wait for ever.
    assert libraries.get("cpus", [2.0] * 3) == [2.0] * 3


def test_a_sweep_that_is_stopped_leaves_its_cluster(tmp_path, libraries):
    for name in ("ray", "dask"):
        ended = EXECUTORS.find(name)().submit("s", commands(tmp_path), tmp_path)
        next(ended)
        ended.close()
    assert libraries["closed"] == ["ray", "dask"]


def test_a_ray_cluster_that_is_gone_is_said_in_one_line(monkeypatch, tmp_path, libraries):
    def init(**_):
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379\nand more")

    monkeypatch.setattr(sys.modules["ray"], "init", init)
    line = r"^on: ray: .*10.0.0.1:6379; start a cluster, or set address: local for one of its own$"
    with pytest.raises(BadInput, match=line):
        next(EXECUTORS.find("ray")().submit("s", commands(tmp_path), tmp_path))


@pytest.mark.parametrize(
    ("name", "package"), [("ray", "ray"), ("dask", "distributed"), ("submitit", "submitit")]
)
def test_a_library_that_is_missing_is_said_with_what_installs_it(monkeypatch, tmp_path, call, name, package):
    monkeypatch.setattr("decentnode.studies.executors.base.find_spec", lambda _: None)
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(STUDY)
    words = f"on: {name} needs a package; run: pip install {package}\n"
    assert call("sweep", "s.yaml", "--on", name) == (2, "", words)
    assert not (tmp_path / "out").exists()


def test_a_script_without_its_package_says_in_one_line_what_installs_it(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(name='ray')\n")
    script = BASE.parents[1] / "eval" / "clusters" / "ray_start.py"
    command = [sys.executable, script, "c.yaml", "3", "run_dir=here"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    words = f"{script}: needs a package; run: pip install ray\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", words)


# Slurm.


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder with stand-ins for the commands of Slurm: `size`, `queue` and `script-N` are their files."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    scripts = {
        "sbatch": "n=$(ls | grep -c script-); cat > script-$n; cat broken >&2 && exit 1; echo 7$n",
        "squeue": "cat queue 2>/dev/null || true",
        "scontrol": "cat size",
    }  # fmt: skip
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "size").write_text("Configuration data\nMaxArraySize            = 4\nMaxMemPerNode = 0\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_a_study_is_submitted_in_arrays_and_again_only_as_far_as_it_is_missing(
    tmp_path, cluster, call, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(STUDY)
    words = ("sweep", "s.yaml", "seeds=3", "--on", "{name: slurm, options: [--time=2:00:00]}")
    code, text, _ = call(*words)
    assert code == 0 and "submitted job 70: 4 runs\nsubmitted job 71: 2 runs\n" in text
    assert "0 of 6 runs done, 6 submitted or in progress (exit code 0)" in text
    first, second = ((cluster / f"script-{n}").read_text().splitlines() for n in range(2))
    for line in (
        "--array=0-3",
        "--nodes=1",
        "--requeue",
        "--open-mode=append",
        "--signal=B:TERM@90",
        "--time=2:00:00",
    ):
        assert f"#SBATCH {line}" in first
    assert "#SBATCH --array=0-1" in second
    command = shlex.split(shlex.split(first[first.index("commands=(") + 1])[0])
    assert command[1:] == [
        "-P", "-m", "decentnode", "sweep", "s.yaml", "seeds=3", f"out={tmp_path}/out", "--on", "local",
        "--shared", "--only", "gossip/seed-0",
    ]  # fmt: skip
    # The third task of the first job, and both of the second one.
    (cluster / "queue").write_text("70_2\n71_0\n71_1\n99\n70_x\n")
    states = {run["name"]: run["state"] for run in json.loads(call(*words, "--list", "--json")[1])}
    assert [name for name, state in states.items() if state == "queued"] == [
        "gossip/seed-1", "gossip/seed-2", "push_sum/seed-2",
    ]  # fmt: skip
    code, text, _ = call("sweep", "s.yaml", "seeds=3", "--list")
    assert code == 0 and [line.split()[0] for line in text.splitlines() if line.endswith("  queued")] == [
        name for name, state in states.items() if state == "queued"
    ], "also without --on"
    code, text, _ = call(*words)
    assert code == 0 and "3 runs in progress or submitted before\nsubmitted job 72: 3 runs\n" in text


def test_a_run_of_several_machines_is_a_step_on_all_of_them(tmp_path):
    alone, both = commands(tmp_path, 1), commands(tmp_path, 1, machines=2, hosts=("n1", "n2"))
    text = slurm.script("s", both, tmp_path, Slurm(at_once=3))
    assert "#SBATCH --array=0-0%3\n" in text
    assert "#SBATCH --nodes=2\n#SBATCH --nodelist=n1,n2\n" in text and "#SBATCH --signal=TERM@90\n" in text
    assert "\nexport DECENTNODE_SECRET=" in text and 'eval "exec srun --label --kill-on-bad-exit=0 ' in text
    assert "srun" not in slurm.script("s", alone, tmp_path, Slurm())


@pytest.mark.parametrize("name", ["a b", "a'b", "$(touch x)", "a#b", "a%jb", "\u00e4;id", "`id`"])
def test_no_name_of_a_directory_becomes_words_of_a_batch_script(tmp_path, name):
    """As Slurm 22.05 reads such a line: quotes as in a shell, and fields behind %."""
    lines = slurm.script("s", commands(tmp_path), tmp_path / name, Slurm()).splitlines()
    (output,) = [line for line in lines if "--output" in line]
    path = name.replace("%", "%%")
    assert shlex.split(output.removeprefix("#SBATCH ")) == [f"--output={tmp_path}/{path}/slurm-%A_%a.log"]


@pytest.mark.parametrize("name", ["a\nid", "a\rid", "a\x1b[2J", "a\\b"])
def test_a_name_that_sbatch_cannot_read_is_refused_in_one_line(tmp_path, name):
    refused = r"^out: '.*': sbatch reads no directory of that name, .* \(out=\.\.\.\)$"
    with pytest.raises(BadInput, match=refused):
        slurm.script("s", commands(tmp_path), tmp_path / name, Slurm())


def test_seconds_of_a_job_count_where_it_has_its_machine_alone():
    assert not Slurm().is_exclusive and not Slurm(options=("--exclude=n1",)).is_exclusive
    assert Slurm(options=("--exclusive",)).is_exclusive and Slurm(options=("--exclusive=user",)).is_exclusive


@pytest.mark.parametrize(
    ("size", "what"),
    [
        ("MaxArraySize = 0", "MaxArraySize is 0, so"),
        ("", "MaxArraySize is not in `scontrol show config`, so"),
    ],
)
def test_a_slurm_without_arrays_is_refused_before_anything_is_submitted(tmp_path, cluster, size, what):
    (cluster / "size").write_text(f"{size}\n")
    with pytest.raises(BadInput, match=f"^on: slurm: {what} this Slurm accepts no arrays; "):
        next(Slurm().submit("s", commands(tmp_path), tmp_path), None)
    assert not (cluster / "script-0").exists()


def test_what_sbatch_complains_of_ends_the_sweep(tmp_path, cluster):
    (cluster / "broken").write_text("no such partition\n")
    with pytest.raises(RunFailed, match="sbatch: no such partition"):
        next(Slurm().submit("s", commands(tmp_path), tmp_path), None)


def test_where_slurm_is_missing_or_an_option_is_none_a_line_says_so(monkeypatch, tmp_path):
    with pytest.raises(BadInput, match=r"^on\.options: 'high': write an option of sbatch, such as"):
        Slurm(options=("high",)).check()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="on: slurm: there is no sbatch on this machine; sweep on a"):
        Slurm().check()


def test_a_run_of_several_machines_is_refused_where_nobody_can_start_it(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    mapping = "set: {mapping: {name: environment, nodes_per_machine: 8}, "
    Path("s.yaml").write_text(STUDY.replace("set: {", mapping, 1))
    words = (
        "gossip/seed-0: needs 2 machines, and `on: local` starts a run on one; sweep with --on slurm, or "
        "list one machine in mapping.machines\n"
    )
    assert call("sweep", "s.yaml") == (2, "", words)
    remedy = "start this command on each of them (srun), or sweep with --on slurm"
    words = f"gossip/seed-0: needs 2 machines; {remedy}\n"
    assert call("sweep", "s.yaml", "--only", "gossip/seed-0") == (2, "", words)
    runs = json.loads(call("sweep", "s.yaml", "--list", "--json")[1])
    assert [run["machines"] for run in runs] == [2, 2]


def test_json_is_a_form_of_the_list(call):
    assert call("sweep", str(BASE), "--json") == (2, "", "--json: is a form of --list; add that\n")
