"""Benchmarks in their small mode end with one line of JSON; with `--all`, those of whole runs, too."""

import json
import math
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from decentnode.core.registry import TRANSFORMS
from decentnode.simulation.network import Network
from eval.benchmarks._ring_all_reduce import Ring
from tests.integration.spawner import ROOT, Spawner

SHORT = ("exchange", "mix", "private_step", "robust", "transforms", "wrapper")
LONG = (
    "data",
    "evaluation",
    "experiment",
    "idle",
    "launcher",
    "layout",
    "own_loop",
    "scale",
    "simulate",
    "startup",
    "sweep",
    "workers",
    "wrapper_memory",
)
LIMIT = 120.0
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[dict[str, Future]]:
    """The benchmarks, two at a time: what they measure here means nothing anyway."""
    names = [*SHORT, *LONG] if request.config.getoption("--all") else SHORT
    python = str(Spawner.of_this_process().python())

    def run(name: str) -> subprocess.CompletedProcess:
        # What idle looks at is the process that it has started.
        commands = {} if name == "idle" else {"PYTHON_EXEC": python}
        return subprocess.run(
            [python, f"eval/benchmarks/{name}.py", "--small"],
            cwd=ROOT, env=ENVIRONMENT | commands, capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip

    with ThreadPoolExecutor(2) as threads:
        yield {name: threads.submit(run, name) for name in names}
        threads.shutdown(cancel_futures=True)


def ended(run: "Future[subprocess.CompletedProcess]") -> tuple[list[str], dict]:
    """What a benchmark printed, and its last line read as JSON."""
    output = run.result()
    assert output.returncode == 0, output.stderr
    lines = output.stdout.splitlines()
    return lines, json.loads(lines[-1])


def test_a_benchmark_tells_its_own_options_and_takes_sizes() -> None:
    python = str(Spawner.of_this_process().python())

    def bench(*words: str) -> str:
        command = [python, "-m", "decentnode", "bench", *words]
        environment = ENVIRONMENT | {"PYTHON_EXEC": python}
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT
        )
        return ended.stdout

    assert "--local {shared_memory,ipc,tcp,tcp_keys,gloo}" in bench("exchange", "--help")
    assert "`bench NAME --help`" in bench("--help")
    words = ("exchange", "2e3", "30000", "--small", "--local", "shared_memory")
    figures = json.loads(bench(*words).splitlines()[-1])["figures"]
    assert [case["elements"] for case in figures] == [2000, 30000]


def test_these_are_all_benchmarks() -> None:
    assert sorted(path.stem for path in (ROOT / "eval" / "benchmarks").glob("[!_]*.py")) == sorted(
        (*SHORT, *LONG, "compression", "decentralizepy", "long_links", "overlap")
    )


@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_a_small_run_ends_with_its_figures(name: str, running: dict[str, Future]) -> None:
    lines, result = ended(running[name])
    assert result["benchmark"] == name
    assert result["small"] is True
    assert "a small run: its figures say nothing about speed" in lines
    assert result["ratio"]
    # No upper limit: beside other tests one turn may take any time.
    assert all(0 <= value < math.inf for value in result["ratio"].values())
    for target in result["targets"]:
        value, limit = target["value"], target["limit"]
        assert target["met"] is (value >= limit if target["bound"] == "at least" else value <= limit)
    for figures in result["figures"]:
        CHECKS[name](figures)


def check_exchange(figures: dict) -> None:
    assert figures["ours_gb_per_s"] == pytest.approx(figures["raw_gb_per_s"] * figures["of_raw"], rel=0.01)


def check_experiment(figures: dict) -> None:
    # The start ends when the last node begins, the rounds count from the start signal: they overlap.
    parts = figures["startup_seconds"], figures["wall_seconds"]
    assert max(parts) < figures["command_seconds"] < LIMIT


def check_launcher(figures: dict) -> None:
    assert 0.0 < figures["launcher_cpu_seconds"] < figures["nodes_cpu_seconds"]


def check_scale(figures: dict) -> None:
    if "growth" in figures:
        assert figures["growth"] > 0
        return
    if "cpu_ms" in figures:
        assert figures["cpu_ms"] > 0
        assert figures["control_messages"] < 50
        return
    assert figures["finished_nodes"] == figures["nodes"]
    assert len(figures["round_seconds"]) == figures["rounds"]
    assert all(0 < seconds < LIMIT for seconds in figures["round_seconds"])


def check_idle(figures: dict) -> None:
    """Before waiting was quiet: 24 wake-ups of a node in a second, and 15 of the launcher."""
    assert figures["node_wakeups"] < 8.0
    assert figures["launcher_wakeups"] < 4.0


def check_mix(figures: dict) -> None:
    assert figures["of_copy"] > 0 and figures["times_loop"] > 0
    assert (figures["device"] == "cuda") is torch.cuda.is_available()


def check_evaluation(figures: dict) -> None:
    if "model" in figures:
        assert min(figures["milliseconds"], figures["of_raw_forward_passes"]) > 0
        return
    assert figures["half_idle_seconds"].keys() == {"nodes", "background"}


def check_startup(figures: dict) -> None:
    # The first is until the last node begins a round, the second by the files that a first round leaves.
    assert figures["startup_seconds"] < figures["first_round_seconds"] + 0.1
    assert figures["first_round_seconds"] < figures["command_seconds"]
    assert 1 < figures["private_mb_per_node"] < 200


