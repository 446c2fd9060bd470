"""A training loop as users have them, which disturbs itself where it is told to.

It saves model, optimizer and node in a file of its own when it is stopped, and goes on from there when it is
started again. Its samples are drawn by the number of the step, so that both give the same models.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import decentnode


def disturb(kind: str) -> None:
    """Does to this process what its kind says."""
    if kind == "raise":
        raise ValueError("the loop broke")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "interrupt":
        signal.raise_signal(signal.SIGINT)
    if kind == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60.0)
    if kind == "exit":
        os._exit(7)
    if kind == "sys.exit":
        sys.exit(0)
    if kind == "sys.exit 3":
        sys.exit(3)
    if kind == "slow":
        time.sleep(3.0)
    if kind == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "nan":
        raise FloatingPointError("no number")


def train(wanted: argparse.Namespace, **place: int) -> None:
    """Trains until all steps are made, or the run is stopped; what is left says which."""
    own = place.get("rank", int(os.environ.get("DECENTNODE_RANK") or os.environ.get("RANK") or 0))
    mine = own == wanted.victim
    if mine and wanted.when == "before":
        disturb(wanted.kind)
    with _building:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    node = decentnode.join(
        model, optimizer=optimizer, graph="ring", steps_per_round=2, sharing=wanted.sharing,
        failures={"deadline": 2, "grace": 1, "start_deadline": wanted.start_deadline,
                  "restart": {"attempts": wanted.attempts}},
        evaluation={"figures": False}, run_dir=str(wanted.folder / "run"), **place,
    )  # fmt: skip
    saved, step = wanted.folder / f"{node.rank}.pt", 0
    again = mine and (wanted.folder / "disturbed").exists()
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        node.load_state_dict(state["node"])
        step = state["step"]
    is_over = False
    while step < wanted.steps and not is_over:
        if mine and wanted.when == "during" and step == wanted.at and not again:
            (wanted.folder / "disturbed").touch()
            disturb(wanted.kind)
        generator = torch.Generator().manual_seed(1000 * node.rank + step)
        inputs = torch.randn(16, 8, generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(wanted.seconds)
        is_over = not node.step(loss)
        if again:
            # Its peers were further when it came back.
            step = max(step, 2 * node.rounds)
    if step < wanted.steps:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "node": node.state_dict(),
             "step": step}, saved,
        )  # fmt: skip
    vector = node.vector.detach().clone().numpy().tobytes()
    end = {"step": step, "rounds": node.rounds, "hash": hashlib.sha256(vector).hexdigest()}
    (wanted.folder / f"end-{node.rank}.json").write_text(json.dumps(end))
    if not (mine and wanted.when == "unsaid"):
        node.leave()
    if mine and wanted.when in ("after", "unsaid"):
        disturb(wanted.kind)


_building = threading.Lock()


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--sharing", default="gossip")
    parser.add_argument("--kind", default="")
    parser.add_argument("--when", default="during")
    parser.add_argument("--victim", type=int, default=-1)
    parser.add_argument("--at", type=int, default=-1)
    parser.add_argument("--attempts", type=int, default=0)
    parser.add_argument("--start-deadline", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Trains one rank, or all of them in threads."""
    wanted = arguments()
    if not wanted.threads:
        train(wanted)
        return
    work: Callable[..., None] = train
    threads = [
        threading.Thread(target=work, args=(wanted,), kwargs={"rank": rank, "size": wanted.threads})
        for rank in range(wanted.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
