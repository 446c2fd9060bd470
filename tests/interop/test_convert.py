"""`decentnode convert`: files of FedScale, FLASH, King and WonderProxy become those of a simulation.

The files are made here in the published formats; the data sets themselves are not ours to ship.
"""

import csv
import gzip
import json
import os
import pickle
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decentnode.errors import BadInput
from decentnode.interop.device_traces import OnlineTrace, fedscale_trace
from decentnode.interop.pickles import read_pickle
from decentnode.interop.simulation_inputs import KINDS, convert
from decentnode.node.faults.virtual_faults import NodeAvailability
from decentnode.simulation.quantities import RATES, TIMES, numbers_of
from decentnode.training.pace import PaceSettings

TIMES_US = np.array(
    [[0, 20_000, 7000, 90_000], [20_000, 0, 50, 1200], [7000, 50, 0, 31], [90_000, 1200, 31, 0]]
)
HEADING = '"source","destination","timestamp","min","avg","max","mdev"\n'


def pings(rows: list[tuple[int, int, float]]) -> str:
    line = '"{}","{}","2020-07-20 00:00:17.000","0.1","{}","999.0","0.8"\n'
    return HEADING + "".join(line.format(*row) for row in rows)


def latencies(folder: Path, nodes: int) -> np.ndarray:
    """The file as `communication.latency` reads it."""
    return numbers_of(str(folder / "latency.csv"), TIMES, nodes, "latency", seed=0, pairs=True)


def king_files() -> dict[str, str]:
    pairs = [(i, j, TIMES_US[i, j]) for i in range(4) for j in range(i + 1, 4)]
    nodes = "".join(f"node {i + 1}\n" for i in range(4))
    heading = f"topology E2EGraph\n\nfailure_model NullFailureModel\n\n{nodes}"
    rows = [" ".join(map(str, row)) for row in TIMES_US]
    return {
        "matrix": "\n".join(rows),
        # The time to itself is nobody's measurement.
        "matrix of -1": "\n".join(rows).replace("0 20000 7000 90000", "-1 20000 7000 90000"),
        "meridian": "".join(f"{i + 1} {j + 1} {time}\n" for i, j, time in pairs),
        "repeated": "".join(f"{i} {j} {t}\n" * 2 + f"{i} {j} 1\n" for i, j, t in pairs),
        "uking-t": heading + "".join(f"{i + 1},{j + 1} {time}\n" for i, j, time in pairs),
    }


@pytest.mark.parametrize("name", king_files())
def test_all_formats_of_king_are_half_of_the_round_trips(tmp_path, name):
    (tmp_path / name).write_text(king_files()[name])
    convert("king", tmp_path / name, out=tmp_path)
    assert latencies(tmp_path, 4).tolist() == (TIMES_US / 2e6).tolist()
    convert("king", tmp_path / name, out=tmp_path / "one way", unit="ms", one_way=True)
    assert latencies(tmp_path / "one way", 4).tolist() == (TIMES_US / 1e3).tolist()


