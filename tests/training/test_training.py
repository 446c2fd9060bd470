"""Local steps against plain torch loops, bit for bit, and everything a resume needs."""

import asyncio
import copy
import math
from itertools import chain

import pytest
import torch
from torch import nn

from decentnode.core.rng import generator, key
from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.datasets.base import Samples
from decentnode.errors import BadInput, RunFailed
from decentnode.models import LeNet, Mlp, ResNet18, initial_model
from decentnode.training.minibatches import Minibatches, Shard
from decentnode.training.settings import Factory, TrainingSettings
from decentnode.training.training import Hooks, Training

SGD = Factory(torch.optim.SGD, {"lr": 0.1})
SEED, RANK = 7, 3


def toy_samples(count=10, shape=(4,), classes=3):
    drawn = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *shape, generator=drawn)
    return Samples(inputs, torch.randint(classes, (count,), generator=drawn))


def toy_net():
    return initial_model(Mlp((6,)), (4,), 3, seed=1)


def dropout_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3))


def training_of(module, optimizer=SGD, samples=None, indices=None, hooks=None, mix_buffers=False, **settings):
    if not {"steps_per_round", "epochs_per_round"} & settings.keys():
        settings["steps_per_round"] = 4
    options = TrainingSettings(optimizer, **({"batch_size": 4} | settings))
    dtype = next(module.parameters()).dtype
    layout = ParameterLayout.of(module, mix_buffers, options.channels_last(module), dtype)
    vector = Vector(
        ModuleTensors(module, layout), tuple(torch.empty(layout.numel, dtype=dtype) for _ in range(2))
    )
    samples = toy_samples() if samples is None else samples
    indices = torch.arange(len(samples)) if indices is None else indices
    return Training(vector, options, Shard(samples, indices, SEED, RANK), hooks or Hooks())


def run(training, rounds, flip=False):
    reports = []
    for round in rounds:
        reports.append(asyncio.run(training.train(round)))
        if flip:
            training.vector.spare.copy_(training.vector.values)
            training.vector.flip()
    return reports


def resumed_like_straight(fresh):
    """Two trainings of four rounds, one straight and one resumed after two, whose models are the same."""
    straight, resumed = fresh(), fresh()
    run(straight, range(2))
    state, values = copy.deepcopy(straight.state_dict()), straight.vector.values.clone()
    run(straight, range(2, 4))
    resumed.vector.values.copy_(values)
    resumed.load_state_dict(state)
    torch.rand(3)
    run(resumed, range(2, 4))
    assert torch.equal(straight.vector.values, resumed.vector.values)
    return straight, resumed


def batches_of(samples, batch_size):
    """The minibatches as the docstrings promise them, drawn without the code under test."""
    epoch = 0
    while True:
        order = torch.from_numpy(generator(SEED, "shuffle", RANK, epoch).permutation(len(samples)))
        for start in range(0, len(samples), batch_size):
            yield samples.batch(order[start : start + batch_size])
        epoch += 1


def plain_loop(module, optimizer, samples, rounds, steps=4, batch_size=4, scheduler=None):
    made = optimizer.make(list(module.parameters()))
    schedule = scheduler.make(made) if scheduler else None
    batches = batches_of(samples, batch_size)
    for round in range(rounds):
        for step in range(steps):
            torch.manual_seed(key(SEED, "step", round, RANK, step))
            inputs, labels = next(batches)
            made.zero_grad()
            nn.functional.cross_entropy(module(inputs), labels).backward()
            made.step()
        if schedule:
            schedule.step()
    return module


def same_parameters(left, right):
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD,
        Factory(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True}),
        Factory(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
        Factory(torch.optim.Adam, {"lr": 0.01}),
        Factory(torch.optim.Adam, {"lr": 0.01, "foreach": True, "amsgrad": True}),
        Factory(torch.optim.AdamW, {"lr": 0.01, "fused": True}),
        Factory(torch.optim.Adagrad, {"lr": 0.01}),
        Factory(torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    ],
    ids=repr,
)
def test_steps_equal_a_plain_loop_bit_for_bit_also_when_the_slots_take_turns(optimizer, flip):
    module = toy_net()
    run(training_of(module, optimizer), range(3), flip)
    assert same_parameters(module, plain_loop(toy_net(), optimizer, toy_samples(), rounds=3))


