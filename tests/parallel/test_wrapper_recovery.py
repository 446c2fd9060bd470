"""DecentralizedDataParallel after errors on one rank, and after what one rank did alone."""

import pytest
import torch
from torch import nn

from decentnode.core.timeouts import Timeouts
from decentnode.errors import RunFailed
from decentnode.parallel.mixture import MixInput
from decentnode.parallel.rendezvous import ThreadRendezvous
from tests.support.wrapper_ranks import Run, batches, flat, in_rank_processes, in_rank_threads, loss_of

A_TENSOR = 1e-6
ENDED = "the last backward pass ended early, and the step with it"
SCALER = "scaler"


class Trap(nn.Module):
    """Passes on what comes, until it is armed: then it breaks there."""

    where = ""

    def forward(self, x):
        if self.where == "forward":
            raise ZeroDivisionError
        if self.where == "backward":
            x.register_hook(lambda gradient: 1 / 0)
        return x.view_as(x)  # else the wrapper's own hook is on the same tensor


def fragile_network():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), Trap(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2), Trap()]
    return nn.Sequential(*layers).double()


def with_scaler(options):
    """Each rank needs a scaler of its own."""
    if options.get(SCALER):
        return options | {SCALER: torch.amp.GradScaler("cpu", init_scale=8.0)}
    return options


def make_steps(model, some):
    """A step for each batch; gradients are dropped before it only where the wrapper does not."""
    scaler = model.options.scaler
    for batch in some:
        if model.options.update_in == "step":
            model.zero_grad()
        loss = loss_of(model, batch)
        (loss if scaler is None else scaler.scale(loss)).backward()
        model.optimizer.step()


class Breaking:
    """One rank's model whose step can be made to break somewhere; `wrap` of a `Run` for it."""

    def __init__(self, run, rendezvous):
        self.mixed_last = None
        self.model = run.wrap(rendezvous, before_mixing=self.mix_until_broken, **with_scaler(run.options))

    def mix_until_broken(self, mixture):
        if self.mixed_last is not None and mixture.bucket is self.mixed_last:
            raise ZeroDivisionError

    def step(self, where, batch):
        """A step that breaks `where`."""
        model, blocks = self.model, self.model._engine.buckets
        first, last = model.module[1], model.module[5]
        if where.startswith("mixing"):
            self.mixed_last = blocks[0 if where == "mixing first" else -1]
        if where == "optimizer":
            part = model.optimizer.optimizers[-1].optimizer
            usual, part.step = part.step, lambda: 1 / 0
        trap = {"forward": first, "backward": first, "loss": last}.get(where)
        if trap is not None:
            trap.where = "forward" if where == "forward" else "backward"
        with pytest.raises(ZeroDivisionError):
            make_steps(model, [batch])
        first.where = last.where = ""
        self.mixed_last = None
        if where == "optimizer":
            part.step = usual


