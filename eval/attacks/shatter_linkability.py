"""Whether a receiver of shatter finds out which chunks belong together, from all but their content.

    python eval/attacks/shatter_linkability.py [--rounds 60] [--degree 12] [--chunks 8] [--each 2]

Runs nodes as processes that exchange over TCP on this machine, and tries each feature of a pair of chunks as
a score, and a classifier of all of them that is trained on half of the receivers. Printed is the area under
the ROC curve with a 95 % interval over receivers; .5 is chance. The control has relays that keep the order.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import torch
from _watched import FOLDER
from numpy.typing import NDArray

from decentnode.attacks.passive.measures import auc

FEATURES = ("distance in order", "place of the first", "same run of the order", "distance of chunks", "size")
CONFIG = Path("configs/shatter.yaml")
Pairs = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]
"""Features of pairs, whether they belong together, and their receiver."""


def run(cls: str, options: argparse.Namespace, folder: Path) -> None:
    """One run that leaves its notes in the folder."""
    overrides = [
        f"rounds={options.rounds}",
        f"graph={{name: relayed, nodes: {options.nodes}, degree: {options.degree}, seed: 0}}",
        f"sharing={{name: 'eval.attacks._watched:{cls}', chunks: {options.chunks}, "
        f"per_neighbor: {options.each}}}",
        f"communication={{name: zeromq, local: {options.local}}}",
        f"run_dir={folder / 'runs'}",
    ]
    command = [sys.executable, "-m", "decentnode", "run", str(CONFIG), *overrides]
    subprocess.run(command, check=True, env=os.environ | {FOLDER: str(folder)}, stdout=subprocess.DEVNULL)


def pairs_in_a_message(folder: Path, each: int) -> Pairs:
    """All pairs of chunks with different places that a receiver gets in one message."""
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    sent = {line["sent"]: line for line in lines if "sent" in line}
    rows, linked, receivers = [], [], []
    for path in sorted(folder.glob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            for (i, a), (j, b) in combinations(enumerate(line.get("names", ())), 2):
                first, second = sent[a], sent[b]
                if first["chunk"] == second["chunk"]:
                    continue
                places = abs(first["chunk"] - second["chunk"])
                sizes = line["sizes"][i] - line["sizes"][j]
                rows.append((-(j - i), i, float(i // each == j // each), places, -abs(sizes)))
                linked.append(first["owner"] == second["owner"])
                receivers.append(int(path.stem))
    return np.array(rows, np.float64), np.array(linked), np.array(receivers)


def pairs_of_rounds(folder: Path) -> Pairs:
    """Pairs of chunks of two successive rounds: by place in the order, relay, and time of the message."""
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    sent = {line["sent"]: line["owner"] for line in lines if "sent" in line}
    rows, linked, receivers = [], [], []
    for path in sorted(folder.glob("*.jsonl")):
        messages = [line for line in map(json.loads, path.read_text().splitlines()) if "names" in line]
        gaps = np.diff([message["at"] for message in messages], prepend=messages[0]["at"])
        for k, (before, after) in enumerate(pairwise(messages[1:]), 1):
            if after["round"] != before["round"] + 1:
                continue
            for i, a in enumerate(before["names"]):
                for j, b in enumerate(after["names"]):
                    late = gaps[k + 1] - gaps[k]
                    rows.append(
                        (-abs(i - j), float(before["relay"] == after["relay"]), late, -abs(late), i + j)
                    )
                    linked.append(sent[a] == sent[b])
                    receivers.append(int(path.stem))
    return np.array(rows, np.float64), np.array(linked), np.array(receivers)


def learned(pairs: Pairs) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
    """The scores of a small network for the pairs of half of the receivers, trained on the other half."""
    rows, linked, receivers = pairs
    spread = rows.std(0)
    x = torch.from_numpy((rows - rows.mean(0)) / np.where(spread > 0, spread, 1)).float()
    y, train = torch.from_numpy(linked).float(), torch.from_numpy(receivers % 2 == 0)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    weight = (1 - y[train]).sum() / y[train].sum().clamp(min=1)
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=weight)
    for _ in range(300):
        optimizer.zero_grad()
        loss(net(x[train]).squeeze(1), y[train]).backward()
        optimizer.step()
    scores = net(x[~train]).squeeze(1).detach().double().numpy()
    return scores, linked[~train.numpy()], receivers[~train.numpy()]


def with_interval(
    scores: NDArray[np.float64], linked: NDArray[np.bool_], receivers: NDArray[np.int64]
) -> str:
    """The area and its 95 % interval, from the receivers' areas."""
    each = [
        auc(scores[(receivers == r) & linked], scores[(receivers == r) & ~linked])
        for r in np.unique(receivers)
    ]
    half = 1.96 * np.std(each, ddof=1) / np.sqrt(len(each))
    return f"{np.mean(each):.3f} +- {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"rounds": 60, "nodes": 16, "degree": 12, "chunks": 8, "each": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--local", default="tcp", help="how nodes of this machine exchange")
    options = parser.parse_args()
    for cls in ("Watched", "InOrder"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run(cls, options, folder)
            inside, across = pairs_in_a_message(folder, options.each), pairs_of_rounds(folder)
        print(f"{'shatter' if cls == 'Watched' else 'control: relays keep the order'}")
        print(f"  pairs in a message   {len(inside[1]):,}, of which belong together {inside[1].mean():.4f}")
        for k, feature in enumerate(FEATURES):
            print(f"    {feature:<24}{with_interval(inside[0][:, k], *inside[1:])}")
        print(f"    {'classifier of all':<24}{with_interval(*learned(inside))}")
        print(f"  pairs of two rounds  {len(across[1]):,}, of which belong together {across[1].mean():.4f}")
        for k, feature in enumerate(("distance in order", "same relay", "later", "same time", "places")):
            print(f"    {feature:<24}{with_interval(across[0][:, k], *across[1:])}")
        print(f"    {'classifier of all':<24}{with_interval(*learned(across))}", flush=True)


if __name__ == "__main__":
    main()