def test_pings_have_the_median_of_their_averages(tmp_path):
    # Server 9 was only pinged, and never pinged itself; 7 and 9 lack their pair.
    text = pings(
        [
            (3, 7, 30),
            (3, 7, 10),
            (3, 7, 11),
            (7, 3, 40),
            (7, 3, 50),
            (3, 9, 8),
            (4, 3, 2),
            (4, 7, 2),
            (4, 9, 2),
        ]
    )
    (tmp_path / "pings.csv").write_text(text)
    (tmp_path / "pings.csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(BadInput, match=r"pings\.csv: no time between 7 and 9; --complete leaves out nodes"):
        convert("wonderproxy", tmp_path / "pings.csv", out=tmp_path)
    for name in ("pings.csv", "pings.csv.gz"):
        converted = convert("wonderproxy", tmp_path / name, out=tmp_path / f"of {name}", complete=True)
        assert converted.lines[0] == "1 node of 4 left out for missing pairs"
        # Node 7 lacks one pair, as 9 does, and comes first.
        assert latencies(tmp_path / f"of {name}", 3).tolist() == [
            [0, 0.004, 0.001],
            [0.004, 0, 0.001],
            [0.001, 0.001, 0],
        ]


@given(st.integers(1, 6), st.integers(0, 99))
def test_matrices_of_text_and_numpy_stay_what_they_are(tmp_path_factory, nodes, seed):
    folder = tmp_path_factory.mktemp("matrix")
    times = np.random.default_rng(seed).exponential(80.0, (nodes, nodes)).astype(np.float32)
    np.fill_diagonal(times, 0)
    np.save(folder / "m.npy", times)
    np.savetxt(folder / "m.csv", times, delimiter=",", header="milliseconds")
    for name in ("m.npy", "m.csv"):
        convert("matrix", folder / name, unit="ms", one_way=True, out=folder / f"of {name}")
        assert latencies(folder / f"of {name}", nodes) == pytest.approx(times / 1000, rel=1e-6)
    drawn = [
        convert("matrix", folder / "m.npy", unit="s", nodes=1, seed=s, out=folder / f"{s}") for s in (1, 1000)
    ]
    assert all(path.read_text() == "0\n" for each in drawn for path in each.paths)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_fedscale_capacities_become_rates_and_slowdowns(tmp_path, protocol):
    clients = {
        i: {"computation": np.float64(10.0 * i), "communication": np.float32(1000 * i)} for i in range(1, 10)
    }
    clients[5] = {"computation": 50, "communication": 5000.0}
    (tmp_path / "capacity").write_bytes(pickle.dumps(clients, protocol))
    convert("fedscale-capacity", tmp_path / "capacity", out=tmp_path)
    # Kilobits per second; 50 ms per sample is the median.
    rates = numbers_of(str(tmp_path / "rates.csv"), RATES, 9, "uplink", seed=0)
    assert rates.tolist() == [1e6 * i for i in range(1, 10)]
    pace = PaceSettings(step_seconds=1.0, trace_path=str(tmp_path / "slowdown.csv"))
    assert [factors for _, factors in pace.trace] == [[i / 5] for i in range(1, 10)]
    texts = {}
    for seed in (1, 2, 1):
        folder = tmp_path / f"{len(texts)} of {seed}"
        converted = convert("fedscale-capacity", tmp_path / "capacity", nodes=4, seed=seed, out=folder)
        texts.setdefault(seed, []).append([path.read_text() for path in converted.paths])
        folder.rename(tmp_path / f"done {sum(map(len, texts.values()))}")
    assert texts[1][0] == texts[1][1] != texts[2][0]
    assert len(texts[1][0][0].splitlines()) == 4


@st.composite
def behaviors(draw):
    times = sorted(draw(st.lists(st.integers(0, 1000), min_size=2, max_size=12, unique=True)))
    pairs = list(zip(times[::2], times[1::2], strict=False))
    return {
        "duration": sum(end - start for start, end in pairs),
        "active": [start for start, _ in pairs],
        "inactive": [end for _, end in pairs],
        "finish_time": times[-1] + draw(st.integers(1, 100)),
        "model": "CPH1801",
    }


@given(behaviors(), st.integers(1, 5000), st.floats(0, 0.99))
def test_a_client_is_online_when_fedscale_says_so(behavior, seconds, share):
    intervals = fedscale_trace(Path("x"), "1", behavior).until(seconds)
    time = share * seconds
    # ClientMetadata.is_active: active[k] <= t mod finish_time <= inactive[k].
    within = time % behavior["finish_time"]
    borders = [*behavior["active"], *behavior["inactive"], 0, behavior["finish_time"]]
    if min(abs(within - border) for border in borders) > 1e-6:
        active = any(a <= within <= i for a, i in zip(behavior["active"], behavior["inactive"], strict=True))
        assert active == any(start <= time < end for start, end in intervals)
    assert all(start < end for start, end in intervals)
    assert all(one[1] < other[0] for one, other in pairwise(intervals))
    assert intervals, "a rank without a line would always be online"


def test_availability_is_a_file_of_intervals(tmp_path):
    def client(active, inactive):
        return {"active": active, "inactive": inactive, "finish_time": 7200, "duration": 0, "model": "X"}

    # The third is never online, and a rank without a line would always be.
    clients = {
        1: client([0, 5000], [10, 7200]),
        "b": client(np.array([60]), np.array([61])),
        2: client([], []),
    }
    (tmp_path / "trace").write_bytes(pickle.dumps(clients))
    converted = convert("fedscale-availability", tmp_path / "trace", hours=3, out=tmp_path)
    assert converted.lines[0] == "1 client passed over that are never online"
    rows = list(csv.reader((tmp_path / "availability.csv").open()))
    assert rows[0] == ["rank", "from", "to"]
    assert [[*map(float, row)] for row in rows[1:]] == [
        [0, 0, 10],
        [0, 5000, 7210],
        [1, 60, 61],
        [1, 7260, 7261],
    ]
    fault = NodeAvailability(path=str(tmp_path / "availability.csv"))
    assert fault.online[1] == [(60 * 10**9, 61 * 10**9), (7260 * 10**9, 7261 * 10**9)]
    with pytest.raises(
        BadInput, match=r"trace: 2 clients of 3 are online at times; --nodes may be at most that"
    ):
        convert("fedscale-availability", tmp_path / "trace", nodes=3, out=tmp_path / "more")


def test_flash_is_online_while_charged_locked_and_with_wifi(tmp_path):
    def messages(day: int, *states: tuple[int, str]) -> str:
        begin = datetime(2020, 1, day)
        return "".join(f"{begin + timedelta(seconds=time)}\t{state}\n" for time, state in states)

    content = {
        "a": {
            "model": "X",
            "messages": messages(
                28, (3600, "wifi"), (3700, "battery_charged_on"), (3800, "screen_lock"), (3900, "81.0%"),
                (4000, "4G"), (4100, "WIFI"), (4200, "screen_unlock"), (7200, "screen_off"),
            ),
        },
        "b": {
            "messages": messages(29, (0, "screen_lock"), (0, "wifi"), (1, "battery_charged_on"), (100, "80%"))
        },
        "c": {"messages": messages(27, (0, "screen_lock"), (50, "battery_charged_on"), (100, "3G"))},
    }  # fmt: skip
    (tmp_path / "traces.json").write_text(json.dumps(content))
    convert("flash", tmp_path / "traces.json", hours=2, out=tmp_path)
    rows = [[*map(float, row)] for row in list(csv.reader((tmp_path / "availability.csv").open()))[1:]]
    # Time 0 is midnight of the 28th. Client a repeats each hour, and b, of a later day, each 100 s.
    assert [row for row in rows if row[0] == 0] == [
        [0, 200, 400], [0, 500, 600], [0, 3800, 4000], [0, 4100, 4200],
    ]  # fmt: skip
    assert [row for row in rows if row[0] == 1][:2] == [[1, 1, 100], [1, 101, 200]]
    assert {row[0] for row in rows} == {0, 1}, "c never had Wi-Fi"
    # Who is online only later has a line, too.
    assert OnlineTrace("d", ((50.0, 60.0),), 100.0).until(20.0) == [(50.0, 60.0)]


class Exploit:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    "content",
    [
        Exploit(os.system, "touch harm"),
        Exploit(eval, "open('harm', 'w')"),
        Exploit(os.mkdir, "harm"),
        {1: {"computation": 3.0, "communication": Exploit(os.mkdir, "harm")}},
        {1: {"computation": np.array([Exploit(os.mkdir, "harm")], dtype=object)}},
        {1: datetime(2020, 1, 1)},
        {1: {2, 3}, 2: Path("x")},
    ],
)
def test_a_pickle_calls_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        Path("x").write_bytes(pickle.dumps(content, protocol))
        with pytest.raises(BadInput, match=r"^x: no pickle of plain values: [^\n]+$"):
            read_pickle(Path("x"))
        assert [path.name for path in Path().iterdir()] == ["x"]


