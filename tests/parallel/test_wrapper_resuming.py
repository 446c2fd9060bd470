"""DecentralizedDataParallel going on: from saved states, after steps that ended early, without lost ranks."""

import copy
import json
import math
import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.optim import lr_scheduler
from torch.utils._pytree import tree_leaves

from decentnode.communication.torch_distributed.transfers import GroupExchange
from decentnode.errors import BadInput, RunFailed, StartError
from decentnode.parallel.rendezvous import RankRecord, RankStoreRendezvous, _processes
from decentnode.parallel.topology import weighted_graph
from decentnode.training.optim import decay_groups
from tests.support.processes import free_ports
from tests.support.wrapper_ranks import Run, batches, flat, in_rank_processes, in_rank_threads, loss_of

A_LAYER, A_TENSOR = 1e-4, 1e-6


def alone(run, work):
    """What `work(model)` gives on a single rank."""
    (result,) = in_rank_threads(1, lambda rank, rendezvous: work(run.wrap(rendezvous)))
    return result


def rates(model):
    """The learning rates that the buckets' optimizers really use."""
    return {group["lr"] for part in model.optimizer.optimizers for group in part.optimizer.param_groups}


# Saved states.


@pytest.mark.parametrize("update_in", ["backward", "step"])
def test_gradients_that_wait_for_a_step_do_not_count_after_a_load(update_in):
    run = Run(options={"update_in": update_in})

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2)
        saved = model.state_dict()
        with model.no_sync():
            loss_of(model, batches(rank, 1)[0]).backward()
        model.load_state_dict(saved)
        for batch in batches(rank, run.steps)[2:]:
            loss_of(model, batch).backward()
            model.optimizer.step()
            if update_in == "step":
                model.zero_grad()
        return flat(model)

    assert torch.equal(torch.stack(in_rank_threads(2, work)), run.models(2))


def test_a_state_without_gradients_that_wait_for_a_step_is_not_saved():
    def work(model):
        with model.no_sync():
            loss_of(model, batches(0, 1)[0]).backward()
        with pytest.raises(RunFailed, match=r"rank 0, step 0: .* gradients of no_sync\(\) wait for theirs"):
            model.state_dict()
        model.zero_grad()
        return model.state_dict()["_extra_state"]["step"]

    assert alone(Run(), work) == 0


def test_a_state_is_not_loaded_where_it_would_be_lost():
    run = Run()

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        saved = model.state_dict()
        run.train(model, rank, 0, 2)
        with model.averaged(), pytest.raises(RunFailed, match=r"loaded inside averaged\(\) would be lost"):
            model.load_state_dict(saved)
        run.train(model, rank, 2)
        return flat(model)

    assert torch.equal(torch.stack(in_rank_threads(2, work)), run.models(2))


def test_a_learning_rate_set_on_the_whole_counts_after_a_resume():
    def work(model):
        schedule = lr_scheduler.StepLR(model.optimizer, 1, 0.1)
        model.load_state_dict(model.state_dict())
        loss_of(model, batches(0, 1)[0]).backward()
        model.optimizer.step()
        schedule.step()
        return model.get_lr(), rates(model)

    lr, used = alone(Run(options={"bucket_mb": A_TENSOR}), work)
    assert lr == pytest.approx(0.01)
    assert used == {lr}


def test_the_optimizer_alone_can_be_saved_and_loaded(tmp_path):
    run = Run(optimizer=lambda p: torch.optim.Adam(p, lr=0.05), steps=4)

    def work(model):
        run.train(model, 0, 0, 2)
        torch.save((model.module.state_dict(), model.optimizer.state_dict()), tmp_path / "saved.pt")
        run.train(model, 0, 2, 4)
        expected = flat(model)
        network, optimizer = torch.load(tmp_path / "saved.pt")
        model.module.load_state_dict(network)
        model.resend()
        model.optimizer.load_state_dict(optimizer)
        run.train(model, 0, 2, 4)
        return expected, flat(model)

    expected, result = alone(run, work)
    assert torch.equal(result, expected)


def test_a_mixing_strength_that_was_set_is_saved():
    def work(model):
        model.mixing_strength = 0.25
        saved = model.state_dict()
        model.mixing_strength = 1.0
        model.load_state_dict(saved)
        return model.mixing_strength

    assert alone(Run(), work) == 0.25


