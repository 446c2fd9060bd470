"""Loops that join: threads, processes, and what they may ask of their node."""

import copy
import os
import time

import pytest
import torch
import torch._dynamo  # or every forked process would import it at its first optimizer
from torch import nn

import decentnode
from decentnode.errors import RunFailed
from decentnode.formats.records import read_records
from tests.support.own_loops import (
    NODES,
    OwnLoop,
    joined_threads,
    models_of,
    sections_of,
    with_schedule,
)
from tests.support.processes import FORK
from tests.support.rank_threads import in_threads

LIMIT = 150.0
OVERLAP = {"communication": {"name": "zeromq", "overlap": True}}
AMONG_PROCESSES = {
    "choco, overlap": sections_of("choco", **OVERLAP),
    "gradient_tracking": sections_of("gradient_tracking"),
    "fed_avg": sections_of("fed_avg"),
    "multi_gossip": sections_of("multi_gossip"),
    "secure_aggregation": sections_of("secure_aggregation"),
    "ubar": sections_of("ubar"),
}
"""Among them: steps during an exchange, changed gradients, clients that rest, several exchanges in a round,
handshakes, tested models."""
END = 20.0


def ended(run_dir):
    """The run, when its launcher has written its summary."""
    limit = time.monotonic() + END
    while not (run_dir / "summary.json").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    return decentnode.Run(run_dir)


def over_shared_memory(sections):
    communication = sections["communication"]
    kept = communication if isinstance(communication, dict) else {}
    return {**sections, "communication": {**kept, "name": "zeromq"}}


