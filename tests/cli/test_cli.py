import errno
import json
import math
import os
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from decentnode.cli import app as cli
from decentnode.cli import doctor
from decentnode.cli import graph as graph_report
from decentnode.cli.doctor import Finding
from decentnode.communication.zeromq.plugin import ZeroMQ
from decentnode.config import link_security, shipped
from decentnode.config import loader as config
from decentnode.config.json_schema import json_schema
from decentnode.core.registry import REGISTRIES, TRANSFORMS
from decentnode.errors import BadInput, ExitCode, RunFailed, StartError
from decentnode.graph.families import Ring, Star
from decentnode.launcher import preflight
from decentnode.mapping import job
from decentnode.sharing import Gossip

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
TWO_MACHINES = "mapping={machines: [{address: 127.0.0.1, nodes: 10}, {address: 127.0.0.2, nodes: 6}]}"


def python(code: str, **variables: str) -> str:
    """Returns what a fresh interpreter prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


# Words that are wrong.


def test_no_word_shows_the_help_and_nothing_else(call):
    code, out, err = call()
    assert (code, err) == (2, "")
    assert out.rstrip() == call("-h")[1].rstrip()


def test_version(call):
    from decentnode import __version__

    assert call("--version") == (0, f"decentnode {__version__}\n", "")


def test_help_and_readme_name_every_exit_code(call):
    _, out, _ = call("--help")
    readme = (ROOT / "README.md").read_text()
    for code in ExitCode:
        assert re.search(rf"\b{code}\b", out)
        assert re.search(rf"^\| [^|]*\b{code}\b[^|]* \|", readme, re.MULTILINE)


# What errors become.


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BadInput("a.yaml:3 x: wrong", "a.yaml:5 y: wrong"), 2, "a.yaml:3 x: wrong\na.yaml:5 y: wrong\n"),
        (StartError("nobody came"), 4, "error: nobody came\n"),
        (RunFailed("no result"), 4, "error: no result\n"),
        (MemoryError("1 TB"), 5, "out of memory: 1 TB\n"),
        (OSError(errno.ENOMEM, "no room"), 5, "out of memory: [Errno 12] no room\n"),
        (RuntimeError("CUDA out of memory."), 5, "out of memory: CUDA out of memory.\n"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Abort(), 130, ""),
    ],
)
def test_an_error_becomes_a_line_and_a_code(capsys, error, code, message):
    assert cli.explain(error) == code
    assert capsys.readouterr().err == message


def test_torch_without_memory_is_out_of_memory():
    import torch

    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert cli.explain(error.value) == ExitCode.OUT_OF_MEMORY


def test_what_nobody_expected_shows_its_traceback(capsys):
    assert cli.explain(ZeroDivisionError("x")) == ExitCode.FAILED
    assert "ZeroDivisionError: x" in capsys.readouterr().err


def test_a_full_disk_is_one_line(capsys):
    assert cli.explain(OSError(errno.ENOSPC, "No space left on device", "summary.tmp")) == ExitCode.FAILED
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device: 'summary.tmp'\n"


def test_debug_shows_the_traceback_of_what_is_otherwise_a_line(call):
    assert call("graph", "rign")[2].startswith("unknown graph 'rign'; did you mean 'ring'?")
    code, _, err = call("graph", "rign", "--debug")
    assert code == 2
    assert err.startswith("Traceback")


@pytest.mark.slow
def test_output_that_nobody_reads_is_no_error():
    command = f"{sys.executable} -m decentnode schema | head -c 10"
    answer = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def test_words_that_the_output_has_no_letters_for_are_escaped():
    code = "from decentnode.core.streams import fill_standard_streams as fill; fill(); "
    code += "print('97 % ± 0.45', '\\udce9')"
    assert python(code, PYTHONIOENCODING="ascii") == "97 % \\xb1 0.45 \\udce9\n"


def test_the_end_of_a_file_is_no_interruption(call, monkeypatch):
    def report(*_):
        raise EOFError("half a line")

    monkeypatch.setattr(graph_report, "report", report)
    code, _, err = call("graph", "ring")
    assert code == 4
    assert err.endswith("EOFError: half a line\n")


@pytest.mark.slow
def test_a_thread_amid_torch_does_not_change_how_the_command_ends():
    code = """