SCHEDULES = {
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 4)], [2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_any_schedule_continues_exactly_with_other_buckets(kind, tmp_path):
    def run(bucket_mb):
        optimizer = lambda p: torch.optim.SGD(decay_groups(p, 0.1), lr=0.1)
        return Run(
            optimizer=optimizer, options={"bucket_mb": bucket_mb, "scheduler": SCHEDULES[kind]}, steps=6
        )

    def save(model):
        run(1).train(model, 0, 0, 3)
        torch.save(model.state_dict(), tmp_path / "saved.pt")
        run(1).train(model, 0, 3, 6)
        return flat(model)

    def train_on(model):
        model.load_state_dict(torch.load(tmp_path / "saved.pt"))
        run(1).train(model, 0, 3, 6)
        return flat(model)

    uninterrupted = alone(run(25.0), save)
    for bucket_mb in (25.0, A_TENSOR):
        assert torch.equal(alone(run(bucket_mb), train_on), uninterrupted)


def test_what_is_saved_is_the_model_and_nothing_else(tmp_path):
    def work(model):
        torch.save(model.module.state_dict(), tmp_path / "saved.pt")
        saved = torch.load(tmp_path / "saved.pt")
        same = all(torch.equal(saved[name], value) for name, value in model.module.state_dict().items())
        return same, {value.untyped_storage().nbytes() == value.nbytes for value in saved.values()}

    assert alone(Run(), work) == (True, {True})


class Normed(nn.Module):
    """Has running statistics, and a parameter that fills its bucket exactly."""

    def __init__(self):
        super().__init__()
        self.lead, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2, bias=False)

    def forward(self, x):
        return self.last(self.norm(self.lead(x)))


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "a rate in a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.05)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_state_kept_in_memory_can_be_restored_repeatedly(optimizer):
    torch.manual_seed(0)
    schedule = lambda o: lr_scheduler.ExponentialLR(o, 0.9)
    options = {"bucket_mb": A_TENSOR, "scheduler": schedule}
    run = Run(network=Normed().double(), optimizer=OPTIMIZERS[optimizer], options=options, steps=6)

    def work(rank, rendezvous):
        model, ways = run.wrap(rendezvous), []
        run.train(model, rank, 0, 2)
        saved, alone = model.state_dict(), model.optimizer.state_dict()
        at_first = copy.deepcopy((saved, alone))
        for _ in range(3):
            run.train(model, rank, 2, 4)
            ways.append(torch.cat((flat(model), model.module.norm.running_mean)))
            model.load_state_dict(saved)
            model.optimizer.load_state_dict(alone)
        run.train(model, rank, 2, 4)
        kept = zip(tree_leaves((saved, alone)), tree_leaves(at_first), strict=True)
        assert all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in kept)
        return ways

    for first, *others in in_rank_threads(2, work):
        assert all(torch.equal(first, other) for other in others)


def test_a_parameter_that_fills_its_memory_is_saved_as_a_copy():
    def work(model):
        (saved,) = (value for value in model.state_dict().values() if torch.is_tensor(value))
        before = saved.clone()
        for _ in range(2):  # the second step is made in the slot of the first
            model(torch.ones(1, 128).double()).sum().backward()
        return torch.equal(saved, before)

    assert alone(Run(network=nn.Linear(128, 128, bias=False).double()), work)


@pytest.mark.parametrize("scheme", ["communicate_while_adapt", "adapt_then_combine"])
def test_a_backward_pass_that_ended_early_on_one_rank_is_undone_by_a_saved_state(scheme):
    run = Run(options={"bucket_mb": A_TENSOR, "scheme": scheme})

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2)
        saved = {k: v.clone() if torch.is_tensor(v) else v for k, v in model.state_dict().items()}
        inputs, wanted = batches(rank, run.steps)[2]
        hidden = model(inputs)
        if rank == 1:
            layer = model.module[0](inputs)
            layer.register_hook(lambda gradient: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                (model.module[1:](layer) - wanted).square().mean().backward()
        else:
            try:
                (hidden - wanted).square().mean().backward()
            except RunFailed:
                pytest.fail("nobody is lost")
        model.load_state_dict(saved)
        assert model.step == 2
        run.train(model, rank, 2)
        return flat(model)

    if scheme == "adapt_then_combine":
        run.options["deadline"] = 20.0
    assert torch.equal(torch.stack(in_rank_threads(3, work)), run.models(3))


# Parameters without an optimizer, schedules that look, scalers that are not ours.


def test_parameters_that_the_optimizer_leaves_out_are_mixed_alone():
    weights = lambda p: torch.optim.SGD([q for name, q in p if "bias" not in name], lr=0.1)
    run = Run(optimizer=weights, options={"clip_norm": 1e-3}, steps=3)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank)
        model.load_state_dict(model.state_dict())
        return [p.detach().clone() for p in model.parameters()], {p.grad for p in model.parameters()}

    for trained, gradients in in_rank_threads(2, work):
        assert gradients == {None}
        for now, start in zip(trained, run.network.parameters(), strict=True):
            assert torch.allclose(now, start, rtol=0, atol=1e-15) == (start.dim() == 1)
    # Clipped to 1e-3 by the gradient of the weights alone: each step is as long as it may be.
    moved = torch.cat([(p - q).reshape(-1) for p, q in zip(trained, run.network.parameters(), strict=True)])
    assert moved.norm() <= 3 * 0.1 * 1e-3 * 1.001