PLACES = ["forward", "loss", "backward", "mixing first", "mixing last", "optimizer"]
CHOICES = {
    "one bucket": {},
    "buckets": {"bucket_mb": A_TENSOR},
    "clipped": {"clip_norm": 10.0, "bucket_mb": A_TENSOR, "in_flight": 1},
    "scaled": {SCALER: True, "bucket_mb": A_TENSOR},
    "late": {"scheme": "adapt_then_combine", "bucket_mb": A_TENSOR},
    "late, few in flight": {"scheme": "adapt_then_combine", "bucket_mb": A_TENSOR, "in_flight": 2},
    "in step": {"update_in": "step", "bucket_mb": A_TENSOR},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_an_error_on_one_rank_is_undone_by_a_saved_state(choice):
    run = Run(network=fragile_network(), options=CHOICES[choice] | {"deadline": 5.0})

    def work(rank, rendezvous, where=""):
        breaking = Breaking(run, rendezvous)
        model, mine = breaking.model, batches(rank, 4)
        make_steps(model, mine[:2])
        if where:
            saved = model.state_dict()
            if rank == 1:
                breaking.step(where, mine[2])
            else:
                make_steps(model, mine[2:3])
            model.load_state_dict(saved)
            assert model.step == 2
        make_steps(model, mine[2:])
        assert not model.endpoint.refused
        return flat(model)

    expected = torch.stack(in_rank_threads(3, work))
    for where in PLACES:
        results = in_rank_threads(3, lambda rank, rendezvous, where=where: work(rank, rendezvous, where))
        assert torch.equal(torch.stack(results), expected), where


def test_errors_on_several_ranks_are_undone_together():
    run = Run(network=fragile_network(), options={"deadline": 5.0}, topology="alternating_ring")

    def work(rank, rendezvous):
        breaking = Breaking(run, rendezvous)
        model = breaking.model
        run.train(model, rank, 0, 2)
        saved = model.state_dict()
        if rank == 3:
            run.train(model, rank, 2, 3)
        else:
            breaking.step(PLACES[rank], batches(rank, run.steps)[2])
        model.load_state_dict(saved)
        run.train(model, rank, 2)
        return flat(model)

    assert torch.equal(torch.stack(in_rank_threads(4, work)), run.models(4))


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("update_in", ["backward", "step"])
def test_an_error_amid_an_accumulation_is_undone_where_the_others_have_made_the_step(update_in, where):
    options = {"update_in": update_in, "deadline": 5.0}
    run = Run(network=fragile_network(), accumulation=2, options=options)

    def work(rank, rendezvous):
        breaking = Breaking(run, rendezvous)
        model = breaking.model
        run.train(model, rank, 0, 2)
        model.zero_grad()
        saved = model.state_dict()
        if rank == 1:
            with model.no_sync():
                breaking.step(where, batches(rank, 1)[0])
        else:
            run.train(model, rank, 2, 3)
        model.load_state_dict(saved)
        run.train(model, rank, 2)
        return flat(model)

    assert torch.equal(torch.stack(in_rank_threads(3, work)), run.models(3))


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("communication", ["zeromq", "torch_distributed"])
def test_errors_are_undone_between_processes(communication, where):
    options = {"communication": communication, "bucket_mb": A_TENSOR, "in_flight": 2, "deadline": 20.0}
    run = Run(network=fragile_network(), options=options)

    def work(rank):
        breaking = Breaking(run, None)
        model = breaking.model
        run.train(model, rank, 0, 2)
        if rank == 0:
            model(batches(rank, 1)[0][0])
        model.average()
        saved = model.state_dict()
        if rank == 1:
            breaking.step(where, batches(rank, run.steps)[2])
        else:
            run.train(model, rank, 2, 3)
        ways = []
        for _ in range(2):
            model.load_state_dict(saved)
            run.train(model, rank, 2)
            ways.append(flat(model).tolist())
        refused = dict(model.endpoint.refused)
        model.close()
        return ways, refused

    for (first, second), refused in in_rank_processes(3, work).values():
        assert first == second
        assert refused == {}


def test_a_model_that_was_not_finite_is_undone():
    run = Run(options={"bucket_mb": A_TENSOR, "deadline": 5.0})

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2)
        saved = model.state_dict()
        if rank == 1:
            with torch.no_grad():
                model.module[2].bias[1] = float("nan")
        model.resend()
        with pytest.raises(RunFailed, match=r"rank 1: its model is not finite: nan in 2\.bias"):
            run.train(model, rank, 2, 3)
        model.load_state_dict(saved)
        run.train(model, rank, 2)
        return flat(model)

    assert torch.equal(torch.stack(in_rank_threads(3, work)), run.models(3))


@pytest.mark.parametrize("options", [{"clip_norm": 10.0}, {}, {"update_in": "step"}])
def test_nothing_continues_from_a_step_that_ended_early(options):
    run = Run(network=fragile_network(), options=options)

    def work(rank, rendezvous):
        breaking = Breaking(run, rendezvous)
        model, batch = breaking.model, batches(rank, 1)[0]
        loss = loss_of(model, batch)
        breaking.step("optimizer" if options.get("update_in") else "backward", batch)
        saved = torch.nn.Module.state_dict(model.module)
        with pytest.raises(RunFailed, match=ENDED), model.no_sync():
            loss_of(model, batch)
        for act in (loss.backward, model.resend):
            with pytest.raises(RunFailed, match=ENDED):
                act()
        if options.get("update_in"):
            with pytest.raises(RunFailed, match=ENDED):
                model.optimizer.step()
        with pytest.raises(RunFailed, match="averages are made between steps"):
            model.average()
        with pytest.raises(RunFailed, match="a state is saved between steps"):
            model.state_dict()
        assert model.step == 0
        return saved

    in_rank_threads(1, work)


