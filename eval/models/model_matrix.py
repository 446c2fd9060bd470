"""Tries what torch allows in a network with every part of a run, and prints a table in Markdown.

    python eval/models/model_matrix.py [NETWORK ...] [--only PART ...]

Networks are those of `networks.py`. A cell is `yes`, `no: LINE` for what is refused before the first round,
or `FAULT: LINE`, and then the exit code is 1. Runs are forked from one process that has everything imported.
Parts named `same` must end with the models of the first run, bit for bit.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import networks  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  - the first optimizer step would load it, in every node
from torch import Tensor, nn  # noqa: E402

from decentnode import DecentralizedDataParallel  # noqa: E402
from decentnode.cli.app import main as command  # noqa: E402
from decentnode.errors import ExitCode  # noqa: E402
from decentnode.parallel.rendezvous import RankRendezvous, ThreadRendezvous  # noqa: E402

CONFIG = """
name: matrix
rounds: 3
graph: {name: ring, nodes: 3}
dataset: {name: digits, train_size: 100, test_size: 40}
model: {name: 'networks:NETWORK'}
training: {optimizer: {name: SGD, lr: 0.05, momentum: 0.9}, batch_size: 8, steps_per_round: 2, threads: 1}
checkpoint: {every: 1}
records: {models: {}}
evaluation: {every: 1, figures: false}
failures: {deadline: 30}
"""
LIMIT = 120.0
"""Seconds of one run."""
PARTS = {
    "run": "",
    "same: inproc": "communication=inproc",
    "same: tcp": "communication.local=tcp",
    "same: gloo": "communication=torch_distributed communication.backend=gloo",
    "same: background": "evaluation.background=1",
    "mix_buffers": "training.mix_buffers=true",
    "bfloat16": "training.dtype=bfloat16",
    "float64": "training.dtype=float64",
    "overlap": "communication.overlap=true",
    "asynchronous": "time_model.name=asynchronous time_model.seconds_per_round=0.3 sharing=push_gossip",
    "ddp": "training.name=ddp sharing=none training.find_unused_parameters=true",
}
"""Parts of the table with what they set; `same: resume`, `pretrained` and `wrapper` are beside these."""


NOISY = {"Dropout", "OtherNoise", "Recurrent", "Composite", "Unseeded"}
"""Networks that draw from generators of the process, which the threads of the wrapper's ranks share."""


def forked(work: Callable[[], object], folder: Path) -> tuple[int, str]:
    """Exit code of what is done in a process of its own, and the line that tells why it failed."""
    output = folder / "output"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(folder)
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    limit, hangs = time.monotonic() + LIMIT, False
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > limit:
            # The second signal ends a launcher at once.
            os.kill(pid, signal.SIGKILL if hangs else signal.SIGTERM)
            limit, hangs = time.monotonic() + 5.0, True
        time.sleep(0.02)
    lines = [line.strip() for line in output.read_text().splitlines() if line.strip()]
    reasons = [line for line in lines if "model: " in line or "Error" in line or "rank " in line] or lines
    return os.waitstatus_to_exitcode(found[1]), "it hangs" if hangs else (reasons or [""])[-1]


def hash_of(run: Path) -> str:
    """The hash of the models of a run."""
    found: str = json.loads((run / "summary.json").read_text())["model_hash"]
    return found