def test_a_bucket_without_an_optimizer_is_refused_with_its_name():
    weights = lambda p: torch.optim.SGD([q for name, q in p if "bias" not in name], lr=0.1)
    with pytest.raises(BadInput, match=r"given '4\.bias': optimizer got an empty parameter list"):
        alone(Run(optimizer=weights, options={"bucket_mb": A_TENSOR}), flat)


def test_a_schedule_that_needs_momentum_finds_it():
    def work(model):
        schedule = lr_scheduler.OneCycleLR(model.optimizer, max_lr=0.5, total_steps=10)
        for batch in batches(0, 3):
            loss_of(model, batch).backward()
            model.optimizer.step()
            schedule.step()
        optimizers = [part.optimizer for part in model.optimizer.optimizers]
        return {group["momentum"] for optimizer in optimizers for group in optimizer.param_groups}

    momenta = alone(Run(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)), work)
    assert all(0.85 <= momentum < 0.95 for momentum in momenta)


def test_a_scaler_that_is_set_too_late_is_refused():
    def work(model):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(loss_of(model, batches(0, 1)[0])).backward()
        with pytest.raises(BadInput, match="the scaler comes too late"):
            scaler.step(model.optimizer)

    alone(Run(), work)


# Averages and buffers.


def test_averages_are_those_of_the_living():
    run = Run(
        options={"on_loss": "continue", "bucket_mb": A_LAYER}, optimizer=lambda p: torch.optim.SGD(p, lr=0.0)
    )

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(rank)
        if rank == 1:
            model.close()
            return None
        run.train(model, rank, 0, 1)
        own_model = flat(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with model.averaged() as distance:
                average = flat(model)
            model.average()
        return own_model, average, distance, flat(model)

    results = [result for result in in_rank_threads(4, work) if result is not None]
    mean = torch.stack([own_model for own_model, *_ in results]).mean(0)
    for own_parameters, average, distance, after in results:
        assert torch.allclose(average, mean, rtol=0, atol=1e-12)
        assert torch.allclose(after, mean, rtol=0, atol=1e-12)
        assert distance == pytest.approx(float((own_parameters - mean).norm()), abs=1e-9)


def test_what_lies_between_mixed_buffers_stays_zero():
    """Else it would grow by a factor in every step."""
    torch.manual_seed(0)
    network = nn.Linear(4, 2).double()
    for name in ("first", "second"):  # 96 bytes each, and a gap of 32
        network.register_buffer(name, torch.ones(12).double())
    run = Run(network=network, options={"buffers": "mix"}, steps=30)

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank)
        gaps = []
        for block in model._engine.buckets:
            for flat_slot in (block.values, block.spare):
                is_gap = torch.ones_like(flat_slot, dtype=torch.bool)
                for view in [entry.view(is_gap) for entry in block.layout.entries]:
                    view.zero_()
                gaps.append(flat_slot[is_gap])
        return torch.cat(gaps)

    for gaps in in_rank_threads(2, work):
        assert gaps.numel() > 0 and not gaps.any()


def masked(value=-math.inf):
    """A network with a running statistic, and a mask as models with attention have it."""
    torch.manual_seed(0)
    network = Normed()
    network.register_buffer("mask", torch.full((3, 3), value).triu(1))
    return network.double()


@pytest.mark.parametrize("buffers", ["average", "mix"])
def test_buffers_that_are_not_finite_by_design_stay_out_of_averages_and_mixes(buffers):
    run = Run(network=masked(), options={"buffers": buffers})

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank)
        own_mean = model.module.norm.running_mean.clone()
        with model.averaged():
            average = model.module.norm.running_mean.clone()
        model.average()
        model.distance_to_average()
        assert torch.equal(model.module.mask, run.network.mask)
        return own_mean, average

    results = in_rank_threads(3, work)
    mean = torch.stack([own_model for own_model, _ in results]).mean(0)
    assert all(torch.allclose(average, mean, rtol=0, atol=1e-14) for _, average in results)


def test_ranks_that_would_average_other_buffers_are_named():
    def work(rank, rendezvous):
        with pytest.raises(StartError, match=r"parameters differs: \w+ on rank 0, \w+ on rank 1$"):
            Run(network=masked(-math.inf if rank == 0 else 0.0)).wrap(rendezvous)

    in_rank_threads(2, work)


# Where ranks are.