def test_a_pass_that_died_before_any_gradient_can_be_made_again():
    run = Run(network=fragile_network(), steps=1)

    def work(rank, rendezvous):
        breaking = Breaking(run, rendezvous)
        breaking.step("forward", batches(rank, 1)[0])
        breaking.step("loss", batches(rank, 1)[0])
        run.train(breaking.model, rank)
        return flat(breaking.model)

    assert torch.equal(torch.stack(in_rank_threads(2, work)), run.models(2))


@pytest.mark.parametrize("method", ["load_state_dict", "averaged", "average", "resend"])
@pytest.mark.parametrize("options", [{}, {"bucket_mb": A_TENSOR, "in_flight": 1}])
def test_a_forward_pass_on_one_rank_alone_changes_nothing(method, options):
    run = Run(options=options | {"deadline": 5.0})

    def work(rank, rendezvous, looks):
        model = run.wrap(rendezvous)
        saved = model.state_dict()
        for step in range(run.steps):
            if looks and rank == step % 3:
                model(batches(rank, 1)[0][0])
            if method == "load_state_dict":
                model.load_state_dict(saved if step == 0 else model.state_dict())
            elif method == "averaged":
                with model.averaged():
                    pass
            else:
                getattr(model, method)()
            run.train(model, rank, step, step + 1)
        assert not model.endpoint.refused
        return flat(model)

    models, expected = (
        in_rank_threads(3, lambda rank, rendezvous, looks=looks: work(rank, rendezvous, looks))
        for looks in (1, 0)
    )
    assert torch.equal(torch.stack(models), torch.stack(expected))


@pytest.mark.slow
def test_ranks_at_different_steps_do_not_continue_together(monkeypatch):
    """An error outside of the wrapper's passes, as in a data loader, is not seen by it."""
    monkeypatch.setattr(Timeouts, "exchange_queue", lambda deadline: 2 * deadline)
    run = Run(options={"deadline": 0.5})

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2)
        saved = model.state_dict()
        if rank != 1:
            run.train(model, rank, 2, 3)
        with pytest.raises(RunFailed, match="waited 1 s for"):
            model.load_state_dict(saved)

    in_rank_threads(3, work)


def with_nan_on_rank_2(act, options=None):
    """What each of three ranks says of averages when a later share of rank 2's model is not finite."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 2)).double()
    run = Run(network=network, options={"deadline": 5.0} | (options or {}))

    def work(rank, rendezvous):
        model = run.wrap(rendezvous)
        run.train(model, rank, 0, 2)
        saved = model.state_dict()
        if rank == 2:
            with torch.no_grad():
                model.module[0].weight[3, 1] = float("nan")
        try:
            act(model)
            message = ""
        except RunFailed as error:
            message = str(error)
        model.load_state_dict(saved)
        assert not model.endpoint.refused
        run.train(model, rank, 2)
        return message, flat(model)

    results = in_rank_threads(3, work)
    assert torch.equal(torch.stack([parameters for _, parameters in results]), run.models(3))
    return [message for message, _ in results]


@pytest.mark.parametrize("options", [{}, {"on_loss": "continue", "bucket_mb": A_TENSOR}])
def test_an_average_with_a_model_that_is_not_finite_is_refused_alike_on_all_ranks(options):
    messages = with_nan_on_rank_2(lambda model: model.average(), options)
    reason = "rank 2: its model is not finite: nan in 0.weight"
    assert messages == [f"rank {rank}, step 2: {reason}" for rank in range(3)]


def test_what_is_not_finite_in_a_share_is_named():
    network = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 2)).double()
    block = Run(network=network).wrap(ThreadRendezvous(1).join(0))._engine.buckets[0]
    start = block.layout.numel // 2
    values = block.values[start:].clone()
    values[-1] = float("nan")
    mixture = MixInput(0, 0, {0: 0.5, 1: 0.5}, values, {1: values}, block, start)
    with pytest.raises(ValueError, match=r"nan in 0\.weight"):
        mixture.write(torch.empty_like(values))
