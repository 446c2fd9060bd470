"""`decentnode.join` and `decentnode launch` when something is wrong: one line, an exit code, and no hang."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from copy import deepcopy

import pytest
import torch
from torch import nn

import decentnode
from decentnode.communication.launcher_link import attachment
from decentnode.communication.launcher_link.attachment import JoinRefusal
from decentnode.core.vector import ParameterLayout, Vector
from decentnode.errors import BadInput, RunFailed, StartError
from decentnode.launcher.own_loop.script_server import ScriptServer
from decentnode.node.own_loop.loop_steps import LoopSteps
from decentnode.node.own_loop.turn import Turn
from decentnode.parallel.joined_process import JoinedProcess
from decentnode.parallel.shared_model import LoopTensors
from decentnode.results.run import Run
from tests.integration.spawner import ROOT, Spawner

LIMIT = 60.0


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def in_threads(size, work):
    """What each rank gives, or the error that has ended it."""
    ends = {}

    def enter(rank):
        try:
            ends[rank] = work(rank)
        except Exception as error:
            ends[rank] = error
            raise

    threads = [threading.Thread(target=enter, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), ends
    return [ends[rank] for rank in range(size)]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"model": 3}, "join: model must be a torch.nn.Module, not int"),
        ({"optimizer": 3}, "join: optimizer must be one of torch.optim, or several, not int"),
        ({"optimizer": ["x"]}, "join: optimizer must be one of torch.optim, or several, not str"),
        ({"count": "optimizer"}, "join: count='optimizer' counts the steps of an optimizer; optimizer=..."),
        ({"rank": 2}, "join: rank must be from 0 to 1, not 2"),
        ({"size": None}, "join: rank and size are of threads of one process; give both, or neither"),
        ({"graph": object}, "join: arguments must be as in a configuration: "),
        ({"shared": ["2.*"]}, "join: shared: no trained parameter matches '2.*'"),
        ({"model": nn.LazyLinear(2)}, "join: the model has lazy parameters without a shape; call it once"),
        ({"model": nn.ReLU()}, "join: there is nothing to share; no parameter of the model is trained"),
    ],
)
def test_arguments(changed, line):
    arguments = {"model": made(), "rank": 0, "size": 2, **changed}
    with pytest.raises(BadInput) as found:
        decentnode.join(**arguments)
    assert str(found.value).startswith(line)


def test_no_launcher_is_needed_to_see_that_ranks_differ_or_lack(monkeypatch):
    def joined(rank, **arguments):
        model = nn.Linear(2 + rank, 2) if arguments.pop("of_other_size", False) else made()
        return decentnode.join(model, rank=rank, size=2, **arguments)

    ends = in_threads(2, lambda rank: joined(rank, of_other_size=True))
    line = "rank 1: what it shares has other names, shapes or types than that of rank 0"
    assert [(type(end), str(end)) for end in ends] == [(BadInput, line)] * 2
    ends = in_threads(2, lambda rank: joined(rank, sharing=["gossip", "choco"][rank]))
    assert {str(end) for end in ends} == {"rank 1: the arguments of join differ from those of rank 0"}
    impatient = {"failures": {"start_deadline": 0.3}}
    (end, _) = in_threads(2, lambda rank: rank or joined(rank, **impatient))
    assert isinstance(end, StartError) and str(end) == "ranks [1] of 2 did not join within 0 s"
    monkeypatch.setenv("DECENTNODE_LAUNCHER", "/nonexistent/launcher")
    monkeypatch.setenv("DECENTNODE_RANK", "0")
    monkeypatch.setenv("DECENTNODE_SIZE", "1")
    monkeypatch.setenv("DECENTNODE_LOCAL_RANK", "0")
    monkeypatch.setenv("DECENTNODE_LOCAL_SIZE", "1")
    began = time.monotonic()
    with pytest.raises(StartError, match=r"the run that has started this script has ended \("):
        decentnode.join(made())
    assert time.monotonic() - began < 5.0


class TestOptimizersAndModelsThatDidNotJoin:
    def steps(self, model, optimizer=None):
        layout = ParameterLayout.of(model)
        vector = Vector(LoopTensors(model, layout), tuple(torch.empty(layout.numel) for _ in range(2)))
        steps = LoopSteps(vector, "rank 0", lambda round: 1, lambda round: True, Turn())
        if optimizer is not None:
            steps.use(optimizer)
        return steps

    def made_round(self, steps, act):
        tally = steps.begin(steps.rounds + 1)
        act()
        steps.count()
        tally.steps, steps.turn.made = 1, 0
        return steps.finish(tally)

    def test_an_optimizer_of_another_model(self):
        with pytest.raises(BadInput, match="has none of the parameters that are shared"):
            self.steps(made(), sgd(made()))

    @pytest.mark.parametrize("changes", [True, False])
    def test_another_optimizer_steps(self, changes):
        """It is found at once where the model changes; otherwise gradients may be accumulated for long."""
        model = made()
        steps, other = self.steps(model, sgd(model)), sgd(model if changes else made())
        calls = 0
        with pytest.raises(RunFailed, match=r"without a step of the optimizer that joined; .*node.use"):
            while calls < 2000:
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
                other.step()
                calls += 1
                assert not steps.is_step()
        assert calls == (3 if changes else 1000)
        assert steps.never_steps

    def test_a_copy_is_trained(self):
        model = made()
        optimizer = sgd(model)
        steps, rounds = self.steps(model, optimizer), 0
        copy = deepcopy(model)
        with pytest.raises(RunFailed, match="10 steps have not changed the model"):
            for _ in range(20):
                copy(torch.ones(1, 4)).sum().backward()
                self.made_round(steps, optimizer.step)
                rounds += 1
        assert rounds == 9

    def test_a_learning_rate_of_zero_and_a_model_at_rest_are_no_error(self):
        model = made()
        optimizer = sgd(model, lr=0.0)
        steps = self.steps(model, optimizer)
        for _ in range(20):
            model(torch.ones(1, 4)).sum().backward()
            self.made_round(steps, optimizer.step)
        optimizer.param_groups[0]["lr"] = 0.1
        self.made_round(steps, optimizer.step)
        optimizer.zero_grad()
        for _ in range(20):
            self.made_round(steps, optimizer.step)


def test_what_a_rank_hears_of_its_launcher():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    process = JoinedProcess({0: None, 1: None}, ours, None, 0, None)
    process._check_launcher()
    attachment.send(theirs, JoinRefusal("rank 3 has other parameters"))
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"^rank 0, 1: rank 3 has other parameters; so does this rank's"):
            process._check_launcher()
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    process = JoinedProcess({0: None}, ours, None, 0, None)
    theirs.close()
    with pytest.raises(RunFailed, match=r"^rank 0: the launcher of this machine has ended"):
        process._check_launcher()


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (["false"], "local rank 0: its process ended with exit code 1 before it joined"),
        (["sleep", "60"], "no script has joined within 0 s (decentnode.join)"),
    ],
)
def test_scripts_that_do_not_join(script, line, tmp_path):
    server = ScriptServer(
        attachment.listen(tmp_path / "door"), 1, lambda _: subprocess.Popen(script, start_new_session=True)
    )
    server.start()
    with pytest.raises(StartError) as found:
        server.first_request(20.0 if script == ["false"] else 0.2)
    assert str(found.value) == line
    server.kill_scripts()
    server.dismiss(JoinRefusal("over"))
    assert len(server.wait_for_scripts(10.0)) == 1 and not (tmp_path / "door").exists()


def test_threads_that_fail(tmp_path):
    """Of three ranks one replaces a parameter, and one raises; the third goes on alone, and then leaves."""
    lines = []

    def work(rank):
        model = made()
        optimizer = sgd(model)
        node = decentnode.join(
            model, optimizer=optimizer, graph="fully_connected", rank=rank, size=3, quiet=True,
            run_dir=str(tmp_path / "run"), evaluation={"figures": False}, failures={"start_deadline": 60},
        )  # fmt: skip
        with pytest.raises(BadInput, match="this model has joined already"):
            decentnode.join(model, rank=rank, size=3)
        for step in range(12):
            if step == 3 and rank == 0:
                model[1] = nn.Linear(3, 2)
            if step == 6 and rank == 1:
                raise ValueError("the loop broke")
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            node.step()
        node.leave()
        for call in (node.step, node.round, node.serve, lambda: node.log(score=1.0), node.mean_model):
            with pytest.raises(RunFailed, match=r"after leave\(\); join the model again") as found:
                call()
            lines.append(str(found.value))
        return node.rounds

    replaced, raised, rounds = in_threads(3, work)
    assert isinstance(replaced, RunFailed) and "'1.weight' was replaced after join" in str(replaced)
    assert isinstance(raised, ValueError)
    assert rounds == 12 and {line.split(":")[0] for line in lines} == {"rank 2"}
    limit = time.monotonic() + LIMIT
    while not (tmp_path / "run" / "summary.json").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    run = Run(tmp_path / "run")
    assert run.summary["finished_nodes"] == 1
    lost = run.summary["lost_nodes"]
    assert "was replaced after join" in lost["0"] and "ValueError: the loop broke" in lost["1"]


SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
import decentnode

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
node = decentnode.join(model, optimizer=optimizer, failures={"deadline": 3}, run_dir=sys.argv[1] + "/run")
is_on = True
while is_on:
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if node.rank == 1 and node.rounds == 3:
        os._exit(7)
    time.sleep(0.05)
    is_on = node.step()
time.sleep(0.5)
Path(sys.argv[1], f"saved-{node.rank}").write_text(str(node.rounds))
if node.rank == 0:
    node.leave()
"""