def test_an_optimizer_that_evaluates_several_times_in_a_step():
    module = toy_net()
    options = {"lr": 0.1, "max_iter": 3}
    run(training_of(module, Factory(torch.optim.LBFGS, options)), range(1), flip=True)
    plain = toy_net()
    optimizer = torch.optim.LBFGS(plain.parameters(), **options)
    batches = batches_of(toy_samples(), 4)
    for _ in range(4):
        inputs, labels = next(batches)

        def closure(inputs=inputs, labels=labels):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(plain(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert same_parameters(module, plain)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("fused", [False, True])
def test_both_memory_formats_learn_the_same(memory_format, fused):
    optimizer = Factory(torch.optim.AdamW, {"lr": 1e-3, "fused": fused, "eps": 1e-3})
    samples = toy_samples(8, (1, 8, 8))
    module, plain = (initial_model(LeNet(), (1, 8, 8), 3, seed=1) for _ in range(2))
    training = training_of(module, optimizer, samples, steps_per_round=2, memory_format=memory_format)
    run(training, range(2), flip=True)
    plain_loop(plain, optimizer, samples, rounds=2, steps=2)
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert module[4].weight.is_contiguous() == (memory_format == "contiguous")


def test_dropout_depends_on_seed_round_rank_and_step_only():
    module = dropout_net()
    training = training_of(module)
    for round in range(2):
        torch.rand(round + 1)  # somebody else in this process draws numbers
        run(training, [round])
    assert same_parameters(module, plain_loop(dropout_net(), SGD, toy_samples(), rounds=2))
    in_later_rounds = dropout_net()
    run(training_of(in_later_rounds), [5, 6])
    assert not same_parameters(module, in_later_rounds)


def test_an_epoch_uses_every_sample_once_and_runs_on_over_rounds():
    samples = Samples(torch.arange(10.0)[:, None], torch.zeros(10, dtype=torch.int64))
    indices = torch.tensor([1, 2, 3, 5, 7, 8, 9])
    minibatches = Minibatches(Shard(samples, indices, SEED, RANK), batch_size=3)
    assert minibatches.per_epoch == 3
    drawn = [minibatches.next().fields[0].flatten().tolist() for _ in range(6)]
    assert [len(batch) for batch in drawn] == [3, 3, 1, 3, 3, 1]
    first, second = list(chain(*drawn[:3])), list(chain(*drawn[3:]))
    assert sorted(first) == sorted(second) == indices.tolist() and first != second


@pytest.mark.parametrize(("steps", "taken"), [(2, [4, 4]), (5, [4, 4, 2, 4, 4])])
def test_a_round_that_reshuffles_takes_the_first_minibatches_of_a_new_order(steps, taken):
    shard, settings = Shard(numbered(10), torch.arange(10), SEED, RANK), settings_of("reshuffle")
    straight, resumed = (settings.make_minibatches(shard) for _ in range(2))
    orders = []
    for _ in range(3):
        straight.begin_round()
        batches = [straight.next().fields[0].flatten().tolist() for _ in range(steps)]
        assert [*map(len, batches)] == taken
        orders.append([*chain(*batches[:3])])
        assert len({*orders[-1]}) == len(orders[-1]), "no sample twice before all have come"
    assert len({*map(tuple, orders)}) == 3
    resumed.load_state_dict(straight.state_dict())
    for minibatches in (straight, resumed):
        minibatches.begin_round()
    assert torch.equal(straight.next().fields[0], resumed.next().fields[0])


@pytest.mark.parametrize(
    ("samples", "accumulate", "sizes"),
    [(10, 1, [4, 4]), (8, 1, [4, 4]), (11, 2, [4, 4]), (3, 1, [3]), (7, 2, [4, 3])],
)
def test_what_fills_no_step_is_left_out(samples, accumulate, sizes):
    shard = Shard(numbered(samples), torch.arange(samples), SEED, RANK)
    minibatches = settings_of("epochs", drop_last=True, accumulate=accumulate).make_minibatches(shard)
    assert minibatches.per_epoch == len(sizes)
    drawn = [minibatches.next().fields[0].flatten().tolist() for _ in range(20 * len(sizes))]
    assert [*map(len, drawn)] == 20 * sizes
    assert {*chain(*drawn)} == {*range(samples)}, "each epoch leaves out others"


def numbered(count):
    return Samples(torch.arange(float(count))[:, None], torch.zeros(count, dtype=torch.int64))


def settings_of(minibatches, **options):
    optimizer = Factory(torch.optim.SGD, {"lr": 0.1})
    return TrainingSettings(optimizer, batch_size=4, steps_per_round=2, minibatches=minibatches, **options)


@pytest.mark.parametrize(("samples", "sizes"), [(9, [4, 5]), (10, [4, 4, 2]), (5, [5]), (1, [1])])
def test_a_last_batch_too_small_for_the_model_is_merged_into_the_one_before(samples, sizes):
    shard = Shard(toy_samples(), torch.arange(samples), SEED, RANK, least_batch=2)
    straight, resumed = Minibatches(shard, 4), Minibatches(shard, 4)
    assert straight.per_epoch == len(sizes)
    drawn = [len(straight.next()) for _ in range(2 * len(sizes))]
    assert drawn == sizes + sizes
    resumed.load_state_dict(straight.state_dict())
    assert torch.equal(straight.next().fields[0], resumed.next().fields[0])


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 4])
def test_minibatches_resume_where_they_were(taken):
    shard = Shard(toy_samples(), torch.arange(7), SEED, RANK)
    straight, resumed = Minibatches(shard, 3), Minibatches(shard, 3)
    for _ in range(taken):
        straight.next()
    resumed.load_state_dict(straight.state_dict())
    for _ in range(4):
        assert torch.equal(straight.next().fields[0], resumed.next().fields[0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"steps_per_round": 2}, [2, 2, 2, 2]),
        ({"steps_per_round": (9, 9, 9, 1)}, [1, 1, 1, 1]),
        ({"epochs_per_round": 2.0}, [14, 14, 14, 14]),
        ({"epochs_per_round": 0.5}, [3, 4, 3, 4]),
        ({"epochs_per_round": (9.0, 9.0, 9.0, 0.1)}, [0, 1, 1, 0]),
    ],
)
def test_how_many_steps_a_round_has(settings, expected):
    chosen = TrainingSettings(SGD, **settings)
    assert [chosen.steps(RANK, round, steps_per_epoch=7) for round in range(4)] == expected
    assert chosen.steps(RANK, round=0, steps_per_epoch=0) == 0


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7, 1.1])
def test_fractions_of_epochs_are_lost_nowhere(rate):
    chosen = TrainingSettings(SGD, epochs_per_round=rate)
    assert sum(chosen.steps(0, round, steps_per_epoch=3) for round in range(1000)) == round(rate * 3000)