def join_all(rank, folder):
    """One rank of a job: joins with each configuration, one after the other."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(NODES), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(NODES),
        "TORCHELASTIC_RUN_ID": str(folder),
    }  # fmt: skip
    torch.set_num_threads(1)
    for name, sections in AMONG_PROCESSES.items():
        loop = OwnLoop(sections, rank)
        loop.join(over_shared_memory(sections), run_dir=str(folder / name))
        torch.save(loop.train(), folder / f"{name}-{rank}.pt")


def test_processes_that_join_again_and_again_give_the_models_of_runs(tmp_path):
    processes = [FORK.Process(target=join_all, args=(rank, tmp_path)) for rank in range(NODES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * NODES
    for name, sections in AMONG_PROCESSES.items():
        inproc = {**sections, "communication": {**dict_of(sections["communication"]), "name": "inproc"}}
        models = models_of(inproc, tmp_path / f"{name}-expected")
        joined = [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(NODES)]
        assert torch.equal(torch.stack(joined), models), name
    assert ended(tmp_path / name).state == "finished"


def dict_of(section):
    return section if isinstance(section, dict) else {}


class Loops:
    """Ranks in threads with a small model each, and what they learn about."""

    def __init__(self, folder, size=2, momentum=0.9, **sections):
        self.folder, self.size, self.momentum = folder, size, momentum
        self.sections = {"graph": "fully_connected", "steps_per_round": 2} | sections
        self.runs = 0

    def model(self):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def run(self, work, make=None, **arguments):
        """What `work(node, model, step)` returns on each rank."""
        models = [(make or self.model)() for _ in range(self.size)]
        self.runs += 1
        run_dir = self.folder / f"run-{self.runs}"

        def one(rank):
            model = models[rank]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=self.momentum)
            given = {k: v(rank, model) if callable(v) else v for k, v in arguments.items()}
            node = decentnode.join(
                model, optimizer=optimizer, rank=rank, size=self.size, run_dir=str(run_dir), quiet=True,
                **self.sections, **given,
            )  # fmt: skip
            samples = iter(range(100))

            def step(number=None):
                draw = torch.Generator().manual_seed(
                    100 * rank + (next(samples) if number is None else number)
                )
                optimizer.zero_grad()
                loss = model(torch.randn(5, 3, generator=draw)).square().sum()
                loss.backward()
                optimizer.step()
                return loss

            step.optimizer = optimizer
            with node:
                return work(node, model, step)

        results = in_threads(self.size, one)
        return ended(run_dir), results


def values(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_saved_state_continues_bit_for_bit(tmp_path):
    chain = [{"name": "top_k", "fraction": 0.4, "by": "change"}, "auto"]
    loops = Loops(tmp_path, momentum=0.0, sharing={"name": "gradient_tracking", "transforms": chain})
    saved = [None, None]

    def straight(node, model, step):
        for number in range(8):
            node.step(step(number))
            if number == 2:
                with pytest.raises(RunFailed, match="within a round, in which gradient_tracking changes"):
                    node.state_dict()
            if number == 3:
                saved[node.rank] = (
                    node.state_dict(),
                    copy.deepcopy(model.state_dict()),
                    copy.deepcopy(step.optimizer.state_dict()),
                )
        return values(model)

    def continued(node, model, step):
        state, of_model, of_optimizer = saved[node.rank]
        model.load_state_dict(of_model)
        step.optimizer.load_state_dict(of_optimizer)
        node.load_state_dict(state)
        for number in range(4, 8):
            node.step(step(number))
        with pytest.raises(RunFailed, match="after the first step"):
            node.load_state_dict(state)
        assert node.rounds == 4
        return values(model)

    _, expected = loops.run(straight)
    _, found = loops.run(continued)
    assert torch.equal(torch.stack(found), torch.stack(expected)) and not torch.equal(*expected)


def test_what_is_logged_is_in_the_run_and_steps_of_an_optimizer_count_by_themselves(tmp_path):
    loops = Loops(tmp_path, rounds=3)

    def work(node, model, step):
        with pytest.raises(RunFailed, match="before the first round"):
            node.log(error=0.0)
        for number in range(6):
            step()
            assert node.rounds == (number + 1) // 2 and node.round_ended == number % 2
            if node.round_ended:
                node.log(error=node.rounds + node.rank)
        assert node.is_over
        node.leave()
        with pytest.raises(RunFailed, match=r"log\(\) after leave"):
            node.log(error=0.0)
        return values(model)

    run, (one, other) = loops.run(work, count="optimizer")
    assert torch.equal(one, other) and run.state == "finished"
    assert [(row.round, row.metrics["error"]) for row in run.rows] == [
        (0, {0: 1.0, 1: 2.0}), (1, {0: 2.0, 1: 3.0}), (2, {0: 3.0, 1: 4.0}),
    ]  # fmt: skip


def test_what_is_logged_late_or_in_several_calls_is_not_lost(tmp_path):
    """The others have left long before, and their launcher has read what they said."""

    def work(node, model, step):
        for _ in range(4):
            step()
            if node.round_ended:
                time.sleep(0.6 * node.rank * node.is_over)
                node.log(error=node.rounds)
                time.sleep(0.6)
                node.log(other=node.rank)

    run, _ = Loops(tmp_path).run(work, count="optimizer", rounds=2)
    assert [row.metrics for row in run.rows] == [
        {"error": dict.fromkeys((0, 1), round), "other": {0: 0.0, 1: 1.0}} for round in (1.0, 2.0)
    ]
    assert {name: spread["mean"] for name, spread in run.summary["test"].items()} == {
        "error": 2.0,
        "other": 0.5,
    }


def test_more_numbers_than_a_report_has_room_for_are_refused(tmp_path):
    def work(node, model, step):
        node.round()
        with pytest.raises(RunFailed, match="log\\(\\) of 300 numbers after one round needs"):
            node.log(**{f"error_{index}": 0.0 for index in range(300)})

    run, _ = Loops(tmp_path).run(work, rounds=1)
    assert run.state == "finished"


def test_a_part_of_the_model_is_shared_by_names_by_tensors_or_by_functions(tmp_path):
    def work(node, model, step):
        for _ in range(2):
            node.step(step())
        return [p.detach().clone() for p in model.parameters()]

    def functions(rank, model):
        last = model[2]
        return (
            lambda: [last.weight, last.bias],
            lambda new: [p.copy_(n) for p, n in zip(last.parameters(), new, strict=True)],
        )

    loops = Loops(tmp_path)
    results = [
        loops.run(work, shared=shared)[1]
        for shared in (["2.*"], lambda rank, model: [model[2].weight, model[2].bias], functions)
    ]
    for one, other in results:
        assert [torch.equal(*pair) for pair in zip(one, other, strict=True)] == [False] * 4 + [True] * 2
        for result, first in ((one, results[0][0]), (other, results[0][1])):
            assert all(torch.equal(*pair) for pair in zip(result, first, strict=True))


def test_a_rank_that_leaves_early_stops_nobody(tmp_path):
    def work(node, model, step):
        for _ in range(2 if node.rank == 2 else 8):
            node.step(step())
        return node.rounds, values(model)

    run, results = Loops(tmp_path, size=3).run(work)
    assert [rounds for rounds, _ in results] == [4, 4, 1]
    assert run.state == "finished" and not run.summary["lost_nodes"]
    assert [record.heard for record in read_records(run.directory / "records" / "00000.jsonl")] == [
        2,
        1,
        1,
        1,
    ]


def test_threads_replay_the_schedule_of_an_asynchronous_run(tmp_path):
    sections = sections_of("ad_psgd")
    models = models_of(with_schedule(sections, "record"), tmp_path / "recorded")
    assert not torch.equal(models[0], models[1])
    replayed = joined_threads(with_schedule(sections, "replay", tmp_path), tmp_path / "joined")
    assert torch.equal(torch.stack(replayed), models)
