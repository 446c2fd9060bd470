"""What a person sees, word for word."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, TextIO

import msgspec
import pytest
from rich.console import Console, ConsoleDimensions, ConsoleOptions

from decentnode.communication.launcher_link.reports import Failed, Finished, Published, RoundProgress
from decentnode.config.settings import EvaluationSettings
from decentnode.core.text import (
    clock_time,
    counted,
    decimal,
    percent,
    ratio,
    readable_bytes,
    readable_seconds,
)
from decentnode.core.timeouts import Timeouts
from decentnode.errors import ExitCode
from decentnode.formats.metrics import ACCURACY, CLASSIFICATION, LOSS
from decentnode.formats.reader import EvaluationRow
from decentnode.launcher.report import live_view
from decentnode.launcher.report.console import LOG_LINES, LiveConsole, evaluation_line
from decentnode.launcher.report.live_view import (
    Dashboard,
    LiveScreen,
    Standing,
    screen_for,
)
from decentnode.launcher.state.membership import MembershipTable
from tests.support.reported import report_to

ROW = EvaluationRow(
    round=9, seconds=2.7, metrics={"accuracy": {0: 0.9, 1: 0.94}, "loss": {0: 0.2, 1: 0.3}}, train_loss={},
    bytes_sent={0: 6_000_000, 1: 6_400_000}, consensus_distance=0.0809,
    average_model={"accuracy": 0.95, "loss": 0.2},
)  # fmt: skip
EXPERIMENT = SimpleNamespace(
    settings=SimpleNamespace(
        name="trial", rounds=40, rounds_text="40 rounds", is_of_scripts=False, evaluation=EvaluationSettings()
    ),
    graph=SimpleNamespace(num_nodes=3),
    processes=(1, 2),
    execution=SimpleNamespace(workers=0),
    layout=SimpleNamespace(numel=4810, size="4,810 parameters"),
    plan=SimpleNamespace(metrics=CLASSIFICATION, shown=[], last_ranks=None),
)
SPREAD = {"mean": 0.97, "std": 0.0045, "min": 0.9611, "max": 0.9806}
SUMMARY = {
    "name": "trial", "nodes": 16, "rounds": 40, "finished_nodes": 16, "tested_nodes": 16, "lost_nodes": {},
    "broken_edges": [], "restarted_nodes": {}, "components": [], "not_finite": {},
    "refused_messages": {}, "attacker_weight": {}, "stopped_nodes": 0, "resumable_round": None,
    "startup_seconds": 2.64, "wall_seconds": 2.02, "bytes_sent": 49_418_240, "bytes_received": 49_418_240,
    "metrics": msgspec.to_builtins(CLASSIFICATION),
    "test": {"accuracy": SPREAD, "loss": {"mean": 0.08937, "std": 0.0123, "min": 0.0626, "max": 0.1158}},
    "average_model": {"accuracy": 0.975, "loss": 0.0787}, "consensus_distance": 0.0278,
    "model_hash": "048067", "peak_memory_mb_per_node": {"mean": 13.2, "std": 0.1, "min": 13.0, "max": 13.3},
    "peak_memory_mb": 211.2,
}  # fmt: skip


TARGET = {"metric": "accuracy", "value": 0.95, "reached_round": 20, "reached_value": 0.953, "best": 0.96}


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def test_the_beginning_says_what_runs(output) -> None:
    LiveConsole(output).began(EXPERIMENT, 3.77)
    assert output.getvalue() == (
        "trial: 3 nodes in 2 processes, 4,810 parameters, 40 rounds; started in 3.8 s\n"
    )


def test_an_evaluation_is_a_line_below_a_heading(output) -> None:
    screen = LiveConsole(output)
    screen.evaluated(ROW)
    screen.evaluated(ROW)
    line = "    10       92.00   90.00   94.00   95.00  0.2500   0.0809  12.4 MB       2.7 s"
    names = " round  accuracy %  lowest highest average    loss distance     sent        time"
    assert output.getvalue().splitlines() == [names, line, line]
    assert len(names) == len(line) <= 80


def test_what_is_not_known_is_a_dash(output) -> None:
    LiveConsole(output).evaluated(
        EvaluationRow(0, 1.0, {"accuracy": {0: 0.5}, "loss": {0: None}}, {}, {0: 0})
    )
    assert output.getvalue().splitlines()[-1] == (
        "     1       50.00   50.00   50.00       -       -        -      0 B       1.0 s"
    )


def test_columns_stay_apart_in_runs_that_take_long(output) -> None:
    row = msgspec.structs.replace(ROW, seconds=754.0, bytes_sent={0: 999_900_000}, consensus_distance=1.9e-8)
    LiveConsole(output).evaluated(row)
    assert output.getvalue().splitlines()[-1].endswith("  1.9e-08   1.0 GB 12 min 34 s")


def test_a_run_that_is_judged_by_its_loss_says_so(output) -> None:
    screen = LiveConsole(output)
    screen.began(
        SimpleNamespace(
            **vars(EXPERIMENT) | {"plan": SimpleNamespace(metrics=(LOSS,), shown=[], last_ranks=None)}
        ),
        1.0,
    )
    screen.evaluated(ROW)
    summary = SUMMARY | {
        "metrics": msgspec.to_builtins((LOSS,)), "test": {"loss": SPREAD}, "average_model": {"loss": 0.5}
    }  # fmt: skip
    screen.ended(summary, Path("/runs/x"), ExitCode.OK)
    lines = output.getvalue().splitlines()
    assert lines[1].split() == ["round", "loss", "lowest", "highest", "average", "distance", "sent", "time"]
    assert lines[2].split()[:6] == ["10", "0.2500", "0.2000", "0.3000", "0.2000", "0.0809"]
    assert lines[5:7] == [
        "  test loss          0.9700 ± 0.0045, from 0.9611 to 0.9806",
        "  average model      0.5000",
    ]
    dashboard = Dashboard("trial", 40, began=0.0, metric=LOSS)
    dashboard.evaluated(ROW)
    dashboard.update(Standing(), now=1.0)
    assert "0.2000 to 0.3000" in (text := shown(dashboard, 1.0)) and "accuracy" not in text


@pytest.mark.parametrize("value", [10.00399, 399.7696, 999.9999, -999.9999, 1e30, -1e-30])
def test_columns_stay_apart_whatever_the_numbers(value) -> None:
    row = EvaluationRow(
        10**8, 1e7, {"accuracy": {0: 1.0, 1: 1.0}, "loss": {0: value, 1: value}}, {}, {0: 10**22},
        consensus_distance=abs(value), average_model={"accuracy": 1.0},
    )  # fmt: skip
    cells = ["100000001", "100.00", "100.00", "100.00", "100.00", decimal(value), decimal(abs(value))]
    assert evaluation_line(row, CLASSIFICATION).split() == [*cells, "10000", "EB", "2777", "h", "46", "min"]


@pytest.mark.slow
def test_a_full_disk_does_not_change_how_the_command_ends() -> None:
    code = (
        "import sys; from decentnode.launcher.report.console import LiveConsole;"
        "screen = LiveConsole(sys.stdout);"
        "screen.line('x' * 100_000); screen.line('y'); sys.exit(7)"
    )
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", code], stdout=full).returncode == 7


def test_the_end_is_a_table(output) -> None:
    LiveConsole(output).ended(
        SUMMARY, Path("/runs/x"), ExitCode.OK, [("pictures", "overview.png and 1 more")]
    )
    assert (
        output.getvalue()
        == """