def test_the_address_of_the_store_is_one_that_other_machines_reach():
    """Names of the own machine often mean 127.0.1.1 on it."""
    notes = [RankRecord({}, "a", "127.0.1.1", "127.0.1.1", 1), RankRecord({}, "b", "10.0.0.2", "10.0.0.1", 2)]
    assert [process.address for process in _processes(notes)] == ["10.0.0.1", "10.0.0.2"]
    one_machine = [RankRecord({}, "a", "127.0.0.1", "127.0.0.1", 1)] * 2
    assert [process.address for process in _processes(one_machine)] == ["127.0.0.1"] * 2


def test_addresses_are_found_by_name_and_in_both_families():
    assert RankStoreRendezvous(0, 2, None, ("localhost", 1))._addresses()[0] in ("127.0.0.1", "::1")
    assert RankStoreRendezvous(0, 2, None, ("::1", 1))._addresses() == ("::1", "::1")


def test_processes_of_srun_without_torchrun_do_not_train_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    told = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "host", "SLURM_TASKS_PER_NODE": "4",
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match="srun has started 4 processes on 1 machine, but set no RANK"):
        RankStoreRendezvous.from_environment(1.0)


def test_an_initialized_group_is_enough():
    run, port = Run(steps=2), free_ports(1)

    def work(rank):
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        model = run.wrap(None)
        run.train(model, rank)
        values = flat(model).tolist()
        model.close()
        dist.destroy_process_group()
        return json.dumps(values)

    w = torch.tensor(weighted_graph("ring", None, 2).matrix())
    expected = run.oracle(2, lambda step: w)
    for rank, result in in_rank_processes(2, work).items():
        assert torch.allclose(
            torch.tensor(json.loads(result), dtype=torch.float64), expected[rank], rtol=0, atol=1e-12
        )


def test_torchrun_gives_the_number_of_ranks_of_a_machine(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert weighted_graph("alternating_exponential_ring", None, 4).graph.per_machine == 2


def test_a_group_is_ended_for_waiting_alone(monkeypatch):
    """Not for what a rank does before it looks for what was sent to it."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    swap = GroupExchange(None, (0, 0, 0), {}, {}, timeout=5.0)
    now[0] = 200.0
    assert swap.limit == 205.0
    now[0] = 203.0
    assert swap.limit == 205.0


# States that are not whole.


def without(state, *path):
    """A copy of the state without what is at the path."""
    key, *rest = path
    return {k: without(v, *rest) if k == key else v for k, v in state.items() if rest or k != key}


def with_(state, value, *path):
    key, *rest = path
    return {**state, key: with_(state[key], value, *rest) if rest else value}


def test_a_state_that_is_not_whole_is_refused_before_a_step(tmp_path):
    """Torch's optimizers begin without moments where there are none, and nobody notices."""
    run = Run(optimizer=lambda p: torch.optim.Adam(p, lr=0.05), steps=6)
    extra, first = "_extra_state", "0.weight"

    def work(model):
        run.train(model, 0, 0, 3)
        saved = model.state_dict()
        dcp.save(saved, checkpoint_id=tmp_path / "saved")
        damages = {
            "'0.weight' is not whole: .*exp_avg_sq": without(
                saved, extra, "optimizer", first, "state", "exp_avg"
            ),
            r"is not whole: \[5, 4\]: exp_avg \[5, 4\]": with_(
                saved, torch.zeros(1), extra, "optimizer", first, "state", "exp_avg"
            ),
            "has no optimizer state of parameter '0.weight'": without(saved, extra, "optimizer", first),
            "it has a parameter 'x'": with_(saved, {}, extra, "optimizer", "x"),
            "it has no schedules": without(saved, extra, "schedules"),
            "has a scaler, and this wrapper has no scaler": with_(saved, {"scale": 2.0}, extra, "scaler"),
        }
        for message, damaged in damages.items():
            with pytest.raises(BadInput, match=message):
                model.load_state_dict(damaged)
        model.load_state_dict(saved)
        run.train(model, 0, 3, 6)
        return flat(model)

    def train_on(model):
        target = model.state_dict()
        dcp.load(target, checkpoint_id=tmp_path / "saved")
        with pytest.raises(
            BadInput, match=r"\.bias' is not whole: .* was saved, .*no state is here; .*make a step"
        ):
            model.load_state_dict(target)
        run.train(model, 0, 0, 1)
        target = model.state_dict()
        dcp.load(target, checkpoint_id=tmp_path / "saved")
        model.load_state_dict(target)
        run.train(model, 0, 3, 6)
        return flat(model)

    with warnings.catch_warnings(action="ignore"):  # that torch.distributed has no group
        uninterrupted = alone(run, work)
        assert torch.equal(alone(run, train_on), uninterrupted)