import threading, torch
from decentnode.cli import app as cli
from decentnode.core import process_setup
a = torch.rand(64, 64)
def observe():
    while True:
        a @ a
observer = threading.Thread(target=observe, daemon=True)
observer.start()
process_setup.leave_behind(observer)
cli.app = lambda *_, **__: print("done") or 3
cli.main(["list"])
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (3, "done\n", "")


@pytest.mark.parametrize("words", ["run x.yaml", "resume x"])
def test_several_tasks_on_a_machine_are_refused_before_anything_is_read(call, monkeypatch, words):
    monkeypatch.setattr(job, "find_job", lambda: job.SchedulerJob("torchrun", "7", (2, 2), 0))
    text = "torchrun has started 2 + 2 processes on 2 machines; start one task per machine, with mapping: "
    assert call(*words.split()) == (2, "", f"{text}{{name: environment, nodes_per_machine: N}}\n")


# Graphs.


def test_the_figures_of_a_ring(call):
    # W is circulant with 1/3 at 0 and +-1: eigenvalues 1/3 + 2/3 cos(2 pi k/4), so 1/3; log 1e-6 / log 1/3.
    assert call("graph", "ring", "nodes=4") == (
        0,
        "nodes              4\n"
        "edges              4\n"
        "degree             2\n"
        "connected          yes\n"
        "diameter           2\n"
        "weights            metropolis_hastings (doubly stochastic)\n"
        "second eigenvalue  0.333333\n"
        "rounds to 1e-6     13\n"
        "decay                  measured  expected  literature\n"
        "  a round              0.333333  0.333333  0.333333: 1/3 + 2/3 cos(2 pi/n) (Xiao and Boyd, 2004)\n",
        "",
    )


def test_the_figures_of_a_file(call, tmp_path):
    path = tmp_path / "pair.edges"
    path.write_text("3\n0 1\n1 2\n")
    out = call("graph", str(path))[1]
    assert "degree             1..2, mean 1.33" in out
    assert "edges              2\n" in out


def test_weights_can_be_chosen(call):
    out = call("graph", "star", "nodes=5", "--weights", "uniform")[1]
    assert "weights            uniform (rows sum to 1, columns do not)" in out


def test_a_ring_of_any_size_mixes_as_the_formula_says(call):
    out = call("graph", "ring", "nodes=40")[1]
    assert f"second eigenvalue  {1 / 3 + 2 / 3 * math.cos(2 * math.pi / 40):.6f}" in out


def test_the_graph_of_an_experiment_is_checked_for_its_scheme_and_drawn(call, tmp_path):
    path = tmp_path / "pictures" / "graph.svg"
    code, out, _ = call("graph", QUICKSTART, "--draw", str(path), "--color", "label")
    assert code == 0 and path.read_text().startswith("<?xml")
    lines = dict(line.split("  ", 1) for line in out.splitlines() if not line.startswith(" "))
    assert lines["matrices"].strip() == (
        "1 round checked for gossip: rows and columns sum to 1, all nodes reach each other within 4 rounds"
    )
    assert lines["picture"].strip() == str(path)
    out = call("graph", QUICKSTART, "sharing.weights=uniform", "graph=../graphs/star_16.edges")[1]
    assert "matrices           round 1: column 0 sums to 7.5625; gossip keeps the mean" in out


def test_help_and_graphs_load_nothing_heavy():
    code = """
import sys
from decentnode.cli.app import app
numpy = "numpy" in sys.modules
app(["--help"], standalone_mode=False)
app(["graph", "ring", "nodes=4"], standalone_mode=False)
print(numpy, [m for m in ("torch", "matplotlib", "zmq") if m in sys.modules])
"""
    assert python(code).endswith("\nFalse []\n")