def launched(tmp_path, script, nodes):
    """A `decentnode launch` of a script, which is given the folder."""
    (tmp_path / "loop.py").write_text(script)
    words = ["launch", "--nodes", str(nodes), str(tmp_path / "loop.py"), str(tmp_path)]
    python = str(Spawner.of_this_process().python())
    variables = {"PYTHONPATH": str(ROOT), "PYTHON_EXEC": python, "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [python, "-m", "decentnode", *words], cwd=tmp_path, env={**os.environ, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def test_a_launched_script_that_is_killed_before_it_has_left_is_lost(tmp_path):
    """What it may have logged after its last round is lost with it."""
    script = SCRIPT.partition("    if node.rank == 1")[0] + "    is_on = node.step()\n"
    script = script.replace("run_dir=", "rounds=3, run_dir=")
    launcher = launched(tmp_path, f"{script}if node.rank == 1:\n    os._exit(9)\nnode.log(error=1)\n", 2)
    try:
        text, _ = launcher.communicate(timeout=LIMIT)
    finally:
        launcher.kill()
    assert launcher.returncode == 3, text
    assert "rank 1 is lost: its process ended with exit code 9 while it took part" in text
    run = Run(tmp_path / "run")
    assert run.rows[-1].metrics == {"error": {0: 1.0}} and run.summary["finished_nodes"] == 1


def test_a_launched_script_that_is_lost_and_a_stop(tmp_path):
    """A rank that ends without a word is lost, and a SIGINT ends the others, which save; one never leaves."""
    launcher = launched(tmp_path, SCRIPT, 3)
    try:
        text = ""
        for line in launcher.stdout:
            text += line
            if "rank 1 is lost" in line:
                launcher.send_signal(signal.SIGINT)
        code = launcher.wait(LIMIT)
    finally:
        launcher.kill()
    assert code == 130, text
    assert "rank 1 is lost: its process ended with exit code 7 while it took part" in text
    saved = [(tmp_path / f"saved-{rank}").read_text() for rank in (0, 2)]
    assert saved[0] == saved[1] and int(saved[0]) >= 3
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_nodes"] == 2 and set(summary["lost_nodes"]) == {"1"}
    assert not [*tmp_path.glob("decentnode-*")]
