"""The modelled network against closed forms, and what holds in every simulation."""

import heapq
import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.communication.simulated import Simulated
from decentnode.config.loader import load
from decentnode.errors import BadInput, RunFailed
from decentnode.simulation.fair import FairLinks, Flow
from decentnode.simulation.network import Network
from decentnode.simulation.quantities import (
    RATES,
    TIMES,
    Edges,
    Lognormal,
    Quantiles,
    Regions,
    UniformDistribution,
    in_unit,
    numbers_of,
)  # fmt: skip
from decentnode.simulation.tcp import TCP

ROOT = Path(__file__).parents[2]
SECOND = 10**9
MODELS = ["delay", "queue", "fair"]


class Events:
    """A queue of events, in the order of the loop."""

    def __init__(self) -> None:
        self.now = 0
        self._asked = 0
        self.queue: list[tuple[int, int, Callable, tuple]] = []

    def call_at_nanosecond(self, due: int, callback: Callable, *args: object) -> None:
        assert due >= self.now, "nothing is asked for in the past"
        self._asked += 1
        heapq.heappush(self.queue, (due, self._asked, callback, args))

    def step(self) -> None:
        self.now, _, callback, args = heapq.heappop(self.queue)
        callback(*args)

    def run(self) -> None:
        while self.queue:
            self.step()


def network(nodes: int, up=np.inf, down=np.inf, latency=0.0, model="queue", **options: object) -> Network:
    return Network(
        model,
        np.full((nodes, nodes), latency),
        np.full(nodes, up),
        np.full(nodes, down),
        random=np.random.default_rng(1),
        **options,
    )


def arrivals(links: Network, messages: list[tuple[int, int, int, int]]) -> dict[int, float]:
    """The seconds at which messages (time in ns, source, target, bytes) arrive, by number."""
    events, arrived = Events(), {}
    for number, (time, source, target, size) in enumerate(messages):

        def send(number=number, source=source, target=target, size=size):
            links.send(events, events.now, source, target, size, lambda: arrived.update({number: events.now}))

        events.call_at_nanosecond(time, send)
    events.run()
    return {number: time / SECOND for number, time in arrived.items()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("latency", "seconds", "with_tcp"),
    [(0.0, 1, 1), (1e-5, 1.00001, 1.00001), (1e-3, 1.001, 5.121), (0.1, 1.1, 512.1)],
)
def test_one_flow_takes_the_latency_and_its_bits(model, latency, seconds, with_tcp):
    """As SimGrid's figures for CM02 (docs/source/Models.rst: 1, 1.00001, 5.12, 512), and without TCP.

    Its window is 4194304 bytes and its 10 G are 10 * 2^30, so these are bytes; its page omits the latency.
    """
    size = 10 * 2**30
    assert arrivals(network(2, 8.0 * size, 8.0 * size, latency, model), [(0, 0, 1, size)]) == {0: seconds}
    # A link of its own limits as an uplink does.
    for options in ({"tcp": TCP["cm02"]}, {"bandwidth": np.full((2, 2), size / (with_tcp - latency) * 8)}):
        links = network(2, 8.0 * size, 8.0 * size, latency, model, **options)
        assert arrivals(links, [(0, 0, 1, size)])[0] == pytest.approx(with_tcp, abs=1e-8)


@pytest.mark.parametrize("model", MODELS)
def test_tcp_corrects_as_simgrid_does(model):
    """SimGrid's figures for LV08: 100 kB over 10 ms and 1 Mbit/s; acknowledgments use the way back."""
    links = network(2, 1e6, 1e6, 0.01, model, tcp=TCP["lv08"])
    assert arrivals(links, [(0, 0, 1, 100_000)])[0] == pytest.approx(0.954842268, abs=2e-9)
    # A receiver whose uplink, or link of its own on the way back, has 10 kbit/s for them.
    back = np.array([[np.inf, np.inf], [1e4, np.inf]])
    home, own = (network(2, 1e6, 1e6, 0.01, model, tcp=TCP["lv08"], bandwidth=each) for each in (None, back))
    home.uplink[1] = 1e4
    for links in (home, own):
        assert arrivals(links, [(0, 0, 1, 100_000)])[0] == pytest.approx(4.253811340, abs=2e-9)