def test_a_file_that_cannot_be_read_is_refused_before_anything_slow_is_imported(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("seed: [1\n")
    code = f"""
import sys
from decentnode.cli.app import main
for command in ("run", "validate", "calibrate", "keys", "tune", "doctor"):
    try:
        main([command, {str(path)!r}])
    except SystemExit as end:
        print(command, end.code, "torch" in sys.modules)
"""
    assert python(code).splitlines() == [
        "run 2 False", "validate 2 False", "calibrate 2 False",
        "keys 2 False", "tune 2 False", "doctor 2 False"
    ]  # fmt: skip


# The other commands.


def test_validate_says_what_it_found(call):
    assert call("validate", QUICKSTART) == (
        0,
        f"{QUICKSTART}: ok, 16 nodes, graph file, model mlp with 4,810 parameters, "
        "1,437 training and 360 test samples\n",
        "",
    )
    assert call("validate", QUICKSTART, "--no-load")[1].endswith("ok, 16 nodes, graph file, model mlp\n")


def test_list_shows_every_plugin(call):
    code, out, _ = call("list")
    assert code == 0
    for registry in REGISTRIES:
        for name in registry.classes():
            assert f"\n  {name}" in out
    plugins = sum(len(registry.classes()) for registry in REGISTRIES)
    assert len(out.splitlines()) == plugins + len(REGISTRIES) + 1
    assert "base_port" not in out


def test_list_of_one_name_shows_its_options(call):
    code, out, _ = call("list", "mlp")
    assert code == 0
    assert out.startswith("model\n  mlp ") and out.count("\n  ") == 1 + out.count("\n      ")
    assert "      hidden: a list of whole numbers > 0 ([64])\n" in out
    assert "      base_port: a whole number > 0 and < 65536 (29600)\n" in call("list", "zeromq")[1]
    assert "      nodes: a whole number > 0 (required)\n" in call("list", "ring")[1]
    assert "      seed: a whole number or null (null)\n" in call("list", "regular")[1], "null: the run's seed"


def test_list_says_what_a_scheme_needs_and_costs(call):
    lines = call("list", "sharings", "--options")[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  all_reduce "))
    assert lines[start + 1 : start + 5] == [
        "      needs: a complete graph",
        f"      {Gossip.promises.mean}; continues when a node is lost",
        "      exchanges after nodes have trained, or meanwhile (communication.overlap)",
        "      bytes per node and round, for values of b bytes: deg * C(d)",
    ]
    lines = call("list", "transforms", "--options")[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  cast "))
    assert lines[start + 1 : start + 3] == [
        "      takes dense or sparse, gives quantized",
        "      bytes, for values of b bytes: 2 d",
    ]


def test_list_of_one_kind(call):
    code, out, _ = call("list", "transform")
    assert code == 0
    assert out.startswith("transform\n  ") and "\n  cast  " in out
    assert "gossip" not in out
    assert len(out.splitlines()) == len(TRANSFORMS.classes()) + 2
    assert out.endswith("\nOptions: decentnode list transform NAME; those of all: --options\n")


def test_list_of_a_kind_and_a_name_shows_equations_and_options(call):
    out = call("list", "sharing", "choco")[1]
    assert out.startswith("sharing\n  choco  ")
    assert "      q_i = C(y_i - h_i),   h_i <- h_i + q_i," in out
    assert "      gamma: a number > 0 and <= 1 (0.1)\n" in out
    assert call("list", "choco")[1] == out


def test_list_shows_a_class_from_outside(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "listed_here.py").write_text(
        "from dataclasses import dataclass\nfrom decentnode.graph.families import Ring\n\n\n"
        '@dataclass(frozen=True)\nclass Circle(Ring):\n    """A ring of my own."""\n\n    width: int = 3\n'
    )
    out = call("list", "graph", "listed_here:Circle")[1]
    assert out.startswith("graph\n  listed_here:Circle   A ring of my own.\n")
    assert "      width: a whole number (3)\n" in out


def test_list_and_show_of_what_is_shipped(call):
    lines = call("list", "configs")[1].splitlines()
    assert len(lines) == len(shipped.config_names())
    assert [line for line in lines if len(line.split(maxsplit=1)) < 2] == [], "each says what it is"
    (quick,) = (line for line in lines if line.startswith("studies/quick "))
    assert quick.endswith(
        "  Three schemes with two seeds each, in under a minute: decentnode sweep studies/quick"
    )
    path = shipped.find_config("quickstart")
    assert call("show", "quickstart")[1] == path.read_text().replace("../graphs/", "")
    assert call("show", "ring_16.edges")[1] == (ROOT / "graphs" / "ring_16.edges").read_text()


def test_plot_passes_its_arguments_on(call, monkeypatch):
    from decentnode.results.figures import plots as figures

    seen = []
    monkeypatch.setattr(figures, "plot", lambda *args: seen.append(args) or ["c/overview.png"])
    code, output, _ = call("plot", "a", "b", "--out", "c", "--style", "paper", "--size", "3x2")
    assert (code, output) == (0, "c/overview.png\n")
    ((runs, out, metric, style),) = seen
    assert (runs, out, metric) == ([Path("a"), Path("b")], Path("c"), None)
    assert (style.width, style.has_titles) == (3.0, False)


@pytest.fixture
def benchmarks(tmp_path, monkeypatch):
    (tmp_path / "speed.py").write_text('"""How fast.\n\nMore."""\nif __name__ == "__main__":\n    pass\n')
    (tmp_path / "_part.py").write_text("")
    monkeypatch.setattr(cli, "BENCHMARKS", tmp_path)
    return tmp_path


def test_bench_lists(call, benchmarks):
    assert call("bench") == (0, "speed        How fast.\n", "")


def test_bench_starts_a_script_with_its_arguments(call, benchmarks, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda path, words: started.append(words))
    call("bench", "speed", "--small", "-n", "3")
    assert started == [[sys.executable, str(benchmarks / "speed.py"), "--small", "-n", "3"]]


def test_bench_knows_its_scripts(call, benchmarks, monkeypatch):
    assert call("bench", "spede") == (2, "", "bench: unknown benchmark 'spede' (known: speed)\n")
    monkeypatch.setattr(cli, "BENCHMARKS", benchmarks / "nowhere")
    assert call("bench")[2].startswith("bench: ")


def test_schema_is_json(call):
    code, out, _ = call("schema")
    assert code == 0
    assert json.loads(out) == json_schema()


# The doctor.


def test_a_finding_is_a_line():
    assert str(Finding("ok", "torch", "2.13.0")) == "ok    torch          2.13.0"
    assert str(Finding("fail", "torch", "gone", "install it")) == "fail  torch          gone; install it"


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 0), ("fail", 4)])
def test_the_doctor_returns_the_worst(call, monkeypatch, level, code):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding(level, "x", "y")]),))
    assert call("doctor") == (code, f"{level:<5} x              y\n", "")


