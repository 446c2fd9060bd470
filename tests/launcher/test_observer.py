"""The observer: mean and distance against numpy, over one machine and two, and what it never holds up."""

import asyncio
import itertools
import queue
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from decentnode.communication.launcher_link.reports import (
    Exited,
    Failed,
    Finished,
    PeerBack,
    PeerMissing,
    Published,
    Rejoined,
    Restarted,
    RoundProgress,
)
from decentnode.communication.launcher_link.snapshots import SnapshotBuffers
from decentnode.core.clock import Clock
from decentnode.core.timeouts import Timeouts
from decentnode.launcher.observer import observer as module
from decentnode.launcher.observer.observer import ModelObserver
from decentnode.launcher.state.dispatcher import Dispatcher
from decentnode.launcher.state.membership import MembershipTable
from decentnode.launcher.state.messages import MeanVector, PartialSum, VectorAck
from tests.integration.running import wait_until
from tests.support.reported import dispatcher_of

ELEMENTS = 50

SCORES = {"accuracy": 0.75, "loss": 1.5}


def evaluated(rank, round, published=True):
    return Published(rank, round, None, 0, 0.1, published)


def vectors(count, seed=0):
    return torch.randn(count, ELEMENTS, generator=torch.Generator().manual_seed(seed))


def distance(models):
    """Returns the mean over nodes of |x_i - mean|, divided by |mean|, in float64."""
    models = models.double().numpy()
    mean = models.mean(0)
    return np.linalg.norm(models - mean, axis=1).mean() / np.linalg.norm(mean)


class Machine:
    """One machine's snapshots, membership table and observer, without nodes."""

    def __init__(self, ranks, index=0, send=lambda note: None, test=None):
        self.snapshots = SnapshotBuffers(ranks, ELEMENTS)
        self.membership = MembershipTable(ranks, {rank: (rank,) for rank in ranks})
        self.membership.start()
        self.observer = ModelObserver(
            self.snapshots, self.membership.reporting, index, local=ranks, send=send, test=test
        )
        self.reports = dispatcher_of(self.membership)
        self.observer.register(self.reports, Dispatcher())

    def __enter__(self):
        self.observer.start()
        return self

    def __exit__(self, *_):
        self.observer.finish()
        self.observer.join(30.0)
        assert not self.observer.is_alive()

    def show(self, rank, round, vector):
        assert asyncio.run(self.snapshots.publish(rank, round, vector, Clock()))
        self.take(evaluated(rank, round))

    def show_all(self, round, models, ranks=None):
        """Publishes models of these ranks, by default of the first ones, one after the other."""
        for rank, model in zip(ranks or range(len(models)), models, strict=True):
            self.show(rank, round, model)

    def take(self, *reports):
        """Processes reports as a launcher does."""
        for report in reports:
            self.reports.dispatch(report)

    def next(self):
        return self.observer.observations.get(timeout=30.0)

    def expect_next(self, round, models):
        """Asserts that the next observation is that of these models in this round; returns it."""
        observation = self.next()
        assert (observation.round, observation.nodes) == (round, len(models))
        assert observation.consensus_distance == pytest.approx(distance(models), rel=1e-12)
        return observation


def test_mean_and_distance_are_those_of_numpy():
    models, means = vectors(4), []
    test = lambda vector, round: means.append(vector.clone()) or SCORES
    with Machine(range(4), test=test) as machine:
        for rank in (2, 0, 3, 1):
            machine.show(rank, 7, models[rank])
        assert machine.expect_next(7, models).average_model == SCORES
    assert np.allclose(means[0].numpy(), models.double().numpy().mean(0), rtol=0, atol=1e-15)


def test_equal_models_have_no_distance_and_zero_models_divide_by_nothing():
    with Machine(range(2)) as machine:
        for round, value in enumerate((3.0, 0.0)):
            machine.show_all(round, torch.full((2, ELEMENTS), value))
            observation = machine.next()
            assert (observation.consensus_distance, observation.average_model) == (0.0, None)


def test_each_round_is_observed_once_and_releases_its_vectors():
    models = {round: vectors(3, seed=round) for round in range(5)}
    with Machine(range(3)) as machine:
        for round in models:
            machine.show_all(round, models[round])
            machine.expect_next(round, models[round])
    assert machine.observer.observations.empty()


def test_a_node_that_did_not_publish_is_left_out():
    models = vectors(3)
    with Machine(range(3)) as machine:
        machine.show_all(0, models[[0, 2]], ranks=(0, 2))
        machine.take(evaluated(1, 0, published=False))
        machine.expect_next(0, models[[0, 2]])


