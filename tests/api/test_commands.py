"""`decentnode.run` and its siblings: objects of the caller, what they leave as it was, and how they end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import decentnode
from decentnode.api import display, process, work
from decentnode.config import loader
from decentnode.config.python_source import document_of, passed_plugin
from decentnode.core.registry import MODELS, SHARINGS
from decentnode.errors import STOPPED_BY, BadInput, ConfigError, RunFailed
from decentnode.formats.reader import read_object
from decentnode.node import child_answers
from decentnode.sharing import Gossip
from tests.integration.spawner import Spawner
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
QUIET = {"every": 0, "figures": False}
FOUR_PROCESSES = {"name": "zeromq", "nodes_per_process": 4}


class Boosted(Gossip):
    """A scheme with state of its own, which no options describe."""

    def __init__(self, boost: float = 1.0) -> None:
        super().__init__()
        self.boost = boost
        self.seen: list[int] = []


@dataclass
class Plain(Gossip):
    """A scheme that its fields describe."""

    boost: float = 1.0


def squared(width: int = 4) -> nn.Module:
    return nn.Linear(6, width)


@pytest.fixture
def values(tmp_path, monkeypatch):
    """An experiment made of objects."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(120, 6))
    labels = (inputs[:, 0] > 0).astype(int)
    train, test = (inputs[:80], labels[:80]), (torch.from_numpy(inputs[80:]), torch.from_numpy(labels[80:]))
    network = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2))
    return {
        "rounds": 3,
        "graph": nx.cycle_graph(4),
        "dataset": {"name": (train, test), "partition": "shards"},
        "model": network,
        "training": {"optimizer": partial(torch.optim.SGD, lr=0.0), "batch_size": 8, "steps_per_round": 1},
        "sharing": Boosted(2.0),
        "evaluation": QUIET,
    }


