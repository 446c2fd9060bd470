"""A loop of one's own in place of a run's local steps: every scheme, in this process, against the run."""

import pytest
import torch

import decentnode
from decentnode.errors import BadInput
from tests.support import own_loops
from tests.support.own_loops import ASYNCHRONOUS, IN_ROUNDS, models_of, sections_of, simulated, with_loop

OVERLAPPED = {"communication": {"name": "inproc", "overlap": True}}


@pytest.fixture(scope="module")
def digits():
    """All samples."""
    settings = own_loops.settings_of(sections_of("gossip"))
    return settings.dataset.make().whole(settings.seed)


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_a_loop_gives_the_models_of_the_run(name, digits, tmp_path):
    """By turns in real time, and in virtual time; `eval/library/join_matrix.py` has all of both."""
    sections = sections_of(name)
    models = models_of(sections, tmp_path / "run", digits)
    sections = with_loop(sections if IN_ROUNDS.index(name) % 2 else simulated(sections))
    assert torch.equal(models_of(sections, tmp_path / "loop", digits), models)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_in_virtual_time_a_loop_gives_the_models_of_an_asynchronous_run(name, digits, tmp_path):
    sections = simulated(sections_of(name))
    models = models_of(sections, tmp_path / "run", digits)
    assert torch.equal(models_of(with_loop(sections), tmp_path / "loop", digits), models)
    assert not torch.equal(models[1], models[2])


@pytest.mark.parametrize("name", ["gossip", "choco"])
def test_a_loop_trains_while_the_models_travel(name, digits, tmp_path):
    sections = sections_of(name, **OVERLAPPED)
    models = models_of(sections, tmp_path / "run", digits)
    assert not torch.equal(models_of(sections_of(name), tmp_path / "before", digits), models)
    assert torch.equal(models_of(with_loop(sections), tmp_path / "loop", digits), models)
    assert torch.equal(models_of(with_loop(simulated(sections)), tmp_path / "virtual", digits), models)


def test_a_loop_that_waits_is_refused_where_nodes_share_a_process(tmp_path):
    with pytest.raises(BadInput, match=r"blocking waits in its calls.*write `async def`"):
        own_loops.settings_of(with_loop(sections_of("gossip"), "blocking"))
    one = {**sections_of("gossip"), "graph": {"name": "fully_connected", "nodes": 1}}
    with pytest.raises(BadInput, match=r"blocking waits in its calls, and simulated has virtual time"):
        own_loops.settings_of(with_loop(simulated(one), "blocking"))


def test_the_exit_code_of_a_loop_is_its_nodes_failure(tmp_path):
    sections = with_loop(sections_of("gossip"), "leaving")
    with pytest.warns(UserWarning, match="1 node lost: rank 1: its loop exits with 3$"):
        decentnode.run(sections, run_dir=str(tmp_path), progress=False)


def test_a_loop_that_waits_runs_in_processes_of_its_own(digits, tmp_path):
    """With a server, which makes no steps, and clients that rest."""
    sections = sections_of("parameter_server")
    models = models_of(sections, tmp_path / "run", digits)
    sections = with_loop({**sections, "communication": "zeromq"}, "blocking")
    run = decentnode.run(sections, run_dir=str(tmp_path / "loop"), progress=False)
    assert run.state == "finished" and run.model_hash == own_loops.hash_of(models)