trial: all 16 nodes finished 40 rounds (exit code 0)
  test accuracy      97.00 % ± 0.45, from 96.11 to 98.06
  test loss          0.0894 ± 0.0123, from 0.0626 to 0.1158
  average model      97.50 %, loss 0.0787
  consensus distance 0.0278
  sent, received     49.4 MB, 49.4 MB; 3.1 MB sent per node
  time               2.0 s, after 2.6 s to start
  memory             211.2 MB, at most 13.3 MB in a node's process
  model hash         048067
  pictures           overview.png and 1 more
  results            /runs/x
"""
    )


def test_the_end_keeps_a_long_name_apart_from_its_value(output) -> None:
    metrics = [{"name": "top_3_accuracy", "higher_is_better": True, "is_fraction": True}]
    test = {"top_3_accuracy": SUMMARY["test"]["accuracy"]}
    summary = SUMMARY | {"metrics": metrics, "test": test, "average_model": None}
    LiveConsole(output).ended(summary, Path("/runs/x"), ExitCode.OK)
    assert "\n  test top_3_accuracy 97.00 % ± 0.45, from 96.11 to 98.06\n" in output.getvalue()
    assert "\n  results             /runs/x\n" in output.getvalue()


def test_the_end_names_what_was_measured_on_validation_samples(output) -> None:
    metrics = [ACCURACY, ACCURACY.of_validation]
    summary = SUMMARY | {
        "metrics": [msgspec.to_builtins(metric) for metric in metrics],
        "validation": {"validation_accuracy": SUMMARY["test"]["accuracy"]},
        "average_model": {"accuracy": 0.5, "validation_accuracy": 0.25},
    }
    LiveConsole(output).ended(summary, Path("/runs/x"), ExitCode.OK)
    assert "\n  validation accuracy 97.00 % ± 0.45, from 96.11 to 98.06\n" in output.getvalue()
    assert "\n  average model       50.00 %, validation accuracy 25.00 %\n" in output.getvalue()


def test_the_end_of_a_run_without_any_result(output) -> None:
    memory = ("peak_memory_mb", "peak_memory_mb_per_node")
    nothing = dict.fromkeys(("average_model", "consensus_distance", *memory))
    nothing["test"] = {"accuracy": None, "loss": None}
    lost = {str(rank): f"rank {rank}, round 2: the loss is nan" for rank in range(12)}
    summary = SUMMARY | nothing | {"finished_nodes": 0, "lost_nodes": lost}
    LiveConsole(output).ended(summary, Path("/runs/x"), ExitCode.FAILED, [("pictures", "none: no luck")])
    lines = output.getvalue().splitlines()
    assert lines[1] == "trial: failed; 0 of 16 nodes finished (exit code 4)"
    assert lines[3] == "  lost               rank 0, round 2: the loss is nan"
    assert lines[4] == "                     rank 1, round 2: the loss is nan"
    assert lines[13:] == [
        "                     and 2 more, named in summary.json",
        "  pictures           none: no luck",
        "  results            /runs/x",
    ]


@pytest.mark.parametrize(
    ("code", "changes", "expected"),
    [
        (3, {"finished_nodes": 15, "lost_nodes": {"3": "killed"}}, "15 of 16 nodes finished, 1 lost"),
        (3, {"broken_edges": [[1, 2, 3]]}, "16 of 16 nodes finished; some links were lost"),
        (
            3, {"not_finite": {"2": 9, "11": 4}},
            "16 of 16 nodes finished, 2 with a test loss that is not finite",
        ),
        (
            0, {"target": TARGET | {"last_round": 24}},
            "all 16 nodes finished at the target, after 25 of 40 rounds",
        ),
        (0, {"target": TARGET | {"last_round": 39}}, "all 16 nodes finished 40 rounds"),
        (130, {"finished_nodes": 2}, "ended by Ctrl-C; 2 of 16 nodes finished"),
        (143, {"finished_nodes": 2}, "ended by SIGTERM; 2 of 16 nodes finished"),
        (129, {"finished_nodes": 2}, "ended by the end of its terminal; 2 of 16 nodes finished"),
        (130, {"stopped_nodes": 16, "resumable_round": 21}, "stopped by Ctrl-C after round 22"),
        (5, {"finished_nodes": 0}, "out of memory; 0 of 16 nodes finished"),
    ],
)  # fmt: skip
def test_the_headline_says_how_it_ended(output, code, changes, expected) -> None:
    LiveConsole(output).ended(SUMMARY | changes, Path("x"), ExitCode(code))
    assert output.getvalue().splitlines()[1] == f"trial: {expected} (exit code {code})"


def test_models_without_a_finite_loss_are_named(output) -> None:
    LiveConsole(output).ended(SUMMARY | {"not_finite": {"2": 9, "11": 4}}, Path("x"), ExitCode.NODES_LOST)
    assert "  not finite         the test loss of ranks 2 and 11, since round 5\n" in output.getvalue()


def test_a_graph_that_fell_apart_is_reported(output) -> None:
    summary = SUMMARY | {"lost_nodes": {"2": "killed", "5": "killed"}, "components": [[0, 1], [3, 4]]}
    LiveConsole(output).ended(summary, Path("x"), ExitCode.NODES_LOST)
    line = "  partitioned        into 2 components that trained separately: ranks 0 and 1; ranks 3 and 4\n"
    assert line in output.getvalue()


def test_nodes_that_a_signal_ended_are_not_called_lost(output) -> None:
    summary = SUMMARY | {"finished_nodes": 0, "lost_nodes": {"0": "its process ended with exit code 143"}}
    LiveConsole(output).ended(summary, Path("x"), ExitCode.INTERRUPTED)
    assert "exit code 143" not in output.getvalue()


def test_an_end_by_a_signal_says_what_a_repetition_does(output) -> None:
    nothing = SUMMARY | {"finished_nodes": 0, "run_id": f"{9:016x}"}
    begins_again = "not saved          a repetition begins again; checkpoint.every saves nodes meanwhile\n"
    resumed = "resume with        decentnode resume x (from round 23)\n"
    job = "resume with        submit the same job again (from round 23)\n"
    for changes, code, repetition, expected in [
        ({}, 143, "", begins_again),
        ({}, 3, "", ""),
        ({"run_id": "0" * 16}, 143, "", ""),  # resumed, and stopped before its start
        ({"resumable_round": 21}, 143, "", resumed),
        ({"resumable_round": 21}, 143, "submit the same job again", job),
        ({"resumable_round": 21}, 3, "submit the same job again", resumed),  # which would be left as it is
    ]:
        output.truncate(output.seek(0))
        LiveConsole(output).ended(nothing | changes, Path("x"), ExitCode(code), (), repetition)
        told = [line for line in (begins_again, resumed, job) if line in output.getvalue()]
        assert told == [expected] * bool(expected)


def test_refused_messages_are_reported_by_reason_where_there_are_any(output) -> None:
    LiveConsole(output).ended(SUMMARY, Path("x"), ExitCode.OK)
    assert "refused" not in output.getvalue()
    refused = {"refused_messages": {"run id": 2, "checksum": 1}}
    LiveConsole(output).ended(SUMMARY | refused, Path("x"), ExitCode.OK)
    assert "  refused messages   1 for checksum, 2 for run id\n" in output.getvalue()


def test_the_end_of_a_log_is_shown(output, tmp_path) -> None:
    log = tmp_path / "00003.log"
    LiveConsole(output).show_log(log)
    assert output.getvalue() == ""
    native = b"frame #0: c10::Error::Error() + 0x9d\n"
    log.write_bytes(b"".join(b"line %d \xff[bold]\n" % number + native for number in range(40)))
    LiveConsole(output).show_log(log)
    lines = output.getvalue().splitlines()
    assert len(lines) == LOG_LINES
    assert lines == [f"    line {number} \ufffd[bold]" for number in range(10, 40)]


def test_a_reader_that_is_gone_does_not_end_the_run() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output:
        screen = LiveConsole(output)
        screen.line("lost")
        screen.line("lost too")
        assert screen.output.name == os.devnull
        screen.output.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)


def membership(*reports) -> MembershipTable:
    table = MembershipTable(range(4), {})
    table.start()
    report_to(table, *reports)
    return table


def test_the_standing_counts_those_who_still_count() -> None:
    standing = Standing.of(
        membership(
            RoundProgress(0, 9, 0.5, 100), Published(1, 4, 1.5, 200, 1.0, True),
            Failed(2, "gone"), Finished(3, 10, "", 300, 0, 1.0),
        )
    )  # fmt: skip
    assert (standing.slowest, standing.fastest, standing.done) == (5, 10, pytest.approx(25 / 3))
    assert (standing.sent, standing.loss) == (600, 1.0)
    assert standing.states == Counter(running=2, finished=1, lost=1)


def test_of_many_nodes_the_panel_has_histograms() -> None:
    table = MembershipTable(range(100), {})
    table.start()
    report_to(table, *(RoundProgress(rank, 9 if rank < 75 else 24, 0.5, 100) for rank in range(100)))
    dashboard = Dashboard("many", 40, began=0.0)
    dashboard.update(Standing.of(table), 1.0)
    accuracy = [0.5] * 10 + [0.9] * 5 + [0.7]
    metrics = {"accuracy": dict(enumerate(accuracy)), "loss": {0: 1.0}}
    dashboard.evaluated(EvaluationRow(9, 1.0, metrics, {}, {0: 1}))

    def last_line(**options: str) -> str:
        console = Console(file=(output := io.StringIO()), width=80, **options)
        console.print(dashboard.panel(2.0))
        return output.getvalue().splitlines()[-2]

    assert last_line().split("│")[1].split() == ["spread", "█", "▁", "▄", "rounds", "█", "▃"]
    ascii_only = ConsoleOptions(
        size=ConsoleDimensions(80, 25), legacy_windows=False, min_width=1, max_width=80, is_terminal=False,
        encoding="ascii", max_height=25,
    )  # fmt: skip
    (line,) = live_view.Histogram([1.0, 1.0, 2.0]).__rich_console__(Console(), ascii_only)
    assert line.plain == "#" + " " * 14 + "="


def test_the_panel_is_erased_whole_after_the_terminal_has_become_narrower() -> None:
    """A terminal of half the width shows each of its seven lines as two."""
    screen = LiveScreen(output := io.StringIO())
    screen.console = Console(file=output, force_terminal=True, width=100)
    screen.dashboard = Dashboard("trial", 40, began=0.0)
    membership = MembershipTable(range(4), {})
    screen.begin_live()
    screen.progress(membership)
    screen.console.width, screen._next = 60, 0.0
    output.truncate(0)
    screen.progress(membership)
    assert output.getvalue().count("\x1b[1A") == 2 * 7 - 1
    screen.close()


def shown(dashboard: Dashboard, now: float) -> str:
    output = io.StringIO()
    Console(file=output, width=80, color_system=None).print(dashboard.panel(now))
    return output.getvalue()


def test_the_panel_shows_where_the_run_is() -> None:
    dashboard = Dashboard("trial", 40, began=100.0)
    dashboard.update(Standing(slowest=8, fastest=12, done=10.0, sent=0), now=118.0)
    assert "not tested yet" in shown(dashboard, 118.0)
    dashboard.is_tested = False
    assert "accuracy  -  " in shown(dashboard, 118.0) and "tested" not in shown(dashboard, 118.0)
    dashboard.row = ROW
    dashboard.update(Standing(slowest=8, fastest=12, done=10.0, sent=12_400_000, loss=0.0712), now=120.0)
    text = shown(dashboard, 120.0)
    assert len(text.splitlines()) == 7
    for part in (
        "─ trial ─", "8 to 12 of 40", "92.00 %", "90.00 to 94.00", "average model 95.00 %", "0.0712 training",
        "0.2500 test", "consensus distance 0.0809", "12.4 MB", "6.2 MB/s", "0 lost", "0:20, about 1:00 left",
    ):  # fmt: skip
        assert part in text


def test_a_simulation_shows_virtual_and_wall_time_and_their_ratio(output) -> None:
    dashboard = Dashboard("trial", 40, began=100.0, seconds_before=2.0)
    dashboard.update(Standing(done=10.0, sent=1000, virtual_seconds=133.0), now=102.0)
    text = shown(dashboard, 102.0)
    assert "virtual 2 min 13 s, wall 4.0 s, 33x, about 0:06 left" in text and "B/s (wall)" in text
    screen = LiveConsole(output)
    screen.evaluated(msgspec.structs.replace(ROW, seconds=133.0, wall_seconds=4.0))
    names, line = output.getvalue().splitlines()
    assert names.endswith("     sent     virtual      wall  ratio")
    assert line.endswith(" 12.4 MB  2 min 13 s     4.0 s    33x") and len(line) == len(names)
    # A simulation may be slower than reality, and has no ratio before any real time.
    assert [ratio(3.0, 30.0), ratio(3.0, 1000.0), ratio(9.0, 4.0), ratio(1.0, 0.0)] == [
        "0.1x", "0.003x", "2.2x", "-",
    ]  # fmt: skip


def test_the_panel_keeps_the_evaluation_of_the_highest_round() -> None:
    dashboard = Dashboard("trial", 40, began=0.0)
    for round in (9, 3):
        dashboard.evaluated(msgspec.structs.replace(ROW, round=round))
    assert dashboard.row == ROW


def test_the_rate_is_that_of_the_last_seconds() -> None:
    dashboard = Dashboard("trial", 40, began=0.0)
    for second in range(21):
        dashboard.update(Standing(sent=1000 if second < 10 else 1000 + 50 * (second - 10)), now=float(second))
    assert dashboard.rate == 50.0


def test_time_left_is_unknown_before_the_first_round() -> None:
    assert Dashboard("trial", 40, began=0.0).seconds_left(5.0) is None
    assert (
        Dashboard("trial", 40, 0.0, done_before=10.0, standing=Standing(done=10.0)).seconds_left(5.0) is None
    )


def test_time_left_in_a_run_that_continues_is_judged_by_the_rounds_since_then() -> None:
    dashboard = Dashboard("trial", 1000, began=0.0, done_before=900.0)
    dashboard.update(Standing(done=910.0), now=20.0)
    assert dashboard.seconds_left(20.0) == 180.0


def test_the_live_screen_keeps_the_lines_and_gives_the_terminal_back(output, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    screen = LiveScreen(output)
    screen.began(EXPERIMENT, 1.0)
    screen.progress(membership())
    screen.line("rank 1 is lost: [bold]why[/bold]")
    screen.evaluated(ROW)
    screen.ended(SUMMARY, Path("/runs/x"), ExitCode.OK)
    text = output.getvalue()
    assert "rank 1 is lost: [bold]why[/bold]" in text
    assert "    10       92.00   90.00" in text
    assert text.rindex("16 nodes finished") > text.rindex("╰")
    assert text.rindex("\x1b[?25h") > text.rfind("\x1b[?25l")
    screen.close()


def test_a_live_screen_is_chosen_for_a_terminal_only(output, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    leader, follower = pty.openpty()
    try:
        with os.fdopen(follower, "w") as terminal:
            assert type(screen_for(terminal)) is LiveScreen
            assert type(screen_for(output)) is LiveConsole
            monkeypatch.setenv("TERM", "dumb")
            assert type(screen_for(terminal)) is LiveConsole
    finally:
        os.close(leader)


@pytest.mark.parametrize("seen_late", [False, True])
def test_a_terminal_that_is_gone_does_not_end_the_run(seen_late) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        screen = LiveScreen(terminal)
        screen.began(EXPERIMENT, 1.0)
        os.close(leader)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(follower, b"x")
        if not seen_late:
            screen.progress(membership())
            screen.evaluated(ROW)
        screen.close()
        assert screen.output.name == os.devnull
        screen.line("lost")
        screen.output.close()


@pytest.fixture
def impatient(monkeypatch) -> Iterator[None]:
    """Screens that soon give up; one that waits for ever fails."""

    def give_up(*_: object) -> None:
        raise AssertionError("it waits for a reader")

    monkeypatch.setattr(Timeouts, "console_line", 0.01)
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def unread(impatient) -> Iterator[TextIO]:
    """The end of a full pipe that nobody reads."""
    read, write = os.pipe()
    fill(write)
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as output:
        output.reader = reader
        yield output
        drain(reader)


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    os.set_blocking(pipe, True)


def drain(reader: BinaryIO) -> str:
    """What has been written, without the bytes that filled the pipe."""
    os.set_blocking(reader.fileno(), False)
    return (reader.read() or b"").replace(b"\0", b"").decode()


def test_lines_that_nobody_reads_are_dropped(unread) -> None:
    plain = LiveConsole(unread)
    for number in range(3):
        plain.line(f"line {number}")
    assert drain(unread.reader) == ""
    plain.line("line 3")
    plain.line("line 4")
    assert drain(unread.reader) == "line 3\nline 4\n"


def test_the_live_screen_waits_for_no_reader_either(unread, monkeypatch) -> None:
    monkeypatch.setattr(live_view, "DRAW_INTERVAL", 0.0)
    drain(unread.reader)
    live = LiveScreen(unread)
    live.began(EXPERIMENT, 1.0)
    fill(unread.fileno())
    live.progress(membership())
    live.evaluated(ROW)
    live.close()
    assert os.fstat(unread.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


def test_the_end_of_a_run_that_nobody_reads_is_dropped(unread) -> None:
    LiveConsole(unread).ended(SUMMARY, Path("x"), ExitCode.OK)
    assert drain(unread.reader) == ""


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    """One whose output may be halted by a test, as by Ctrl-S."""
    leader, follower = pty.openpty()
    with os.fdopen(os.dup(follower), "w") as output:
        yield output
        termios.tcflow(follower, termios.TCOON)
    os.close(follower)
    os.close(leader)


def test_a_terminal_that_was_halted_is_given_back_too(impatient, terminal) -> None:
    before = termios.tcgetattr(terminal)
    descriptor = os.dup(terminal.fileno())
    live = LiveScreen(terminal)
    live.began(EXPERIMENT, 1.0)
    termios.tcflow(descriptor, termios.TCOOFF)
    live.close()
    after = termios.tcgetattr(descriptor)
    os.close(descriptor)
    assert after == before


def test_progress_of_a_thousand_nodes_costs_little(output, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    many = MembershipTable(range(1024), {})
    screen = LiveScreen(output)
    screen.began(EXPERIMENT, 1.0)
    screen.progress(many)
    began = time.process_time()
    for _ in range(1000):
        screen.progress(many)
    assert (time.process_time() - began) / 1000 < 0.002
    screen.close()


def test_numbers_read_well() -> None:
    assert [readable_bytes(n) for n in (0, 999, 1000, 12_345, 99_960, 999_600, 10**9, 4.2e13)] == [
        "0 B", "999 B", "1.0 kB", "12.3 kB", "100 kB", "1.0 MB", "1.0 GB", "42.0 TB",
    ]  # fmt: skip
    assert [readable_seconds(s) for s in (4.94, 99.9, 99.99, 3599.6, 7500)] == [
        "4.9 s", "99.9 s", "1 min 40 s", "1 h 00 min", "2 h 05 min",
    ]  # fmt: skip
    assert [clock_time(s) for s in (7.9, 760, 7509)] == ["0:07", "12:40", "2:05:09"]
    assert [decimal(x) for x in (0.0, 0.5, 1e-5, 99.9, 399.7696, 12345.0, float("nan"), None)] == [
        "0.0000", "0.5000", "1.0e-05", "99.9000", "399.770", "1.2e+04", "-", "-",
    ]  # fmt: skip
    assert (percent(0.97), percent(None)) == ("97.00", "-")
    assert (counted(1, "node"), counted(1200, "node")) == ("1 node", "1,200 nodes")
    assert counted(2, "process", "processes") == "2 processes"