def test_a_doctor_whom_nobody_hears_ends_with_its_own_code(call, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding("ok", "x", "y")] * 2),))
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as unheard:
        monkeypatch.setattr(sys, "stdout", unheard)
        assert call("doctor") == (0, "", "")


def test_the_doctor_prints_the_time_limits_of_a_configuration(call, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", ())
    code, out, _ = call("doctor", str(ROOT / "configs" / "choco.yaml"), "failures.deadline=7")
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert (code, lines["process_exit"][:5]) == (0, ["19", "2", "*", "farewell", "+"])


@pytest.mark.slow
def test_the_doctor_examines_this_machine():
    findings = {finding.subject: finding for check in doctor.CHECKS for finding in check()}
    for subject in ("Python", "torch", "libzmq", "shared memory", "CPU cores"):
        assert findings[subject].level == "ok", findings[subject]
    assert findings["torch"].value == version("torch")
    assert {"GPU", "open files", "/dev/shm", "addresses", "memory"} <= findings.keys()
    import torch

    assert not torch.cuda.is_initialized(), "a child has asked for the GPUs"


def test_the_doctor_says_why_torch_does_not_load(monkeypatch):
    monkeypatch.setattr(doctor, "_TORCH_FACTS", "import tooorch")
    (finding,) = doctor.torch()
    assert finding.level == "fail"
    assert finding.value == "ModuleNotFoundError: No module named 'tooorch'"


def test_versions_compare_as_numbers():
    assert doctor.numbers("2.13.0+cpu") == (2, 13) > doctor.numbers("2.6.0a0")


def test_own_addresses_are_bindable():
    addresses = doctor.own_addresses()
    assert "127.0.0.1" in addresses
    assert all(link_security.bind_error(ip, 0) is None for ip in addresses)


# Ports and files.


@pytest.fixture
def busy():
    """A TCP port of 127.0.0.1 on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_busy_port_is_named(busy):
    ports = link_security.Ports("127.0.0.1", busy, 1, "communication.base_port")
    assert [*map(str, ports.defects())] == [
        f"communication.base_port: port {busy} at 127.0.0.1 is in use; it is needed, so name others: "
        f"communication.base_port={busy + 1}"
    ]


def test_a_busy_port_among_many_is_named(busy):
    ports = link_security.Ports("127.0.0.1", busy - 1, 4, "communication.base_port")
    assert f"the ports {busy - 1}..{busy + 2} are needed" in str(*ports.defects())


def test_a_port_that_was_used_a_moment_ago_is_free():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
    assert link_security.bind_error("127.0.0.1", port) is None


def needed(machine: int, *overrides: str) -> list[link_security.Ports]:
    return link_security.ports_needed(config.load(QUICKSTART, overrides), machine)


def test_a_run_on_one_machine_needs_no_port():
    assert needed(0) == needed(0, "communication.local=ipc") == needed(0, "communication=inproc") == []


def test_tcp_needs_a_port_for_each_process():
    local = "communication={name: zeromq, local: tcp, nodes_per_process: 3}"
    assert needed(0, local) == [link_security.Ports("127.0.0.1", 29600, 6, "communication.base_port")]


def test_each_of_several_machines_needs_a_port_for_the_launchers_of_the_others_too():
    assert needed(0, TWO_MACHINES) == [
        link_security.Ports("127.0.0.1", 29500, 1, "mapping.rendezvous_port"),
        link_security.Ports("127.0.0.1", 29600, 10, "communication.base_port"),
    ]
    assert needed(1, TWO_MACHINES) == [
        link_security.Ports("127.0.0.2", 29500, 1, "mapping.rendezvous_port"),
        link_security.Ports("127.0.0.2", 29600, 6, "communication.base_port"),
    ]


def test_a_run_does_not_start_on_busy_ports(call, busy, tmp_path):
    local = f"communication={{name: zeromq, local: tcp, base_port: {busy}}}"
    code, _, err = call("run", QUICKSTART, local, f"run_dir={tmp_path / 'run'}")
    assert code == 2
    assert err.startswith(f"command line: communication.base_port: port {busy} at 127.0.0.1 is in use; ")
    assert not (tmp_path / "run").exists()


def test_files_grow_with_degree_and_nodes_per_process():
    memory, ipc, pairs = ZeroMQ().plan, ZeroMQ(local="ipc").plan, ZeroMQ(nodes_per_process=4).plan
    piped, linked = memory.local_files, ipc.local_files
    assert piped < linked == memory.remote_files
    assert ZeroMQ(local="tcp", connections=16).plan.local_files == 16 * linked

    def needed(*case):
        return preflight.files_needed(*case) - preflight.FILES_PER_PROCESS

    assert needed(Ring(8), range(8), memory) == 2 * piped
    assert needed(Ring(8), range(8), ipc) == 2 * linked
    assert needed(Ring(8), range(8), pairs) == 8 * piped
    assert needed(Star(9), range(9), memory) == 8 * piped
    assert needed(Star(9), range(4), memory) == 3 * piped + 5 * linked, "those of another machine have links"


def test_too_few_files_are_reported(monkeypatch):
    settings = config.load(QUICKSTART)
    assert preflight.file_shortage(settings, 0) == ""
    monkeypatch.setattr(preflight, "raise_file_limit", lambda: 70)
    assert preflight.file_shortage(settings, 0) == (
        "open files: a process here needs about 76, the limit is 70; "
        "raise it as root (ulimit -n 76), or take a sparser graph"
    )
    assert preflight.file_shortage(config.load(QUICKSTART, ["communication=inproc"]), 0) == ""


# eval/run.sh, with an interpreter that only writes down what it is asked to do.

FAKE_PYTHON = """#!/bin/bash
case "$*" in
    *version_info*) exit ${TOO_OLD:-0} ;;
    *ensurepip*) exit ${NO_VENV:-0} ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip --version") ;;
    "-m pip install "*) sleep 0.2; echo "$*" >>"$LOG"; exit ${NO_NETWORK:-0} ;;
    "-P -m decentnode "*) echo "$*"; exit 3 ;;
    *) exit 1 ;;