@pytest.mark.parametrize(("seconds", "expected"), [(None, 5), (0.5, 1), (2.0, 2), (3.9, 3), (100.0, 5)])
def test_as_many_steps_as_fit_into_the_seconds_of_a_round(seconds, expected, monkeypatch):
    """Steps of one second each, by a clock that a step advances."""
    now = [0.0]
    monkeypatch.setattr("decentnode.core.clock.Clock.now", lambda self: now[0])
    hooks = Hooks(beat=lambda: now.__setitem__(0, now[0] + 1.0))
    training = training_of(toy_net(), hooks=hooks, steps_per_round=5, seconds_per_round=seconds)
    for round in range(2):
        assert asyncio.run(training.train(round)).steps == expected


def test_the_report_has_the_mean_over_samples_not_over_minibatches():
    samples = toy_samples(5)
    module = toy_net()
    frozen = Factory(torch.optim.SGD, {"lr": 0.0})
    (report,) = run(training_of(module, frozen, samples, steps_per_round=2), [0])
    expected = nn.functional.cross_entropy(module(samples.inputs), samples.labels).item()
    assert (report.steps, report.samples) == (2, 5)
    assert report.loss == pytest.approx(expected, rel=1e-6)


def test_a_rank_without_samples_does_not_train_but_follows_the_schedule(recwarn):
    module = toy_net()
    none = torch.empty(0, dtype=torch.int64)
    schedule = Factory(torch.optim.lr_scheduler.ExponentialLR, {"gamma": 0.5})
    training = training_of(module, indices=none, scheduler=schedule, epochs_per_round=1.0)
    (report,) = run(training, [0])
    assert (report.loss, report.steps, report.samples) == (None, 0, 0)
    assert same_parameters(module, toy_net())
    assert training.learning_rate == pytest.approx(0.05)
    assert not recwarn.list


def test_a_round_without_local_steps_has_no_rate():
    """Schemes that make steps of their own at the round's rate would move a model that rests."""
    training = training_of(toy_net(), hooks=Hooks(trains=lambda round: round != 1))
    assert [report.learning_rate for report in run(training, range(3))] == [0.1, 0.0, 0.1]
    training = training_of(toy_net(), train_every=2)
    assert [report.learning_rate for report in run(training, range(3))] == [0.1, 0.0, 0.1]


def test_the_schedule_advances_once_per_round():
    schedule = Factory(torch.optim.lr_scheduler.StepLR, {"step_size": 2, "gamma": 0.1})
    module = toy_net()
    training = training_of(module, scheduler=schedule)
    rates = []
    for round in range(4):
        rates.append(training.learning_rate)
        (report,) = run(training, [round])
        assert report.learning_rate == rates[-1]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01])
    assert same_parameters(module, plain_loop(toy_net(), SGD, toy_samples(), rounds=4, scheduler=schedule))


def test_a_schedule_that_watches_the_loss():
    plateau = Factory(torch.optim.lr_scheduler.ReduceLROnPlateau, {"patience": 0, "factor": 0.5})
    slow = Factory(torch.optim.SGD, {"lr": 1e-6})
    training = training_of(toy_net(), slow, scheduler=plateau, epochs_per_round=1.0)
    run(training, range(3))
    assert training.learning_rate == pytest.approx(0.25e-6)


