"""Correlated noise: C by closed forms and published optima, what a sample can move, how it continues."""

import copy
from math import ceil

import dp_accounting
import networkx
import numpy as np
import pytest
import torch

from decentnode.core.registry import GRAPHS
from decentnode.core.rng import SeededSource
from decentnode.errors import BadInput, RunFailed
from decentnode.graph.mixing import MetropolisHastings, Uniform, WeightedGraph
from decentnode.graph.networkx_graph import from_networkx
from decentnode.node.privacy.workload import gram_of
from decentnode.training.privacy.accountants import ACCOUNTANTS, Spending
from decentnode.training.privacy.correlation import (
    AntiPgd,
    CorrelatedNoise,
    Factorized,
    Independent,
    Participation,
    SquareRoot,
)
from decentnode.training.privacy.dp_sgd import DpSgd
from tests.training.privacy.test_dp_sgd import SIZE, gram, run, training_of

STEPS, PERIOD = 20, 4
CYCLES = Participation(STEPS, PERIOD, is_drawn=False)
SOME = networkx.convert_node_labels_to_integers(networkx.florentine_families_graph())
METROPOLIS = MetropolisHastings()


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch, tmp_path):
    """So that each C is computed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def weighted(name, nodes=8, mixing=METROPOLIS):
    return WeightedGraph(GRAPHS.find(name)(nodes=nodes), mixing)


GRAPHS_OF_PAPER = {
    "ring": (weighted("ring"), 677.9208299257713, 1424.9243712258933, 13856.834454762997, 742.0317927311166),
    "exponential": (
        weighted("exponential", mixing=Uniform()),
        562.4993698916268, 1172.2504494056814, 12245.96340793023, 637.0858179495924,
    ),
    "florentine": (
        WeightedGraph(from_networkx(SOME), METROPOLIS),
        1304.8659158834246, 2652.520304029113, 27276.15217872703, 1405.2715061455172,
    ),
    "complete": (
        weighted("fully_connected"), 387.54616448896104, 1050.0, 4400.0, 438.9554760697992,
    ),
}  # fmt: skip
"""sens(C)^2 tr(C^-T G C^-1) of the best C, I, tril(1) and the square root with 4 diagonals: of 20 rounds in
which a sample takes part 5 times. Computed with the code of Bellet et al. (2026); of the best C with G in
place of its factor, for which that code has another matrix.
"""


def loss(correlation, participation, band, of_graph):
    strategy = correlation.strategy(participation, band, lambda: of_graph)
    return strategy.sensitivities[-1] ** 2 * strategy.error(of_graph)


@pytest.mark.parametrize("name", GRAPHS_OF_PAPER)
def test_losses_and_sensitivities_are_those_of_the_authors(name):
    graph, *expected = GRAPHS_OF_PAPER[name]
    of_graph = gram_of(graph, [1] * STEPS)
    choices = (Factorized(), STEPS), (Independent(), 1), (AntiPgd(), STEPS), (SquareRoot(), 4)
    found = [loss(correlation, CYCLES, band, of_graph) for correlation, band in choices]
    assert found == pytest.approx(expected, rel=1e-8)
    sensitivities = [
        CYCLES.sensitivity(correlation.matrix(CYCLES, band, lambda: of_graph))[-1]
        for correlation, band in choices
    ]
    assert sensitivities == pytest.approx([1, 5**0.5, 14.832396974191326, 2.7278941053493995], rel=1e-8)
    exact = CYCLES.sensitivity(SquareRoot().matrix(CYCLES, STEPS, lambda: of_graph))[-1]
    assert exact == pytest.approx(4.525603376035827, rel=1e-8)


def test_few_diagonals_cost_little_on_64_nodes():
    """The published optimum with 100 diagonals, and what is lost with fewer."""
    of_graph = gram_of(weighted("ring", 64), [1] * 100)
    participation = Participation(100, 20, is_drawn=False)
    losses = {1: 125739.43148721501, 2: 74608.49531729317, 5: 45072.924343388724, 20: 31741.4184911035}
    for band, expected in (losses | {100: 30867.398736683088}).items():
        assert loss(Factorized(), participation, band, of_graph) == pytest.approx(expected, rel=1e-7)


def test_the_workload_is_what_noise_moves_with_several_steps_and_changing_graphs():
    """Against the map of all noise to all models, row by row."""
    for graph in (
        weighted("ring", 5),
        weighted("exponential", 6, Uniform()),
        weighted("one_peer_exponential", 8, Uniform()),
    ):
        n, steps = graph.num_nodes, [2, 0, 3, 1]
        total = sum(steps)
        models, moved, step = np.zeros((n, total * n)), [], 0
        for round, count in enumerate(steps):
            for local in range(count):
                models[np.arange(n), step * n + np.arange(n)] = 1
                step += 1
                if local < count - 1:
                    moved.append(models.copy())
            models = graph.matrix(round) @ models
            moved.append(models.copy())
        whole = np.concatenate(moved)
        found = gram_of(graph, steps)
        expected = sum(whole[:, i::n].T @ whole[:, i::n] for i in range(n))
        np.testing.assert_allclose(found, expected, atol=1e-12)
        # So the trace is the expected squared distance to the models of a run without noise.
        strategy = Factorized().strategy(
            Participation(total, 2, is_drawn=False), total, lambda found=found: found
        )
        noise = np.kron(np.linalg.inv(strategy.matrix), np.eye(n))
        assert strategy.error(found) == pytest.approx(((whole @ noise) ** 2).sum(), rel=1e-10)


def test_a_sample_moves_no_more_than_the_sensitivity():
    """By all signs of its gradients, in the first steps of a run, too; for a best C with equality."""
    of_graph = gram_of(GRAPHS_OF_PAPER["ring"][0], [1] * STEPS)
    for correlation in (Factorized(), AntiPgd(), SquareRoot()):
        strategy = correlation.strategy(CYCLES, STEPS, lambda: of_graph)
        for steps in (1, 4, 9, STEPS):
            most = 0.0
            for phase in range(min(PERIOD, steps)):
                mine = np.arange(phase, steps, PERIOD)
                signs = np.array(np.meshgrid(*[[-1, 1]] * len(mine))).reshape(len(mine), -1)
                moves = np.linalg.norm(strategy.matrix[:steps, mine] @ signs, axis=0)
                most = max(most, moves.max())
            assert most <= strategy.sensitivities[steps - 1] + 1e-12
            if steps == STEPS:
                assert most == pytest.approx(strategy.sensitivities[-1], rel=1e-9)
        assert (np.diff(strategy.sensitivities) >= 0).all()
        assert (strategy.matrix**2).sum(0).max() == pytest.approx(1)


def plan_of(correlation, size=200, batch=10, steps=40, **options):
    options = {"clip": 1.0, "delta": 1e-4, "epsilon": 3.0} | options
    return DpSgd(correlation=correlation, **options).plan(size, batch, (1,) * steps, lambda: gram(steps))


@pytest.mark.parametrize("sampling", ["poisson", "cyclic"])
def test_at_an_equal_epsilon_the_best_is_never_worse_than_independent_noise(sampling):
    errors = []
    for batch, steps in ((10, 40), (50, 40), (10, 7)):
        plain = plan_of(Independent(), sampling=sampling, batch=batch, steps=steps)
        best = plan_of(Factorized(), sampling=sampling, batch=batch, steps=steps)
        assert best.epsilon == pytest.approx(3.0, abs=0.02)
        plain_error = plain.noise**2 * np.trace(gram(steps))
        errors.append(best.noise**2 * best.strategy.error(gram(steps)) / plain_error)
    assert max(errors) <= 1.001 and min(errors) < 0.8


def test_epsilon_is_that_of_the_mechanism():
    poisson = plan_of(Factorized(band=4), noise=2.0, epsilon=None)
    spending = Spending(4 * 10 / 200, 2.0, ceil(40 / 4))
    assert (poisson.rate, poisson.period, poisson.strategy.kept) == (0.2, 4, 3)
    assert np.allclose((poisson.strategy.matrix**2).sum(0), 1)
    assert poisson.epsilon == ACCOUNTANTS["rdp"].epsilon([spending], 1e-4)
    cyclic = plan_of(Independent(), noise=2.0, epsilon=None, sampling="cyclic")
    assert cyclic.epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0 / 2**0.5, 1e-4), rel=1e-9)
    dense = plan_of(Factorized(band="dense"), sampling="cyclic", epsilon=1.5)
    assert dense.epsilon == pytest.approx(1.5, rel=1e-6) and dense.strategy.kept == 39
    spent = [DpSgd(1.0, 1e-4, 1.0, sampling="cyclic").spent(dense, steps, 1e-4) for steps in range(41)]
    assert spent[0] == 0 and spent[-1] == dense.epsilon and np.all(np.diff(spent) >= 0)


@pytest.mark.parametrize(
    "correlation", [Factorized(band=3), SquareRoot(band=4), AntiPgd(), Factorized(band="dense")]
)
def test_noise_is_the_solution_of_c_n_is_z_and_continues_exactly(correlation):
    participation = Participation(12, 3, is_drawn=False)
    band = correlation.bands(12, None)[0]
    strategy = correlation.strategy(participation, band, lambda: gram(12))
    assert strategy.kept == (1 if isinstance(correlation, AntiPgd) else band - 1)
    source, noise = SeededSource(1, 0), CorrelatedNoise(strategy, torch.float64)
    rows = []
    for step in range(12):
        if step == 7:
            saved = copy.deepcopy((source.state_dict(), noise.state_dict()))
            source, noise = SeededSource(1, 0), CorrelatedNoise(strategy, torch.float64)
            source.load_state_dict(saved[0])
            noise.load_state_dict(saved[1])
        rows.append(noise.draw(source, 5))
        assert len(noise.kept) <= strategy.kept
    again = SeededSource(1, 0)
    drawn = torch.stack([again.normal(5) for _ in range(12)]).numpy()
    np.testing.assert_allclose(strategy.matrix @ torch.stack(rows).numpy(), drawn, atol=1e-12)


def test_one_diagonal_is_dp_sgd_bit_for_bit():
    plain, factorized = training_of(), training_of(correlation=Factorized(band=1))
    for training in (plain, factorized):
        run(training, 0, 1, 2)
    assert torch.equal(plain.vector.values, factorized.vector.values)
    assert plain.epsilon == factorized.epsilon
    assert plain.private.epsilon == factorized.private.epsilon > 0


@pytest.mark.parametrize("options", [{}, {"sampling": "cyclic"}])
def test_samples_take_part_as_planned_and_a_saved_node_continues(options):
    straight = training_of(correlation=Factorized(band=5), **options)
    taken = []
    several = straight.minibatches.several
    straight.minibatches.several = lambda count: taken.append(several(count)) or taken[-1]
    run(straight, 0, 1, 2)
    rows = [{tuple(row) for batch in step for row in batch.fields[0].tolist()} for step in taken]
    assert all(rows[t].isdisjoint(rows[s]) for t in range(12) for s in range(t) if (t - s) % 5)
    if options:
        assert all(rows[t] == rows[t % 5] for t in range(12))
        assert set.union(*rows) and sum(map(len, rows[:5])) == SIZE
    first, second = (training_of(correlation=Factorized(band=5), **options) for _ in range(2))
    run(first, 0, 1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.vector.values.copy_(first.vector.values)
    run(second, 2)
    assert torch.equal(second.vector.values, straight.vector.values)
    assert second.private.epsilon == straight.private.epsilon


def test_what_was_planned_is_read_again(tmp_path, monkeypatch):
    first = plan_of(Factorized(band=4)).strategy.matrix
    monkeypatch.setattr("decentnode.training.privacy.correlation.best_gram", lambda *_: 1 / 0)
    assert np.array_equal(plan_of(Factorized(band=4)).strategy.matrix, first)
    for kept in (tmp_path / "decentnode").iterdir():
        kept.write_bytes(b"torn")
    with pytest.raises(ZeroDivisionError):
        plan_of(Factorized(band=4))


def test_repeated_steps_are_no_claim():
    training = training_of(correlation=Factorized(band=2))
    run(training, 0)
    saved = copy.deepcopy(training.state_dict())
    run(training, 1)
    resumed = training_of(correlation=Factorized(band=2))
    resumed.private.recover([*training.private.history])
    resumed.load_state_dict(saved)
    reason = "steps were repeated after a restart, and planned noise is accounted for once"
    assert reason in resumed.doubts and reason not in training.doubts


@pytest.mark.parametrize(
    ("correlation", "options", "message"),
    [
        (AntiPgd(), {}, "in as many groups as C has diagonals, 40, and 200 samples of a node are 20 times"),
        (Factorized(band=21), {}, "use sampling: cyclic, or fewer diagonals"),
        (Factorized(), {"sampling": "shuffle", "accountant": "none", "epsilon": None, "noise": 1.0},
         "needs to know in which steps a sample may be; use sampling: poisson or cyclic"),
        (Factorized(), {"steps": 1001, "sampling": "cyclic"},
         "factorized plans at most 1,000 steps of a node, not 1,001"),
        (Factorized(), {"epsilon": 1e-6, "delta": 1e-6, "sampling": "cyclic"},
         "needs noise above 10000; allow more, or make fewer"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_one_line(correlation, options, message):
    with pytest.raises(BadInput, match=message):
        plan_of(correlation, **options)


def test_a_run_that_gets_more_rounds_later_has_no_plan_of_all():
    for options, expected in (
        ({}, False),
        ({"sampling": "cyclic"}, True),
        ({"correlation": Factorized()}, True),
    ):
        assert DpSgd(1.0, 1e-4, 1.0, **options).needs_all_rounds == expected
    training = training_of(sampling="cyclic", noise=2.0)
    run(training, 0)
    training.private.history = [(1.0, 3.0, 2), *training.private.history]
    assert "some steps had other noise than planned" in training.doubts


def test_a_budget_is_not_lost_to_rounding():
    for epsilon in (1.0, 2.0, 3.0, 8.0):
        for steps in (5, 8, 20):
            plan = plan_of(Independent(), sampling="cyclic", epsilon=epsilon, delta=1e-6, steps=steps)
            assert plan.epsilon <= epsilon and plan.rounds == steps


def test_a_step_beyond_the_plan_is_refused():
    noise = CorrelatedNoise(SquareRoot().strategy(CYCLES, 4, lambda: gram(STEPS)), torch.float32)
    for _ in range(STEPS):
        noise.draw(SeededSource(1, 0), 2)
    with pytest.raises(RunFailed, match="the noise of 20 steps was planned"):
        noise.draw(SeededSource(1, 0), 2)


def test_the_workload_of_a_node_alone_needs_no_graph():
    def unknown():
        raise BadInput("the weights depend on the run")

    dp_sgd = DpSgd(1.0, 1e-4, 1.0, correlation=Factorized(workload="alone"))
    assert dp_sgd.plan(200, 10, (1,) * 20, unknown).strategy is not None
    assert DpSgd(1.0, 1e-4, 1.0, correlation=SquareRoot()).plan(200, 10, (1,) * 20, unknown).period in (
        1,
        2,
        4,
        8,
        16,
    )
    with pytest.raises(BadInput, match="depend on the run"):
        DpSgd(1.0, 1e-4, 1.0, correlation=Factorized()).plan(200, 10, (1,) * 20, unknown)