esac
"""


@pytest.fixture
def start(tmp_path):
    """Starts the run.sh of a copied checkout in another folder."""
    compiled = "eval/build_native.py", "decentnode/sharing/blocks/weighted_sum.c"
    for name in ("eval/run.sh", "eval/setup.sh", "pyproject.toml", "constraints.txt", *compiled):
        copy = tmp_path / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    (tmp_path / "bin").mkdir()
    for name in ("python3", *(f"python3.{minor}" for minor in range(11, 15))):
        (tmp_path / "bin" / name).write_text(FAKE_PYTHON)
        (tmp_path / "bin" / name).chmod(0o755)
    unset = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}

    def started(*words: str, **environment: str) -> subprocess.Popen[str]:
        environment |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
        return subprocess.Popen(
            ["bash", tmp_path / "checkout" / "eval" / "run.sh", *words],
            cwd=tmp_path,
            env=unset | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def test_closed_standard_streams_give_their_numbers_to_no_file_of_a_run(tmp_path):
    code = (
        "import os; from decentnode.core.streams import fill_standard_streams; fill_standard_streams();"
        "print('', flush=True);"
        f"open({str(tmp_path / 'found')!r}, 'w').write(str(os.dup(2)))"
    )
    closed = ["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    subprocess.run(closed, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    assert int((tmp_path / "found").read_text()) > 2


INSTALLING = "decentnode: installing into .venv, once; this takes a few minutes ...\n"


def test_two_starts_at_once_install_once_and_pass_words_and_exit_code_on(start, tmp_path):
    both = [start("a.yaml", "seed=2"), start("a.yaml", "seed=2")]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [3, 3]
    assert {out for out, _ in outputs} == {"-P -m decentnode run a.yaml seed=2\n"}
    assert sorted(err for _, err in outputs) == ["", INSTALLING]
    (installation,) = (tmp_path / "log").read_text().splitlines()
    root = tmp_path / "checkout"
    assert installation.endswith(f"-c {root}/constraints.txt -e {root}[compression,figures,privacy]")


def test_without_words_the_quickstart_runs(start, tmp_path):
    out, _ = start().communicate()
    assert out == f"-P -m decentnode run {tmp_path}/checkout/configs/quickstart.yaml\n"


def test_a_second_start_installs_nothing_until_versions_change(start, tmp_path):
    start().communicate()
    assert start().communicate()[1] == ""
    with (tmp_path / "checkout" / "constraints.txt").open("a") as file:
        file.write("more==1\n")
    assert start().communicate()[1] == INSTALLING


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TOO_OLD": "1"}, "decentnode: needs Python 3.11 or newer; install one, or name it: PYTHON="),
        ({"NO_VENV": "1"}, "decentnode: python3 cannot make environments; "
         "install python3-venv (apt-get install python3-venv) and start again\n"),
        ({"NO_NETWORK": "1"}, INSTALLING + "decentnode: the installation failed; its reason is above\n"),
    ],
)  # fmt: skip
def test_a_start_that_cannot_install_says_why(start, environment, message):
    process = start(**environment)
    assert process.communicate()[1].startswith(message)
    assert process.returncode == 4


def test_a_deleted_folder_is_one_line_and_the_backend_of_a_notebook_does_not_matter(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    environment = os.environ | {
        "MPLBACKEND": "module://a_backend_of_a_notebook",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    draw = f"{sys.executable} -P -m decentnode graph ring nodes=4 --draw ../ring.svg"
    done = subprocess.run(
        ["sh", "-c", f"{draw} && rmdir {gone} && {draw}"],
        cwd=gone, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (tmp_path / "ring.svg").stat().st_size
    assert done.stderr == "the current folder was deleted; change to one that is there (cd)\n"
    assert done.returncode == 2