def test_the_scheme_sees_the_flat_gradient_before_it_is_clipped():
    seen = []

    def adjust(gradient, vector, step):
        seen.append((gradient.norm().item(), vector.clone(), step))
        gradient.fill_(1.0)

    training = training_of(toy_net(), hooks=Hooks(adjust), clip_norm=0.5)
    start = training.vector.values.clone()
    run(training, [0])
    d = start.numel()
    moved = start - training.vector.values
    assert [step for _, _, step in seen] == [0, 1, 2, 3]
    assert torch.equal(seen[0][1], start)
    assert seen[0][0] > 0 and seen[0][0] != pytest.approx(math.sqrt(d))
    assert torch.allclose(moved, torch.full((d,), 4 * 0.1 * 0.5 / math.sqrt(d)), atol=1e-6)


def test_clipping_leaves_small_gradients_alone_and_bounds_large_ones():
    free, loose, tight = toy_net(), toy_net(), toy_net()
    run(training_of(free), [0])
    run(training_of(loose, clip_norm=1e6), [0])
    training = training_of(tight, clip_norm=0.01)
    run(training, [0])
    assert same_parameters(free, loose)
    assert training.vector.gradient.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_the_event_loop_is_given_back_after_every_step():
    calls = []

    async def pause():
        calls.append(None)

    run(training_of(toy_net(), hooks=Hooks(pause=pause), steps_per_round=3), [0])
    assert len(calls) == 3


def test_a_loss_that_is_not_finite_ends_the_run_and_is_located():
    samples = toy_samples()
    samples.inputs.mul_(1e30)
    with pytest.raises(RunFailed) as caught:
        run(training_of(toy_net(), Factory(torch.optim.SGD, {"lr": 1e30}), samples), [12])
    assert str(caught.value) == (
        "rank 3, round 13, step 2: the loss is nan; "
        "a learning rate below 1e+30 or training.clip_norm would help"
    )


def test_training_mode_is_on_in_every_round():
    module = dropout_net()
    training = training_of(module)
    module.eval()
    run(training, [0])
    assert module.training


@pytest.mark.parametrize("mix_buffers", [False, True])
@pytest.mark.parametrize(
    "schedule", [None, Factory(torch.optim.lr_scheduler.CosineAnnealingLR, {"T_max": 9})]
)
def test_a_resumed_node_continues_bit_for_bit(mix_buffers, schedule):
    def fresh():
        module = initial_model(ResNet18("batch", width=2), (1, 8, 8), 3, seed=1)
        optimizer = Factory(torch.optim.Adam, {"lr": 1e-3})
        samples = toy_samples(10, (1, 8, 8))
        options = {"scheduler": schedule, "steps_per_round": 2, "mix_buffers": mix_buffers}
        return training_of(module, optimizer, samples, **options)

    straight, resumed = resumed_like_straight(fresh)
    buffers = zip(straight.module.buffers(), resumed.module.buffers(), strict=True)
    assert all(torch.equal(a, b) for a, b in buffers)
    assert straight.learning_rate == resumed.learning_rate


def test_an_unknown_option_of_an_optimizer_is_one_line():
    with pytest.raises(BadInput) as caught:
        training_of(toy_net(), Factory(torch.optim.SGD, {"lrr": 0.1}))
    assert str(caught.value) == "SGD: SGD.__init__() got an unexpected keyword argument 'lrr'"


@pytest.mark.parametrize(("width", "is_safe"), [(2, False), (8, False), (16, True), (64, True)])
def test_channels_last_is_not_chosen_where_a_gradient_would_overwrite_foreign_memory(width, is_safe):
    network = initial_model(ResNet18("batch", width=width), (1, 8, 8), 3, seed=1)
    assert TrainingSettings(SGD, steps_per_round=1).channels_last(network) == is_safe


def test_channels_last_is_chosen_by_the_network():
    image, plain = LeNet().build((1, 8, 8), 3), toy_net()
    chosen = {
        f: TrainingSettings(SGD, steps_per_round=1, memory_format=f)
        for f in ("auto", "contiguous", "channels_last")
    }
    assert [chosen[f].channels_last(image) for f in chosen] == [True, False, True]
    assert [chosen[f].channels_last(plain) for f in chosen] == [False, False, True]


def test_an_optimizer_that_needs_contiguous_weights_trains_convolutions_too():
    samples = toy_samples(8, (3, 8, 8))
    module = LeNet().build((3, 8, 8), 3)
    lbfgs = Factory(torch.optim.LBFGS, {"lr": 0.1, "max_iter": 2})
    (report,) = run(training_of(module, lbfgs, samples, steps_per_round=1), [0])
    assert report.steps == 1 and math.isfinite(report.loss)