def test_objects_run_and_the_caller_stays_as_it_was(values):
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run = decentnode.run(values, progress=False)
    # Without a learning rate all nodes keep the weights of the model that was passed.
    kept = run.model(2)
    for name, tensor in values["model"].state_dict().items():
        assert torch.allclose(kept[name], tensor, atol=1e-6)
    saved = (run.directory / "config.yaml").read_text()
    comment = (
        "# Passed as objects from Python, so this file lacks them: dataset (samples), model (Sequential)"
    )
    assert saved.startswith(f"{comment}, sharing (Boosted)\n")
    for line in ("name: run", "name: object:Boosted", "name: SGD", "name: shards", "lr: 0.0"):
        assert line in saved
    hashes = []

    def again(**overrides):
        run = decentnode.run(values, progress=False, **{"training.optimizer.lr": 0.5}, **overrides)
        hashes.append(run.summary["model_hash"])

    def in_a_thread():
        with torch.inference_mode():
            again(communication="inproc")

    async def in_an_event_loop():
        again()

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    torch.set_default_dtype(torch.float64)
    try:
        asyncio.run(in_an_event_loop())
    finally:
        torch.set_default_dtype(torch.float32)
    assert hashes[0] == hashes[1] != run.summary["model_hash"]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), generator)
    assert handlers == [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


class Doubles(TorchDispatchMode):
    """Changes what operators compute."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * 2


class Refuses(TorchFunctionMode):
    """Refuses all functions of torch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError("a mode of the caller")


class OwnPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes no event loops."""

    def new_event_loop(self):
        raise AssertionError("a policy of the caller")


def test_a_run_is_the_same_whatever_the_caller_has_set(values, monkeypatch):
    values |= {"communication": "inproc", "rounds": 1}
    values["training"]["optimizer"] = partial(torch.optim.SGD, lr=0.5)
    expected = decentnode.run(values, progress=False).summary["model_hash"]
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    with contextlib.ExitStack() as stack:
        for signum, meaning in (
            (signal.SIGCHLD, signal.SIG_IGN),
            (signal.SIGPIPE, signal.SIG_DFL),
            (signal.SIGUSR2, lambda *_: os._exit(9)),
        ):
            stack.callback(signal.signal, signum, signal.signal(signum, meaning))
        stack.callback(
            signal.pthread_sigmask,
            signal.SIG_SETMASK,
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
        )
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write_end))
        stack.callback(asyncio.set_event_loop_policy, None)
        asyncio.set_event_loop_policy(OwnPolicy())
        for name in ("stdin", "stdout", "stderr"):
            stack.enter_context(monkeypatch.context()).setattr(sys, name, None)
        for state in (
            np.errstate(all="raise"),
            torch.no_grad(),
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 2, lambda tensor: tensor),
            torch.device("meta"),
            Doubles(),
            FakeTensorMode(),
            Refuses(),
        ):
            stack.enter_context(state)
        run = decentnode.run(values)
    assert run.summary["model_hash"] == expected
    with pytest.raises(BlockingIOError):
        os.read(read_end, 1)
    os.close(read_end)
    os.close(write_end)


def test_the_process_of_a_run_has_the_switches_of_a_new_python():
    def switches():
        found = {path: attrgetter(path)(torch) for path in work.TORCH_BACKENDS}
        kernels = ("flash", "mem_efficient", "math", "cudnn")
        found |= {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in kernels}
        return found | {
            "precision": torch.get_float32_matmul_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "anomaly": torch.is_anomaly_enabled(),
            "dtype": torch.get_default_dtype(),
        }

    def other(value):
        return not value if isinstance(value, bool) else "ieee"

    def differences(file):
        before = switches()
        for path, value in work.TORCH_BACKENDS.items():
            backend, _, option = path.rpartition(".")
            setattr(attrgetter(backend)(torch), option, other(value))
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.autograd.set_detect_anomaly(True)
        torch.set_default_dtype(torch.float64)
        torch.backends.cuda.enable_flash_sdp(False)
        work._forget_caller()
        after = switches()
        file.write(repr({name: after[name] for name in before if after[name] != before[name]}).encode())

    assert child_answers.answer_of(differences, 60).content == b"{}"


def test_a_killed_run_is_told_where_children_are_not_waited_for(values):
    class Kills(Gossip):
        """Kills the launcher."""

        def outgoing(self, vector, view):
            os.kill(os.getppid(), signal.SIGKILL)
            return super().outgoing(vector, view)

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(RunFailed, match="the process of the run was killed"):
            decentnode.run({**values, "sharing": Kills}, progress=False)
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"rouns": 3}, "arguments: rouns: unknown key; did you mean 'rounds'?"),
        ({"rounds": torch.ones(2)}, "arguments: rounds: must be a whole number > 0, not an object of Tensor"),
        ({"sharing": {"name": Boosted, "bost": 1}}, "arguments: sharing.bost: unknown option of"),
        (
            {"sharing": nn.Linear(1, 1)},
            "arguments: sharing: 'object:Linear' is no sharing; it must be a subclass",
        ),
        ({"sharing": nn}, "arguments: sharing: the module torch.nn is no sharing; pass a class or an object"),
        (
            {"dataset": {"name": (torch.ones(2), torch.ones(2)), "clases": [1]}},
            "arguments: dataset.clases: unknown option of object:samples; did you mean 'classes'?",
        ),
        (
            {"graph": nx.path_graph(["a", "b"])},
            "arguments: graph: the nodes of a networkx graph must be the ranks",
        ),
        (
            {"graph": nx.empty_graph(3)},
            "arguments: graph: 3 of 3 nodes have no neighbor (0, 1, 2); add edges",
        ),
        ({"model": 3}, "arguments: model: must be a name, or a mapping with its options, not 3"),
        (
            {"model": {"name": "mlp", "hidden": nn.ReLU()}},
            "arguments: model.hidden: must be a list of whole numbers",
        ),
    ],
)
def test_wrong_values_are_told_as_in_a_file(values, overrides, line):
    with pytest.raises(ConfigError) as error:
        loader.load(partial(document_of, values), [overrides])
    assert line in str(error.value)


def test_what_cannot_be_copied_is_refused():
    class Locked(Boosted):
        """Has a lock."""

        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(BadInput, match="Locked cannot be copied, and each node needs a copy: TypeError"):
        passed_plugin(SHARINGS, Locked())
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ConfigError, match=r"training.optimizer: an object of SGD cannot be shared by nodes"):
        loader.load(QUICKSTART, [{"training": {"optimizer": optimizer}}])


def test_what_can_be_imported_is_saved_by_its_name():
    here = __name__
    assert passed_plugin(SHARINGS, Gossip())[0] == "gossip"
    assert passed_plugin(SHARINGS, Plain(boost=3.0)) == (
        f"{here}:Plain",
        Plain,
        {"fill": "own", "outer": None, "outer_every": 1, "blend": 0.0, "boost": 3.0},
    )
    assert passed_plugin(MODELS, squared) == (f"{here}:squared", squared, {})
    assert passed_plugin(MODELS, partial(squared, width=2)) == (f"{here}:squared", squared, {"width": 2})
    name, cls, options = passed_plugin(SHARINGS, Boosted(4.0))
    first, second = cls(), cls()
    assert (name, options, first.boost) == ("object:Boosted", {}, 4.0)
    assert first.seen is not second.seen
    # Passed again, the settings are the same.
    settings = loader.load(QUICKSTART, [{"sharing": Boosted(2.0)}])
    assert decentnode.validate(settings, load=False) == loader.resolved(settings)
    with pytest.raises(ConfigError, match=r"sharing: 'object:Boosted' was passed as an object from Python"):
        loader.load(QUICKSTART, ["sharing=object:Boosted"])


def test_validate_says_what_columns_became_and_returns_the_values(tmp_path, capfd):
    (tmp_path / "table.csv").write_text("size,kind,label\n" + "1,x,0\n2,y,1\n" * 4)
    table = {"name": "table", "path": str(tmp_path / "table.csv"), "label": "label", "mean": 0, "std": 1}
    values = decentnode.validate(
        {
            "graph": {"name": "ring", "nodes": 2}, "dataset": table, "rounds": 2, "model": "mlp",
            "training": {"optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 2, "steps_per_round": 1},
        }
    )  # fmt: skip
    assert values["rounds"] == 2
    out, said = capfd.readouterr()
    assert out == "" and "kind    category       2  x, y" in said


def test_ctrl_c_stops_gracefully(tmp_path, monkeypatch, capfd, request):
    monkeypatch.chdir(tmp_path)

    def interrupt() -> None:
        limit = time.monotonic() + 60
        while not any(file.stat().st_size for file in tmp_path.glob("runs/*/records/*")):
            assert time.monotonic() < limit
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    # Other tests of this process may have left a handler of their own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(
        KeyboardInterrupt, match=r"runs/quickstart-.*: stopped; decentnode.resume continues it"
    ):
        decentnode.run(QUICKSTART, rounds=100_000, communication="inproc", evaluation=QUIET)
    thread.join()
    (directory,) = tmp_path.glob("runs/*")
    assert decentnode.Run(directory).state == "incomplete"
    assert "stopping after the current round" in capfd.readouterr().out


def test_a_signal_that_ends_the_caller_stops_the_run_first(tmp_path, monkeypatch):
    """As Slurm sends it at a limit of time, to all processes of a step: a batch script may be a program."""
    monkeypatch.chdir(tmp_path)
    pid = os.fork()
    if pid == 0:
        for signum in STOPPED_BY:
            signal.signal(signum, signal.SIG_DFL)
        decentnode.run(QUICKSTART, rounds=100_000, communication="inproc", evaluation=QUIET, progress=False)
        os._exit(0)
    limit = time.monotonic() + 60
    while not any(file.stat().st_size for file in tmp_path.glob("runs/*/records/*")):
        assert time.monotonic() < limit
        time.sleep(0.05)
    for signum in (signal.SIGTERM, signal.SIGCONT, signal.SIGTERM):
        os.kill(pid, signum)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    (directory,) = tmp_path.glob("runs/*")
    summary = read_object(directory / "summary.json")
    assert summary["stopped_nodes"] == 16 and summary["resumable_round"] is not None


def test_a_process_that_has_used_cuda_starts_a_new_one(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    small = {"rounds": 2, "evaluation": QUIET, "communication": FOUR_PROCESSES}
    before = decentnode.run(QUICKSTART, progress=False, **small)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert decentnode.run(QUICKSTART, **small).summary["model_hash"] == before.summary["model_hash"]
    assert "all 16 nodes finished 2 rounds" in capfd.readouterr().out
    with pytest.raises(
        BadInput, match=r"^model: this process has used CUDA, so the run starts in a new process"
    ):
        decentnode.run(QUICKSTART, model=nn.Linear(64, 10), **small)


def test_a_notebook_has_a_bar_and_all_nodes_in_one_process(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shown = []

    class Handle:
        def update(self, text):
            shown.append(text)

    bar = display.NotebookBar(lambda text, display_id: Handle(), str)
    monkeypatch.setattr(process, "in_notebook", lambda: True)
    monkeypatch.setattr(process, "display_for", lambda shows: bar)
    run = decentnode.run(QUICKSTART, rounds=2, evaluation=QUIET)
    assert run.settings["communication"]["name"] == "inproc"
    assert 'value="2" max="2"' in shown[-1]
    assert "2 of 2 rounds" in shown[-1]
    assert "16 nodes in 1 process" in capfd.readouterr().out
    chosen = decentnode.run(QUICKSTART, rounds=2, evaluation=QUIET, communication=FOUR_PROCESSES)
    assert chosen.settings["communication"]["name"] == "zeromq"
    assert chosen.summary["model_hash"] == run.summary["model_hash"]


def test_a_study_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = {
        "name": "mine",
        "base": QUICKSTART,
        "axes": {"sharing": ["gossip", "choco"]},
        "set": {"rounds": 2, "evaluation": QUIET, "communication": "inproc"},
    }
    swept = decentnode.sweep(study, progress=False, jobs=1)
    assert [variant.name for variant in swept.variants] == ["choco", "gossip"]
    assert [run.state for run in swept.runs] == ["finished"] * 2
    with pytest.raises(BadInput, match=r"sweep: set: a study names its plug-ins"):
        decentnode.sweep({**study, "set": {"sharing": Boosted()}}, progress=False)


def test_errors_of_a_run_are_exceptions_with_the_same_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^nowhere.yaml: cannot be read: No such file or directory"):
        decentnode.run("nowhere.yaml", progress=False)
    with pytest.raises(BadInput, match=r"^nowhere: not the directory of a run"):
        decentnode.resume("nowhere", progress=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        crash = [{"name": "crash", "ranks": 3, "rounds": 2}]
        run = decentnode.run(QUICKSTART, progress=False, rounds=4, faults=crash, evaluation=QUIET)
    assert run.summary["lost_nodes"]
    assert "the run has finished; 1 node lost: rank 3: killed" in str(caught[-1].message)
    study = decentnode.Study([run, decentnode.Run(run.directory)])
    assert study.runs[0].directory == run.directory and len(study.runs) == 1


def run_script(folder, content):
    """Runs a script in a folder, in a process that has torch in memory; it must succeed."""
    (folder / "script.py").write_text(content)
    python = str(Spawner.of_this_process().python())
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON_EXEC": python}
    done = subprocess.run(
        [python, "script.py"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_a_script_keeps_its_random_numbers_and_its_model(tmp_path):
    script = """
import random
random.seed(0)
import decentnode, torch
from torch import nn
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
run = decentnode.run("quickstart", progress=False, rounds=1, model=network, communication="inproc",
                     evaluation={"every": 0, "figures": False})
print(random.random(), type(run.mean_model()).__name__)
try:
    decentnode.run("quickstart", progress=False, rounds=1, sharing=lambda x: x)
except decentnode.errors.ConfigError as error:
    print(error)
"""
    done = run_script(tmp_path, script)
    first, second = done.stdout.splitlines()
    assert first == "0.8444218515250481 Sequential"
    assert second.startswith("arguments: sharing: the function <lambda> makes no sharing: TypeError: ")


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch):
    """The code of docs/python.md, with fewer rounds."""
    monkeypatch.chdir(tmp_path)
    first, _, *own = blocks("docs/python.md", "python")
    few = "rounds=2, graph={'name': 'ring', 'nodes': 4}, evaluation={'every': 1, 'figures': False}"
    script = "".join([first, *own]).replace("rounds=20", few)
    for rounds in ('"rounds": 10', '"rounds": 2'):
        script = script.replace(rounds, f'{rounds}, "evaluation": {{"figures": False}}')
    done = run_script(tmp_path, script)
    assert (tmp_path / "choco.png").stat().st_size
    assert "run: all 4 nodes finished 10 rounds" in done.stdout