def test_a_node_that_is_lost_is_not_waited_for():
    models = vectors(3)
    with Machine(range(3)) as machine:
        machine.show_all(0, models[:2])
        with pytest.raises(queue.Empty):
            machine.observer.observations.get(timeout=0.3)
        machine.take(Failed(2, "gone"))
        assert machine.next().nodes == 2


def test_nodes_that_were_dropped_are_waited_for_again_when_they_are_back():
    models = vectors(4)
    with Machine(range(4)) as machine:
        machine.take(*(PeerMissing(rank - 1, 3, rank, "silent") for rank in (1, 2, 3)))
        machine.take(PeerMissing(1, 3, 0, "silent"))
        for rank in range(4):
            machine.take(PeerBack(rank - 1 if rank else 1, 5, rank))
        for rank in range(4):
            machine.show(rank, 6, models[rank])
            time.sleep(0.05)
        machine.expect_next(6, models)


def test_a_node_that_was_restarted_counts_from_its_first_evaluation_on_and_not_before():
    models = vectors(3)
    with Machine(range(3)) as machine:
        machine.take(Exited(2, -9), PeerMissing(0, 3, 2, "its process ended"))
        machine.show(0, 3, models[0])
        machine.take(Restarted(2, -9, 1), Rejoined(2, 5), PeerBack(0, 5, 2))
        machine.show(1, 3, models[1])
        assert machine.next().nodes == 2, "it does no round before the one that it came back in"
        for rank in range(3):
            machine.show(rank, 5, models[rank])
            time.sleep(0.05)
        machine.expect_next(5, models)
        machine.take(Exited(2, -9))
        machine.show_all(6, models[:2])
        assert machine.next().nodes == 2, "and when it has died again it holds nothing up"


def test_who_has_finished_since_it_was_evaluated_is_not_left_out():
    models = vectors(3)
    machine = Machine(range(3))
    for rank in range(3):  # all of it before the observer looks
        machine.show(rank, 9, models[rank])
        machine.take(RoundProgress(rank, 9, None, 0), Finished(rank, 10, "", 0, 0, 0.0))
    with machine:
        assert machine.next().nodes == 3


def test_a_straggler_is_released_and_makes_no_second_observation(monkeypatch):
    monkeypatch.setattr(Timeouts, "observation", 0.2)
    models = vectors(2)
    with Machine(range(2)) as machine:
        machine.show(0, 0, models[0])
        assert machine.next().nodes == 1
        machine.show(1, 0, models[1])
        with pytest.raises(queue.Empty):
            machine.observer.observations.get(timeout=0.7)
        # From here on nobody is late, however busy the machine.
        monkeypatch.setattr(Timeouts, "observation", 60.0)
        machine.show_all(1, models)
        machine.expect_next(1, models)


def test_as_long_as_models_come_the_round_waits_for_all():
    models = vectors(4)
    machine = Machine(range(4))
    now = standing_clock(machine)
    with machine:
        machine.show(0, 0, models[0])
        for rank in range(1, 4):
            wait_until(machine.observer._events.empty, 30)
            now[0] += 0.6 * Timeouts.observation
            wait_until(lambda: machine.observer._next_check > now[0], 30)
            machine.show(rank, 0, models[rank])
        assert machine.next().nodes == 4


def standing_clock(*machines):
    """Gives the observers of these machines one clock, which stands; returns its time."""
    now = [0.0]
    for machine in machines:
        machine.observer._clock = SimpleNamespace(now=lambda: now[0])
        machine.observer._next_check = 0.0
    return now


def end_waits(*machines):
    """Gives each observer a clock that is, at each look, later than any wait lasts."""
    for machine in machines:
        step = 2 * Timeouts.observation
        machine.observer._clock = SimpleNamespace(now=itertools.count(step, step).__next__)


class ObserverPair:
    """Two machines with two nodes each; what they send each other is handed over at once."""

    def __enter__(self):
        self.sent, self.deliver = [], lambda note: note
        self.second = Machine((2, 3), 1, send=self._to_first)
        self.first = Machine((0, 1), 0, send=lambda note: self.second.observer.take(note))
        self.first.observer.machines = {0, 1}
        self.first.__enter__()
        self.second.__enter__()
        return self

    def __exit__(self, *_):
        self.second.__exit__()
        self.first.__exit__()

    def _to_first(self, note):
        self.first.observer.take(self.deliver(note))
        self.sent.append(note)

    def show(self, round, models):
        self.first.show_all(round, models[:2])
        self.second.show_all(round, models[2:], ranks=(2, 3))