def check_sweep(figures: dict) -> None:
    assert figures["runs"] == 4
    assert 0 < figures["rounds_seconds"] < figures["command_seconds"]


def check_transforms(figures: dict) -> None:
    if "chain" in figures:
        assert figures["bytes"] < 4.1 * figures["elements"]
        assert figures["of_dense"] == pytest.approx(figures["round_ms"] / figures["dense_round_ms"], rel=0.02)
        return
    assert figures["gb_per_s"] <= min(figures["encode_gb_per_s"], figures["decode_gb_per_s"])


def check_wrapper(figures: dict) -> None:
    if "efficiency" in figures:
        assert figures["alone_ms"] > 0 and 0 < figures["efficiency"] < 2
        return
    assert figures["ring_of_local"] == pytest.approx(figures["ring_ms"] / figures["local_ms"], rel=0.02)
    assert 0 < figures["extra_mb"] < 1


def check_workers(figures: dict) -> None:
    assert figures["batch"] * figures["workers"] == 16
    assert figures["ratio"] == pytest.approx(figures["all_reduce_ms"] / figures["scheme_ms"], rel=0.01)
    if figures["kind"] == "modelled":
        assert min(figures["scheme_ms"], figures["all_reduce_ms"]) >= 0.99 * figures["compute_ms"] > 0


def check_wrapper_memory(figures: dict) -> None:
    buckets = figures["late_buckets"]
    assert buckets < 1 if figures["transport"] == "shared_memory" else 0.5 < buckets < 6


def check_data(figures: dict) -> None:
    assert figures["samples"] == 4000
    assert 0 < figures["load_of_published_run"] < figures["load_of_one_round"]
    assert figures["node_private_mb"] > 0 and 0.3 < figures["file_mb"] < 0.4


def check_private_step(figures: dict) -> None:
    assert figures["private_ms"] > 0 < figures["ordinary_ms"]


def check_robust(figures: dict) -> None:
    assert figures["times"] > 0 and figures["rule"]


def check_own_loop(figures: dict) -> None:
    assert figures["own_loop_ms"] > 0 < figures["run_ms"]


CHECKS = {
    "private_step": check_private_step,
    "robust": check_robust,
    "data": check_data,
    "exchange": check_exchange,
    "experiment": check_experiment,
    "idle": check_idle,
    "launcher": check_launcher,
    "mix": check_mix,
    "own_loop": check_own_loop,
    "scale": check_scale,
    "startup": check_startup,
    "evaluation": check_evaluation,
    "sweep": check_sweep,
    "workers": check_workers,
    "transforms": check_transforms,
    "wrapper": check_wrapper,
    "wrapper_memory": check_wrapper_memory,
}


def modelled_ring(ranks: int, seconds: float, size: int = 8_000_000) -> float:
    """Seconds of a step by all-reduce where each message takes 10 ms and 8 Mbit/s."""
    latency, rates = np.full((ranks, ranks), 0.01), np.full(ranks, 8e6)
    return Ring(Network("fair", latency, rates, rates), lambda rank, step: seconds, size, 5).step_seconds()


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_modelled_all_reduce_has_the_time_of_its_closed_form(ranks: int) -> None:
    messages = 2 * (ranks - 1) * (0.01 + 8 * 8_000_000 / ranks / 8e6)
    assert modelled_ring(ranks, 0.3) == pytest.approx(max(0.3, 0.1 + messages), rel=1e-6)
    assert modelled_ring(ranks, 60.0) == pytest.approx(60.0)


def test_a_modelled_all_reduce_waits_for_the_slowest_rank() -> None:
    latency, rates = np.zeros((4, 4)), np.full(4, np.inf)
    ring = Ring(Network("fair", latency, rates, rates), lambda rank, step: 1.0 + (rank == 2), 1000, 6)
    # The last parts of the others come from it, a third of its step after it has begun that.
    assert 1.9 < ring.step_seconds() <= 2.0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--workers", "1,x"], "--workers: must be numbers of workers such as 1,2,4,8, not '1,x'"),
        (
            ["--workers", "2,3"],
            "16 is the batch of all workers, and 3 do not divide it; 12 and 18 can be divided",
        ),
        (["--virtual", "4"], "--virtual: name a network, such as --network '{latency: 1 ms,"),
        (["--network", "slow"], "--network: must be such as"),
        (["--network", "{latncy: 1 ms}"], "communication.latncy: unknown option"),
        (["training.name=ddp", "sharing=none"], "is all-reduce itself"),
        (["--graph", "torus"], "--graph: torus has no option nodes"),
        (["--graph", "{name: rng}"], "unknown graph 'rng'"),
        (["--rounds", "0"], "--rounds and --repeats: must be at least 1"),
        (["--reps", "2"], "unrecognized arguments: --reps 2; --help shows all options"),
    ],
)
def test_workers_refuses_what_is_wrong_in_one_line(words: list[str], line: str) -> None:
    command = [str(Spawner.of_this_process().python()), "eval/benchmarks/workers.py", "quickstart", *words]
    ended = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert line in ended.stderr


def test_every_registered_transform_is_timed() -> None:
    text = (ROOT / "eval" / "benchmarks" / "transforms.py").read_text()
    for name, cls in TRANSFORMS.classes().items():
        if cls.__module__.startswith("decentnode."):
            assert f'spec("{name}"' in text
