"""`decentnode.start`: a run beside the program, its results meanwhile, and its end with the program."""

import os
import signal

import pytest
import torch

import decentnode
from decentnode.errors import BadInput, RunFailed
from decentnode.formats.reader import read_object
from tests.api.test_commands import values as values  # a fixture
from tests.integration.running import alive, descendants, wait_until
from tests.integration.spawner import ROOT, Spawner

END = 60.0
SCRIPT = """
import time, decentnode
handle = decentnode.start("quickstart", rounds=100_000, communication="inproc", run_dir="run",
                          evaluation={"every": 0, "figures": False})
while not handle.progress[0]:
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_run_in_the_background_is_read_while_it_works_and_stopped(values, capsys):
    values |= {"communication": "inproc", "rounds": 100_000, "evaluation": {"every": 5, "figures": False}}
    values["training"]["optimizer"] = {"name": "SGD", "lr": 0.1}
    first = {name: tensor.clone() for name, tensor in values["model"].state_dict().items()}
    handle = decentnode.start(values, run_dir="stopped", records={"models": {"every": 1}})
    assert handle.status == "starting" and handle.progress == (0.0, 0)
    with torch.no_grad():
        for parameter in values["model"].parameters():
            parameter.zero_()
    with pytest.raises(TimeoutError, match=r"starting> has not ended within 0\.01 s, and goes on"):
        handle.wait(0.01)
    wait_until(lambda: handle.run and len(handle.run.rows) > 1, END, lambda: handle.status)
    assert handle.run.state == "running" and "of 100000" in handle.status
    assert handle.run.plot().axes[0].lines and handle.progress[1] == 100_000
    stopped = handle.stop(END)
    assert (stopped.state, handle.status, stopped.summary["exit_code"]) == ("incomplete", "stopped", 130)
    assert stopped.directory == handle.run.directory == handle.stop().directory
    moved = stopped.model(0, round=1)
    assert all((moved[name] - first[name]).abs().max() < 0.2 for name in first), "the values of the call"
    values["model"].load_state_dict(first)
    resumed = decentnode.start(values, run_dir="stopped", or_resume=True, progress=True)
    before = stopped.summary["resumable_round"]
    wait_until(lambda: resumed.progress[0] > before + 5, END, lambda: resumed.status)
    assert resumed.stop(END).summary["resumable_round"] > before
    assert f"continues after round {before + 1}\n" in capsys.readouterr().out


def test_a_run_in_the_background_that_fails_says_so_once(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handle = decentnode.start("quickstart", roundz=3)
    wait_until(lambda: handle.status.startswith("failed: "), END, lambda: handle.status)
    message = "arguments: roundz: unknown key; did you mean 'rounds'?"
    assert capfd.readouterr().err == f"decentnode.start: {message}\n"
    for _ in range(2):
        with pytest.raises(BadInput, match="unknown key"):
            handle.wait()
    assert handle.run is None
    handle = decentnode.start("quickstart")
    with pytest.raises(RunFailed, match="stopped before its directory was made"):
        handle.stop(END)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [None, signal.SIGKILL])
def test_no_process_outlives_the_program(tmp_path, signum):
    tail = "time.sleep(100)" if signum else ""
    said = tmp_path / "said.txt"
    with said.open("wb") as output:
        words, environment = ["-c", SCRIPT + tail], os.environ | {"PYTHONPATH": str(ROOT)}
        program = Spawner.of_this_process().start(words, tmp_path, environment, output.fileno())
    records = tmp_path / "run" / "records"
    wait_until(lambda: any(path.stat().st_size for path in records.glob("*")), END, lambda: "no record")
    processes = descendants(program.pid)
    assert processes
    if signum:
        program.send_signal(signum)
    program.wait(END)
    text = said.read_text()
    wait_until(lambda: not any(map(alive, processes)), END)
    if signum is None:
        line = f"decentnode.start: the program ends, so {tmp_path}/run is stopped; handle.wait() waits for"
        assert text == f"{line} the end of a run\n"
        assert read_object(tmp_path / "run" / "summary.json")["resumable_round"] is not None