def test_two_machines_put_their_sums_together():
    with ObserverPair() as pair:
        for round in range(3):
            models = vectors(4, seed=round)
            pair.show(round, models)
            pair.first.expect_next(round, models)
    none = [pair.second.next() for _ in range(3)]
    assert [(seen.round, seen.nodes, seen.consensus_distance) for seen in none] == [
        (round, 0, None) for round in range(3)
    ], "so rows that the coordinator does not send wait for nothing"


def test_rounds_that_few_or_none_published_hold_nothing_up():
    models = vectors(4)
    with ObserverPair() as pair:
        for round, published in enumerate([(), (0, 1), (2,), ()]):
            for rank in range(4):
                machine = pair.first if rank < 2 else pair.second
                if rank in published:
                    machine.show(rank, round, models[rank])
                else:
                    machine.take(evaluated(rank, round, published=False))
            observation = pair.first.next()
            assert (observation.round, observation.nodes) == (round, len(published))
            wanted = pytest.approx(distance(models[list(published)])) if published else None
            assert observation.consensus_distance == wanted
    assert pair.first.observer.observations.empty()
    sums = [(note.round, note.count, len(note.content)) for note in pair.sent if isinstance(note, PartialSum)]
    assert sums == [(0, 0, 0), (1, 0, 0), (2, 1, 8 * ELEMENTS), (3, 0, 0)], "of no models nothing travels"


def test_models_that_had_no_part_in_the_mean_are_not_counted():
    """The sum of another machine was left out, while its distance to the mean of the rest comes."""
    models = vectors(4)
    with ObserverPair() as pair:
        pair.deliver = lambda note: (
            replace(note, count=0, content=b"") if isinstance(note, PartialSum) else note
        )
        pair.show(0, models)
        assert pair.first.next().nodes == 2
        pair.deliver = lambda note: note
        pair.show(1, models)
        assert pair.first.next().nodes == 4


def test_a_machine_that_is_gone_is_not_waited_for():
    models = vectors(4)
    with ObserverPair() as pair:
        pair.first.show_all(0, models[:2])
        pair.first.observer.machines = {0}
        pair.first.expect_next(0, models[:2])


def test_a_machine_that_comes_late_is_waited_for_from_its_first_evaluation_on():
    models = vectors(4)
    with ObserverPair() as pair:
        pair.second.observer.is_late = True
        pair.first.observer.machines = {0}
        pair.first.observer.expect({0, 1}, 0)
        pair.first.show_all(0, models[:2])
        pair.first.expect_next(0, models[:2])
        pair.second.show_all(1, models[2:], ranks=(2, 3))
        limit = time.monotonic() + 30
        while not pair.sent and time.monotonic() < limit:
            time.sleep(0.01)
        pair.first.show_all(1, models[:2])
        assert pair.first.next().round == 1
        pair.first.show_all(2, models[:2])
        with pytest.raises(queue.Empty):
            pair.first.observer.observations.get(timeout=0.3)
        pair.second.show_all(2, models[2:], ranks=(2, 3))
        pair.first.expect_next(2, models)


def test_rounds_that_another_machine_makes_up_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(module, "MOST_AHEAD_BYTES", 0)
    models, content = vectors(4), torch.zeros(ELEMENTS, dtype=torch.float64).numpy().tobytes()
    with ObserverPair() as pair:
        for round in range(1000, 1100):
            pair.first.observer._book(PartialSum(1, round, 1, content))
        assert len(pair.first.observer._rounds) == module.MOST_AHEAD_ROUNDS
        pair.first.observer._rounds.clear()
        pair.show(0, models)
        assert pair.first.next().nodes == 4


def test_without_the_others_a_machine_observes_its_own_models():
    """Each `show` asserts that there is room for another vector."""
    with Machine((2, 3), 1) as machine:
        machine.observer.expect({1}, 1)
        machine.observer._newcomers.clear()
        for round in range(3):
            models = vectors(2, seed=round)
            machine.show_all(round, models, ranks=(2, 3))
            machine.expect_next(round, models)