def test_fair_is_simgrid():
    """Arrivals of SimGrid 3.32: LV08, some ways without latency, one with a rate of its own, both ways busy.

    `python eval/simulation/against_simgrid.py` compares any number of networks.
    """
    latency = np.array([[0, 0.02, 0], [0.02, 0, 0.05], [0.001, 0.05, 0]])
    bandwidth = np.full((3, 3), np.inf)
    bandwidth[0, 1] = bandwidth[1, 0] = 4e5
    up, down = np.array([5e5, 1e6, 1e5]), np.array([1e6, 1e5, 2e6])
    links = Network("fair", latency, up, down, bandwidth=bandwidth, tcp=TCP["lv08"])
    sent = [(0, 0, 1, 20_000), (0, 0, 2, 50_000), (0, 1, 0, 40_000), (0, 1, 2, 9_000)]
    sent.append((SECOND // 2, 2, 0, 8_000))
    expected = [2.111746392, 1.424169827, 1.505021347, 0.820302259, 1.269571023]
    assert [arrivals(links, sent)[n] for n in range(5)] == pytest.approx(expected, abs=5e-9)
    # Both ways at once is the figure of its page, 1.05 times the time: https://simgrid.org/doc/latest/Models.html
    links = network(2, 1e6, 1e6, 0.01, "fair", tcp=TCP["lv08"])
    both = arrivals(links, [(0, 0, 1, 100_000), (0, 1, 0, 100_000)])
    assert both[0] == both[1] == pytest.approx(0.996079381, abs=2e-9)


def test_links_with_rates_of_their_own_are_first_in_first_out():
    """Three messages, two of them over one slow link, of a sender that has time for all of them."""
    size = 125_000
    for model, expected in {"delay": [1, 1, 0.01], "queue": [1, 2, 0.03], "fair": [1, 2, 1 / 99]}.items():
        bandwidth = np.full((3, 3), np.inf)
        bandwidth[0, 1] = 1e6
        links = network(3, up=1e8, model=model, bandwidth=bandwidth)
        came = arrivals(links, [(0, 0, 1, size), (0, 0, 1, size), (0, 0, 2, size)])
        assert list(came.values()) == pytest.approx([expected[n] for n in came], abs=1e-8), model


def test_a_queue_is_first_in_first_out_at_both_ends():
    size = 125_000  # 1 Mbit
    # A star: eight clients at once over a downlink of 1 Mbit/s take n S / down.
    star = arrivals(network(9, up=1e9, down=1e6), [(0, client, 0, size) for client in range(1, 9)])
    assert [star[n] for n in range(8)] == pytest.approx([1.0 + n for n in range(8)], abs=0.01)
    # One sender to eight receivers: its uplink is shared.
    fan = arrivals(network(9, up=1e6, down=1e9), [(0, 0, target, size) for target in range(1, 9)])
    assert [fan[n] for n in range(8)] == [1.0 + n for n in range(8)]
    # What comes slowly leaves the downlink to others: 1 Mbit over 10 kbit/s, then one over 10 Mbit/s.
    for down, seconds in ((np.inf, 1.1), (1e6, 2.0), (1e7, 1.1)):
        links = network(3, down=down)
        links.uplink[:] = [1e4, 1e7, np.inf]
        sent = [(0, 0, 2, size), (SECOND, 1, 2, size)]
        assert arrivals(links, sent) == pytest.approx({0: 100.0, 1: seconds}), down
    # `delay` shares nothing.
    alone = arrivals(network(9, 1e6, 1e6, model="delay"), [(0, 0, target, size) for target in range(1, 9)])
    assert set(alone.values()) == {1.0}
    # First bits count at the receiver: a later message that has less far to travel is received first.
    links = network(3, up=1e9, down=1e6)
    links.latency[1, 0] = 2.0
    assert arrivals(links, [(0, 1, 0, size), (SECOND // 2, 2, 0, size)]) == {0: 3.0, 1: 1.5}


def test_fair_links_are_shared_by_progressive_filling():
    mbit = 125_000
    # Two flows of 0 share 4 Mbit/s; that of 1 has the rest of the 10 Mbit/s at 2, more when the first ends.
    links = network(4, model="fair")
    links.uplink[0], links.downlink[2] = 4e6, 10e6
    sent = [(0, 0, 2, 2 * mbit), (0, 0, 3, 4 * mbit), (0, 1, 2, 12 * mbit)]
    assert arrivals(links, sent) == {0: 1.0, 2: 1.4, 1: 1.5}
    # A star that is sent to all at once ends at once, and the link was busy all the time.
    star = arrivals(network(9, down=1e6, model="fair"), [(0, client, 0, mbit) for client in range(1, 9)])
    assert set(star.values()) == {8.0}
    # With TCP the shares are the inverse of the round trips: 3 to 1, then all is for the second.
    links = network(3, down=4e6, latency=0.03, model="fair", tcp=TCP["cm02"])
    links.latency[1, 0] = 0.01
    near, far = arrivals(links, [(0, 1, 0, 3 * mbit), (0, 2, 0, 3 * mbit)]).values()
    # 20 ms alone at 4 Mbit/s, then 3 Mbit/s; the far one has sent a third of that.
    first_left = 3 - 0.02 * 4
    assert near == pytest.approx(0.03 + first_left / 3, abs=1e-8)
    assert far == pytest.approx(near + (3 - first_left / 3) / 4, abs=1e-8)


@pytest.mark.parametrize("model", MODELS)
def test_a_link_that_goes_down_is_left_to_others(model):
    """What was on the way over it uses nothing, and continues with the bytes that have not arrived."""
    size = 125_000  # 1 Mbit, a second of the uplink and of the downlink
    for moment, left in ((0.0, size), (0.1, size), (0.35, None), (0.6, None)):
        links, events, came = network(4, 1e6, 1e6, 0.1, model), Events(), {}

        def deliver(name: str) -> Callable[[], None]:
            return lambda: came.update({name: events.now / SECOND})  # noqa: B023

        flows = [links.send(events, 0, 0, 1, size, deliver(f"dropped {n}")) for n in range(3)]
        links.send(events, 0, 0, 2, size, deliver("of the sender"))
        links.send(events, 0, 3, 1, size, deliver("to the receiver"))
        lefts = []

        def cut() -> None:
            lefts.extend(links.withdraw(events, events.now, flow) for flow in flows)  # noqa: B023

        events.call_at_nanosecond(round(moment * SECOND), cut)
        events.run()
        assert set(came) == {"of the sender", "to the receiver"}
        # At most what was used until then is lost for others.
        assert max(came.values()) <= 1.1 + moment + 1e-6
        assert lefts[1:] == [size, size] or model == "delay"
        share = {"fair": 0.5, "queue": 1.0, "delay": 1.0}[model]
        assert lefts[0] == pytest.approx(size * (1 - share * max(0.0, moment - 0.1)), abs=1), "what arrived"
        assert left is None or lefts[0] == left
        # The link carries the rest when it is up again.
        begin, came["rest"] = events.now, 0.0
        links.send(events, begin, 0, 1, lefts[0], deliver("rest"))
        events.run()
        assert came["rest"] - begin / SECOND == pytest.approx(0.1 + 8 * lefts[0] / 1e6, abs=1e-6)


def test_messages_that_wait_for_each_other_are_withdrawn_together():
    """One that begins to flow because the one before it is withdrawn, and is so at the same time, is gone."""
    nodes = 40
    links, events, came = network(nodes, 1e6, 1e6, 0.1, "fair"), Events(), []
    flows = [links.send(events, 0, 0, 1, 125_000, partial(came.append, "dropped")) for _ in range(2)]
    for rank in range(2, nodes):
        links.send(events, 0, rank, (rank + 1) % nodes or 2, 125_000, partial(came.append, rank))

    def cut() -> None:
        for flow in flows:
            links.withdraw(events, events.now, flow)

    events.call_at_nanosecond(SECOND // 2, cut)
    events.run()
    assert sorted(came) == [*range(2, nodes)]


def test_what_is_left_of_a_message_is_never_more_than_the_message():
    """However often its transmissions are lost, with each model."""
    for model in MODELS:
        links, events, size = network(2, 1e6, 1e6, 0.1, model, loss=0.9), Events(), 125_000
        flow = links.send(events, 0, 0, 1, size, lambda: None)
        assert flow.transmissions > 1
        assert links.withdraw(events, 0, flow) == size


def test_more_flows_than_fair_computes_are_refused():
    links, events = network(130, up=1e6, latency=1.0, model="fair"), Events()
    for source, target in itertools.permutations(range(130), 2):
        links.send(events, 0, source, target, 1000, lambda: None)
    with pytest.raises(
        RunFailed, match="network_model fair: more than 16,384 directed links carry messages at once"
    ):
        events.run()


def assert_max_min(rates, up, down, limits, weights):
    """Each flow has its limit, or a full link on which no flow has more for its weight."""
    links: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for source, target in rates:
        links.setdefault(("up", source), []).append((source, target))
        links.setdefault(("down", target), []).append((source, target))
    level = {flow: rate / weights[flow] for flow, rate in rates.items()}
    bottlenecks = dict.fromkeys(
        (flow for flow, rate in rates.items() if rate >= limits[flow] * (1 - 1e-9)), True
    )
    for (end, rank), flows in links.items():
        used, capacity = sum(rates[flow] for flow in flows), (up if end == "up" else down)[rank]
        assert used <= capacity * (1 + 1e-9)
        if used >= capacity * (1 - 1e-9):
            most = max(level[flow] for flow in flows)
            bottlenecks |= dict.fromkeys((flow for flow in flows if level[flow] >= most * (1 - 1e-9)), True)
    assert bottlenecks.keys() == rates.keys()


@given(st.integers(0, 10**6), st.sampled_from([4, 12, 40]), st.booleans())
@settings(max_examples=30)
def test_fair_rates_are_max_min_at_any_time(seed, nodes, is_wide):
    """Whichever flows begin and end; and all bits that were sent have flowed."""
    random, now = np.random.default_rng(seed), 0
    up, down = random.choice([1e6, 2e6, 5e6], nodes), random.lognormal(15.0 if is_wide else 14.0, 0.7, nodes)
    links, events, flowed, arrived = FairLinks(up, down), Events(), 0.0, []
    pairs = [pair for pair in itertools.permutations(range(nodes), 2) if random.random() < min(1, 5 / nodes)]
    limits = {pair: random.choice([np.inf, 3e5]) for pair in pairs}
    weights = {pair: random.choice([1.0, 4.0]) for pair in pairs}
    sizes = random.integers(10**4, 10**6, len(pairs)).tolist()
    for pair, bits in zip(pairs, sizes, strict=True):
        begin = int(random.choice([0, 10**8, random.integers(10**9)]))
        links.send(
            events, begin, Flow(*pair, bits, limits[pair], weights[pair], partial(arrived.append, pair))
        )
    while events.queue:
        if events.queue[0][0] > now:
            rates = links.rates()
            assert_max_min(rates, up, down, limits, weights)
            flowed += sum(rates.values()) * (events.queue[0][0] - now) / SECOND
            now = events.queue[0][0]
        events.step()
    assert sorted(arrived) == sorted(pairs)
    assert flowed == pytest.approx(sum(sizes), rel=1e-6)


messages = st.lists(
    st.tuples(st.integers(0, SECOND), st.integers(0, 3), st.integers(4, 6), st.integers(1, 10**6)), min_size=1
)


@given(messages, st.sampled_from(MODELS), st.floats(0, 0.5), st.floats(0, 0.9))
def test_what_always_holds(sent, model, jitter, loss):
    """All arrive, none before it was sent and could be, and each directed link keeps its order."""
    sent = sorted(sent)
    came = arrivals(network(7, 1e7, 1e7, 0.01, model, jitter=jitter, loss=loss), sent)
    assert came.keys() == set(range(len(sent)))
    last: dict[tuple[int, int], float] = {}
    for number, (time, source, target, size) in enumerate(sent):
        least = time / SECOND + 0.01 + 8 * size / 1e7
        assert came[number] >= least - 1e-8
        assert came[number] >= last.get((source, target), 0.0)
        last[source, target] = came[number]


@given(messages, st.sampled_from(MODELS), st.sampled_from([2, 8]))
def test_rates_and_sizes_times_k_change_nothing(sent, model, factor):
    before = arrivals(network(7, 1e6, 2e6, 0.01, model), sent)
    larger = [(time, source, target, factor * size) for time, source, target, size in sent]
    assert arrivals(network(7, factor * 1e6, factor * 2e6, 0.01, model), larger) == before


def test_losses_repeat_a_transmission_as_often_as_expected():
    links = network(2, up=1e6, latency=0.1, loss=0.25)
    sent = [(1000 * n * SECOND, 0, 1, 125_000) for n in range(4000)]
    times = [came - 1000 * n for n, came in arrivals(links, sent).items()]
    # A transmission is 1 s, and the next one begins a round trip later: p / (1 - p) repeats on average.
    assert np.mean(times) == pytest.approx(1.1 + (0.25 / 0.75) * 1.2, rel=0.05)
    # A message to another node waits for the transmissions alone, not for the round trips after losses.
    links = network(3, up=1e6, latency=100.0, loss=0.5)
    came = arrivals(links, [(0, 0, 1, 125_000)] * 20 + [(0, 0, 2, 125)])
    assert max(came.values()) < 1500, "twenty losses one after the other would take 4,000 s"


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [("10 Mbit/s", RATES, 1e7), ("10Mbps", RATES, 1e7), ("1.5 Gbit/s", RATES, 1.5e9), ("20 ms", TIMES, 0.02)],
)
def test_units(text, units, value):
    assert in_unit(text, units) == value


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"uplink": "10"},
            "uplink: '10' has no unit; write it like 10 Mbit/s (megabits); units: bit/s, kbit/s",
        ),
        (
            {"uplink": "10 MB/s"},
            "uplink: '10 MB/s' has an unknown unit; write it like 10 Mbit/s (megabits)",
        ),
        (
            {"latency": "20 Mbit/s"},
            "latency: '20 Mbit/s' has an unknown unit; write it like 20 ms; units: ns",
        ),
        ({"downlink": (1.0, 2.0)}, "downlink: has 2 numbers; it must have one for each of the 4 ranks"),
        ({"uplink": 0.0}, "uplink: a rate is 0; leave the option out for links without a limit"),
        ({"jitter": "much"}, "jitter: 'much' is no number"),
    ],
)
def test_what_is_no_network_is_told(options, line):
    with pytest.raises(BadInput) as error:
        Simulated(**options).network_of(4)
    assert str(error.value).startswith(line)


def test_files_have_numbers_or_a_matrix(tmp_path):
    rates, matrix = tmp_path / "rates.csv", tmp_path / "matrix.csv"
    rates.write_text("# by rank\n10 Mbit/s, 1e6\n5000000\n")
    assert numbers_of(str(rates), RATES, 3, "uplink", seed=1).tolist() == [1e7, 1e6, 5e6]
    matrix.write_text("0,20 ms\n0.03,0\n")
    assert numbers_of(str(matrix), TIMES, 2, "latency", seed=1, pairs=True).tolist() == [[0, 0.02], [0.03, 0]]
    for text, what in {
        "0,0.1\n0.1,\n": f"latency: {matrix}:2: a hole: every pair needs a number",
        "0,0.1\n0.1,-1\n": f"latency: {matrix}:2: -1 is no number >= 0",
        "0,0.1\n": f"latency: {matrix}: has 1 lines of [2] numbers; it must be a matrix of 2 lines with 2",
    }.items():
        matrix.write_text(text)
        with pytest.raises(BadInput) as error:
            numbers_of(str(matrix), TIMES, 2, "latency", seed=1, pairs=True)
        assert str(error.value).startswith(what)


def test_edges_have_numbers_of_their_own(tmp_path):
    listed = Edges(((0, 1, "20 ms"), (1, 2, 0.5), (2, 1, 0.3)), others="1 ms")
    expected = [[0.001, 0.02, 0.001], [0.02, 0.001, 0.5], [0.001, 0.3, 0.001]]
    assert numbers_of(listed, TIMES, 3, "latency", seed=1, pairs=True).tolist() == expected
    path = tmp_path / "edges.txt"
    path.write_text("# from to rate\n0 1 10 Mbit/s\n1,2,5e6\n")
    rates = Simulated(bandwidth=Edges(str(path))).network_of(3).bandwidth
    assert rates[0, 1] == rates[1, 0] == 1e7 and rates[2, 1] == 5e6 and rates[0, 2] == np.inf
    for text, what in {
        "0 3 1e6\n": f"bandwidth: {path}:1: 0 3 must be two of the 3 ranks, 0 to 2",
        "0 1\n": f"bandwidth: {path}:1: must be two ranks and a number",
        "0 1 fast\n": f"bandwidth: {path}:1: 'fast' is no number",
        "0 1 0\n": "bandwidth: a rate is 0; leave the option out for links without a limit",
    }.items():
        path.write_text(text)
        with pytest.raises(BadInput) as error:
            Simulated(bandwidth=Edges(str(path))).network_of(3)
        assert str(error.value).startswith(what)
    with pytest.raises(BadInput, match="bandwidth: azure has no rates between two nodes"):
        Simulated(bandwidth=Edges((), others=Regions("azure"))).network_of(3)


def test_files_lie_beside_the_configuration_that_names_them(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "up.csv").write_text("\n".join(f"{n + 1} Mbit/s" for n in range(16)))
    (tmp_path / "edges.txt").write_text("0 1 20 kbit/s\n")
    (tmp_path / "run.yaml").write_text(
        f"extends: {ROOT / 'configs' / 'simulated.yaml'}\n"
        "communication: {name: simulated, uplink: up.csv, bandwidth: {edges: edges.txt}}\n"
    )
    network = load(tmp_path / "run.yaml", ["communication.latency=5 ms"]).communication.make().network_of(16)
    assert network.uplink.tolist() == [1e6 * (n + 1) for n in range(16)]
    assert network.bandwidth[0, 1] == network.bandwidth[1, 0] == 2e4


def test_a_run_with_another_seed_has_another_network():
    home = ROOT / "configs" / "simulated.yaml"
    drawn = [
        load(home, overrides).communication.make().network_of(16).uplink.tolist()
        for overrides in (["seed=1"], ["seed=2"], ["seed=1", "communication.seed=2"])
    ]
    assert drawn[0] != drawn[1] == drawn[2]


def test_distributions_are_drawn_by_the_seed():
    spread = Lognormal(median="10 Mbit/s", sigma=0.5)
    drawn = numbers_of(spread, RATES, 4000, "uplink", seed=1)
    assert np.median(drawn) == pytest.approx(1e7, rel=0.05)
    assert (drawn == numbers_of(spread, RATES, 4000, "uplink", seed=1)).all()
    assert (drawn != numbers_of(spread, RATES, 4000, "uplink", seed=2)).any()
    with pytest.raises(BadInput, match=r"uplink: low is 3\.0, and high is only 2\.0"):
        numbers_of(UniformDistribution(low=3.0, high=2.0), RATES, 4, "uplink", seed=1)


def test_regions_have_half_of_the_measured_round_trips():
    between = Regions("azure", ("East US", "Japan East"), within="1 ms").latencies(5)
    assert between[0].tolist() == [0.001, 0.001, 0.001, 0.081, 0.081]
    assert between[4].tolist() == [0.081, 0.081, 0.081, 0.001, 0.001]
    everywhere = Regions("azure").latencies(64)
    # Both ways of a pair are near each other, which a table with mixed columns would not have.
    assert np.abs(everywhere - everywhere.T).max() < 0.005
    assert (everywhere[~np.eye(64, dtype=bool)] > 0).all()
    with pytest.raises(ValueError, match="no region 'Japan'; did you mean 'Japan East'"):
        Regions("azure", ("Japan",))


@given(
    st.lists(st.floats(0.01, 0.99), min_size=2, max_size=6, unique=True),
    st.lists(st.floats(1e3, 1e9), min_size=6, max_size=6),
)
def test_draws_have_the_quantiles_that_they_are_drawn_from(levels, values):
    levels, values = sorted(levels), sorted(values[: len(levels)])
    spread = Quantiles(levels=tuple(levels), values=tuple(values))
    drawn = numbers_of(spread, RATES, 3000, "uplink", seed=1)
    assert values[0] * 0.999 <= drawn.min() and drawn.max() <= values[-1] * 1.001
    for level, value in zip(levels, values, strict=True):
        # Four standard deviations of a share of 3,000 draws; numbers of one value may be many.
        assert np.mean(drawn < value * 0.999) <= level + 0.04
        assert np.mean(drawn <= value * 1.001) >= level - 0.04
    between = np.sqrt(values[0] * values[1])
    middle = (levels[0] + levels[1]) / 2
    if values[1] > 2 * values[0]:
        assert np.mean(drawn < between) == pytest.approx(middle, abs=0.04)


def test_quantiles_that_are_none_are_refused():
    for levels, values, what in (
        ((0.5,), (1.0,), "levels: must be two or more, for instance [0.1, 0.5, 0.9]"),
        ((0.1, 0.5), (1.0,), "values: 2 levels and 1 values; each level needs a value"),
        ((0.5, 0.1), (1.0, 2.0), "levels: must increase: 0.5, 0.1"),
    ):
        with pytest.raises(BadInput, match=f"^{re.escape(what)}$"):
            Quantiles(levels=levels, values=values)
    falling = Quantiles(levels=(0.1, 0.9), values=("20 Mbit/s", 1e6))
    with pytest.raises(BadInput, match="uplink: values must not decrease where levels increase"):
        numbers_of(falling, RATES, 2, "uplink", seed=1)


def test_homes_of_countries_have_the_quantiles_of_the_table():
    every = Regions("mlab")
    assert every.names == ("us", "br", "de", "fr", "in", "jp", "ke", "za")
    for row in every.times.values():
        assert len(row) == 27
        assert all(value > 0 for value in row.values())
        for figure in ("downlink_mbps", "uplink_mbps", "rtt_ms"):
            quantiles = [value for name, value in row.items() if name.startswith(figure)]
            assert quantiles == sorted(quantiles)
    homes = Regions("mlab", ("us", "ke"), shares=(3.0, 1.0))
    assert homes.of_ranks(8) == ["us"] * 6 + ["ke"] * 2
    up, down = (numbers_of(homes, RATES, 8000, key, seed=1) for key in ("uplink", "downlink"))
    assert np.median(up[:6000]) == pytest.approx(29.0e6, rel=0.1)
    assert np.median(up[6000:]) == pytest.approx(6.47e6, rel=0.1)
    assert np.median(down[:6000]) == pytest.approx(121e6, rel=0.1)
    assert np.median(down[6000:]) == pytest.approx(9.09e6, rel=0.1)
    latency = numbers_of(homes, TIMES, 1000, "latency", seed=1, pairs=True)
    assert (latency == latency.T).all()
    # Half of 14.967 ms to a server, and as much from there.
    assert np.median(np.diag(latency)[:750]) == pytest.approx(0.014967, rel=0.15)
    assert latency[0, 1] == pytest.approx((latency[0, 0] + latency[1, 1]) / 2)
    with pytest.raises(BadInput, match="uplink: azure has latencies alone; mlab has quantiles of rates"):
        numbers_of(Regions("azure"), RATES, 8, "uplink", seed=1)
    with pytest.raises(ValueError, match="3 shares for 2 regions; each needs one"):
        Regions("mlab", ("us", "ke"), shares=(1.0, 1.0, 1.0))