class Row:
    """The parts of one network, in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        (folder / "x.yaml").write_text(CONFIG.replace("NETWORK", name))

    def cell(self, part: str) -> str:
        """What happened in a part."""
        if part == "same: resume":
            return self._run("run x.yaml rounds=2 run_dir=r", "resume r rounds=3", run="r", same=True)
        if part == "pretrained":
            record = self.folder / "run" / "models" / "00002" / "00000002.safetensors"
            return self._run(f"run x.yaml model.pretrained={record} run_dir=p", run="p")
        if part == "wrapper":
            code, reason = forked(lambda: wrapped(self.name, self.folder), self.folder)
            return f"FAULT: {reason}" if code else "yes"
        run = part.replace(": ", "-")
        return self._run(f"run x.yaml {PARTS[part]} run_dir={run}", run=run, same=part.startswith("same"))

    def _run(self, *lines: str, run: str, same: bool = False) -> str:
        for line in lines:
            code, reason = forked(lambda words=line: command(shlex.split(words)), self.folder)  # type: ignore[misc]
            if code == ExitCode.BAD_INPUT:
                return f"no: {reason}"
            if code:
                return f"FAULT: exit {code}: {reason}"
        if same and hash_of(self.folder / run) != hash_of(self.folder / "run"):
            return "FAULT: other models"
        return "yes"


def wrapped(name: str, folder: Path) -> None:
    """Two ranks of the wrapper: steps, an average, a copy, and a saved state that goes on bit for bit."""
    straight, resumed = ranks(name, folder, False), ranks(name, folder, True)
    if name not in NOISY:
        assert all(map(torch.equal, straight, resumed)), "the resumed ranks have other models"


def ranks(name: str, folder: Path, resumes: bool) -> list[Tensor]:
    """The parameters of two ranks after six steps, or after the last three from a saved state."""
    rendezvous, found, errors = ThreadRendezvous(2), dict[int, list[Tensor]](), list[BaseException]()
    modules = []
    for _ in range(2):
        torch.manual_seed(1)
        modules.append(getattr(networks, name)())
        if any(nn.parameter.is_lazy(p) for p in modules[-1].parameters()):
            modules[-1](torch.rand(6, 1, 8, 8))

    def rank(number: int) -> None:
        try:
            found[number] = train(modules[number], rendezvous.join(number), folder / f"{number}.pt", resumes)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT / 2)
    if errors:
        raise errors[0]
    return [*found[0], *found[1]]


def train(module: nn.Module, rendezvous: RankRendezvous, path: Path, resumes: bool) -> list[Tensor]:
    """One rank."""
    draw = torch.Generator().manual_seed(rendezvous.rank)
    batches = [torch.rand(6 - step % 3, 1, 8, 8, generator=draw) for step in range(6)]
    model = DecentralizedDataParallel(
        module,
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "ring",
        rendezvous=rendezvous,
        deadline=20.0,
    )
    if resumes:
        model.load_state_dict(torch.load(path, weights_only=True))
    for step in range(3 if resumes else 0, 6):
        if step == 3 and not resumes:
            torch.save(model.state_dict(), path)
        model(batches[step]).logsumexp(1).mean().backward()
    with model.averaged(), torch.no_grad():
        model.eval()
        model(torch.rand(9, 1, 8, 8))
    torch.optim.swa_utils.AveragedModel(model)(batches[0])
    found = [parameter.detach().clone() for parameter in model.parameters()]
    model.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("network", nargs="*")
    parser.add_argument("--only", action="append", metavar="PART")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts = asked.only or [*PARTS, "same: resume", "pretrained", "wrapper"]
    names = asked.network or [cls.__name__ for cls in (*networks.WORKING, *networks.REFUSED)]
    print("| network |", " | ".join(parts), "|")
    print("|---|" + "---|" * len(parts), flush=True)
    are_refused = {cls.__name__ for cls in networks.REFUSED}
    faults = list[str]()
    for name in names:
        with tempfile.TemporaryDirectory(prefix="models-") as folder:
            row = Row(name, Path(folder))
            # No other part has more to say about a network that the first one refuses.
            cells = [row.cell(part) for part in (parts[:1] if name in are_refused else parts)]
        faults += [
            f"{name}, {part}: {cell}" for part, cell in zip(parts, cells, strict=False) if "FAULT" in cell
        ]
        if name in are_refused and not cells[0].startswith("no: "):
            faults.append(f"{name}: not refused: {cells[0]}")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    print(f"\n{len(names)} networks, {len(parts)} parts, {len(faults)} faults")
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