class TestNextCoordinator:
    """Machine 0 falls silent while a round is open."""

    def test_a_machine_sends_its_sum_and_its_distance_again(self):
        sent, models = [], vectors(2)
        with Machine((4, 5), 2, send=sent.append) as machine:
            machine.observer.machines = {0, 1, 2}
            machine.show_all(0, models, ranks=(4, 5))
            wait_until(lambda: sent, 30)
            machine.observer.expect({1, 2}, 1)
            wait_until(lambda: len(sent) == 2, 30)
            total = models.double().sum(0).numpy()
            assert sent == [PartialSum(2, 0, 2, total.tobytes())] * 2
            machine.observer.take(MeanVector(0, (total / 2).tobytes()))
            wait_until(lambda: len(sent) == 3, 30)
            assert (sent[2].machine, sent[2].count) == (2, 2)
            assert sent[2].distance / 2 / np.linalg.norm(total / 2) == pytest.approx(distance(models))

    def test_the_next_one_makes_the_mean_of_the_models_that_are_left(self):
        models = vectors(4)
        with ObserverPair() as pair:
            pair.first.observer.machines = {0, 1, 2}
            pair.show(0, models)
            wait_until(lambda: len(pair.sent) == 1, 30)
            # What machine 1 is to its observer, machine 0 is here: the other one that is left.
            pair.first.observer.expect({0, 1}, 1)
            pair.second.observer.machines = {0, 1}
            pair.second.observer.send = pair.first.observer.take
            pair.first.observer.send = pair.second.observer.take
            pair.second.observer.expect({0, 1}, 1)
            pair.second.expect_next(0, models)


def test_an_error_in_a_test_ends_the_observing_and_holds_up_nobody():
    def test(vector, round):
        raise ValueError("broken test")

    with Machine(range(2), test=test) as machine:
        began = time.monotonic()
        for round in range(4):
            machine.show_all(round, torch.ones(2, ELEMENTS))
        assert time.monotonic() - began < 20
    assert str(machine.observer.error) == "broken test"


def test_an_error_at_the_very_end_does_not_hang():
    def test(vector, round):
        time.sleep(0.2)
        raise ValueError("broken test")

    with Machine(range(1), test=test) as machine:
        machine.show(0, 0, torch.ones(ELEMENTS))
    assert str(machine.observer.error) == "broken test"


def test_nodes_that_begin_while_nothing_was_received_are_waited_for():
    """The membership table counts no node before the start."""
    with Machine(range(2)) as machine:
        members, machine.membership.members = machine.membership.members, {}
        time.sleep(0.3)
        machine.membership.members = members
        machine.show_all(5, vectors(2))
        assert machine.next().nodes == 2


def test_many_reports_at_once_cost_one_look_at_all_nodes():
    looks = []
    with Machine(range(200)) as machine:
        machine.observer.reporting = lambda: looks.append(1) or machine.membership.reporting()
        time.sleep(0.3)
        for rank in range(200):
            machine.take(evaluated(rank, 0, published=False))
        assert machine.next().nodes == 0
    assert len(looks) < 20


def test_a_sum_and_a_mean_may_take_their_time_each():
    """Over a slow link both together take longer than anything is waited for."""
    models = vectors(4)
    with ObserverPair() as pair:
        now = standing_clock(pair.first, pair.second)

        def let_pass(share, waiting):
            now[0] += share * Timeouts.observation
            wait_until(lambda: waiting.observer._next_check > now[0], 30)

        def deliver_slowly(note):
            if isinstance(note, PartialSum):
                let_pass(0.7, pair.first)
                pair.second.observer.take(VectorAck(0, note.round, 0))
            return note

        def send_slowly(note):
            let_pass(0.6, pair.second)
            pair.second.observer.take(note)

        pair.deliver, pair.first.observer.send = deliver_slowly, send_slowly
        pair.show(0, models)
        assert pair.first.next().nodes == 4


class StandingClock(Clock):
    """Virtual time, which stands while a node waits for the observer; it counts the looks."""

    is_virtual = True
    looks = 0

    async def wait_outside(self, is_over, interval):
        while not is_over():
            self.looks += 1
            time.sleep(interval)


def test_nodes_that_are_ahead_in_virtual_time_keep_their_vectors():
    """As many as there are slots; then one of them waits for the node behind, and the others do not."""
    nodes, slots, clock = 6, 3, StandingClock()
    models = [vectors(nodes, seed) for seed in range(slots)]
    with Machine(range(nodes)) as machine:
        standing_clock(machine)
        snapshots = machine.observer.snapshots = SnapshotBuffers(range(nodes), ELEMENTS, slots=slots)

        def publish(rank, round, vector):
            published = asyncio.run(snapshots.publish(rank, round, vector, clock))
            machine.take(evaluated(rank, round, published))
            return published

        for rank in range(1, nodes):
            assert all(publish(rank, round, models[round][rank]) for round in range(slots))
            assert clock.looks == 0
        assert not publish(1, slots, models[0][1]) and clock.looks > 0
        waited = clock.looks
        assert not any(publish(rank, slots, models[0][rank]) for rank in range(2, nodes))
        assert clock.looks == waited
        for round in range(slots):
            assert publish(0, round, models[round][0])
            machine.expect_next(round, models[round])
        assert publish(0, slots, models[0][0]) and publish(1, slots + 1, models[1][1])
        end_waits(machine)