ARRAYS = {
    "a": np.arange(6).reshape(2, 3),
    "f": np.asfortranarray([[1.5, 2], [3, 4]]),
    "s": np.int16(-3),
    "l": [1, "x"],
}


@given(st.integers(2, 5), st.data())
def test_a_damaged_pickle_is_values_or_bad_input(tmp_path_factory, protocol, data):
    content = bytearray(pickle.dumps(ARRAYS, protocol))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    assert read_pickle(path) == {"a": [[0, 1, 2], [3, 4, 5]], "f": [[1.5, 2], [3, 4]], "s": -3, "l": [1, "x"]}
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=4)
    ):
        content[place] = byte
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read_pickle(path)
    except BadInput as error:
        assert "\n" not in str(error)


HOLE = "; --complete leaves out nodes until no pair is missing"
CAPACITY, CAPACITIES = {"computation": 1.0, "communication": 2.0}, "fedscale-capacity"
TRACE, TRACES = {"active": [1], "inactive": [2], "finish_time": 9}, "fedscale-availability"
PLAIN = "a number > 0"
STATES = (
    "battery_charged_on, battery_charged_off, screen_lock, screen_unlock, screen_on, screen_off, wifi, "
    "unknown, 2g, 3g, 4g, 5g"
)
MESSAGES = "has no messages; they must be a text with a line for each state"
COLUMNS = "source,destination,timestamp,min,avg,max,mdev"
LINES = [
    ("king", "", "x: is empty; it must have lines such as 1 2 35000"),
    ("king", "node 1\nnode 2\n", "x: is empty; it must have lines such as 1 2 35000"),
    ("king", "1 2 35\n1 3\n", "x:2: has 2 words; it must be like 1 2 35000"),
    ("king", "1 2 35\n1 3 -4\n", "x:2: -4 is no time >= 0" + HOLE),
    ("king", "1 2 35\n1 3 fast\n", "x:2: 'fast' is no number"),
    ("king", "1 2 3\n3 1 4\n2 4 1", "x: no time between 1 and 4, nor of 2 more pairs" + HOLE),
    ("king", "0 1 2 3\n1 0 2 3\n1 2 0\n", "x:3: has 3 numbers; the first line has 4"),
    ("king", "1.2.3.4 --> 1.2.3.5 1 9 5", "x:1: '1.2.3.4' is no number"),
    ("matrix", "0 1\n\n# more\n1 -5\n2 3", "x:5: has 3 lines of 2 numbers; a matrix has as many"),
    ("matrix", "0,1\n,0", "x:2: a hole" + HOLE),
    ("matrix", "0,nan\n1,0", "x:1: a hole" + HOLE),
    ("matrix", "0 inf\n1 0", "x:1: inf is no time >= 0" + HOLE),
    ("matrix", "", "x: is empty; it must have a line for each node"),
    ("wonderproxy", "", f"x:1: has no column 'source'; the first line must be {COLUMNS}"),
    ("wonderproxy", HEADING, "x: is empty; it must have lines below its heading"),
    ("wonderproxy", HEADING + "1,2\n", "x:2: has 2 columns; the first line has 7"),
    ("wonderproxy", pings([(1, 2, 3), (2, 1, -1)]), "x:3: -1 is no time >= 0" + HOLE),
    (CAPACITIES, {}, "x: has no clients; it must be a mapping from clients to their values"),
    (CAPACITIES, {7: [1, 2]}, "x: client 7: must be a mapping, not '[1, 2]'"),
    (CAPACITIES, {7: {"computation": 1}}, "x: client 7: has no communication"),
    (
        CAPACITIES,
        {7: {**CAPACITY, "computation": float("nan")}},
        f"x: client 7: computation is 'nan'; it must be {PLAIN}",
    ),
    (
        CAPACITIES,
        {7: {**CAPACITY, "communication": "fast"}},
        f"x: client 7: communication is 'fast'; it must be {PLAIN}",
    ),
    (TRACES, {7: {**TRACE, "active": [1, 3]}}, "x: client 7: has 2 times of active, and 1 of inactive"),
    (TRACES, {7: {**TRACE, "inactive": [0.5]}}, "x: client 7: active[0] is 1, and inactive[0] only 0.5"),
    (TRACES, {7: {**TRACE, "active": [-1]}}, "x: client 7: active[0] is '-1'; it must be a number >= 0"),
    (TRACES, {7: {**TRACE, "finish_time": 0}}, f"x: client 7: finish_time is '0'; it must be {PLAIN}"),
    (TRACES, {7: {"active": 3}}, "x: client 7: has no active; it must be a list of seconds"),
    (
        "flash",
        '{"a": {"messages": "2020-01-28 10:00:00\\tsleeps"}}',
        f"x: client a: line 1 has the unknown state 'sleeps' (known: {STATES})",
    ),
    (
        "flash",
        '{"a": {"messages": "\\n2020-13-28 10:00:00\\twifi"}}',
        "x: client a: line 2 is '2020-13-28 10:00:00\\twifi'; "
        "it must be like 2020-01-28 10:00:00, a tab, screen_on",
    ),
    ("flash", '{"a": {}}', f"x: client a: {MESSAGES}"),
    ("flash", "{", "x: no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
]
"""Kind, content of the file, message."""


@pytest.mark.parametrize(("kind", "content", "message"), LINES)
def test_bad_files_have_one_line_with_their_place(tmp_path, monkeypatch, call, kind, content, message):
    monkeypatch.chdir(tmp_path)
    Path("x").write_bytes(content.encode() if isinstance(content, str) else pickle.dumps(content))
    unit = ["--unit", "ms"] if kind == "matrix" else []
    assert call("convert", kind, "x", *unit) == (2, "", message + "\n")
    assert [path.name for path in Path().iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.array([[0, 1], [np.nan, 0]]),
            "row 1, column 0: nan is no time >= 0; --complete leaves out nodes",
        ),
        (np.array([[0, 1, 2]]), "has shape (1, 3); it must be (nodes, nodes)"),
        (np.array(["a"]), "no array of numbers: its type is <U1"),
        (np.array([{}], dtype=object), "no array of numbers: Object arrays cannot be loaded"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(BadInput) as error:
        convert("matrix", tmp_path / "x.npy", unit="ms")
    assert str(error.value).startswith(f"{tmp_path / 'x.npy'}: {message}")


def test_the_command_says_what_it_wrote_and_how_it_is_used(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    Path("matrix").write_text(king_files()["matrix"])
    code, out, err = call("convert", "king", "matrix", "--nodes", "3", "--seed", "2", "--out", "king")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "king/latency.csv"
    assert out.splitlines()[1].startswith("latencies of 3 nodes; median ")
    assert out.splitlines()[2] == "communication: {name: simulated, latency: king/latency.csv}"
    again = "king/latency.csv: exists; remove it, or name another folder with --out\n"
    assert call("convert", "king", "matrix", "--out", "king") == (2, "", again)
    help_text = " ".join(call("convert", "--help")[1].replace("│", "").split())
    assert ", ".join(KINDS) in help_text
