"""Compares models under FSDP2, two nodes of two shards, with whole models of two nodes, for many schemes.

    python eval/library/sharded.py [--schemes gossip,choco,...]

Both are trained on the same samples in float64, over gloo on this machine's CPU. For each scheme the largest
difference of any parameter is printed. Exit code 1 if one is above 1e-12, or if a scheme that needs whole
models is not refused. With GPUs, `--device cuda` uses NCCL in the shards' groups.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import decentnode
from decentnode.errors import BadInput

SCHEMES = {
    "gossip": "gossip", "outer": {"name": "gossip", "outer": {"name": "SGD", "lr": 0.7, "momentum": 0.5}},
    "push_sum": "push_sum", "multi_gossip": "multi_gossip", "gasloc": "gasloc",
    "gradient_tracking": "gradient_tracking", "exact_diffusion": "exact_diffusion", "d2": "d2",
    "decent_lam": "decent_lam", "quasi_global": "quasi_global", "choco": "choco", "beer": "beer",
    "deep_squeeze": "deep_squeeze",
}  # fmt: skip
REFUSED = ("all_reduce", "relay_sum", "jwins", "power_gossip", "secure_aggregation", "demo")
"""Schemes that need whole models, or a graph that copies for each shard are not."""
NODES, SHARDS, STEPS = 2, 2, 12
MOST = 1e-12


def train(folder: Path, names: list[str], is_sharded: bool, device: str) -> None:
    """Runs one rank, for one scheme after the other."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shards = SHARDS if is_sharded else 1
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    mesh = None
    if is_sharded:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        mesh = init_device_mesh(device, (size // shards, shards), mesh_dim_names=("node", "shard"))
    number = rank // shards
    for name in names:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 15), nn.Tanh(), nn.Linear(15, 3)).double().to(device)
        if mesh is not None:
            for part in (model[0], model[2], model):
                fully_shard(part, mesh=mesh["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            node = decentnode.join(
                model, optimizer=optimizer, graph="fully_connected", sharing=SCHEMES.get(name, name),
                steps_per_round=2, quiet=True, run_dir=str(folder / f"run-{name}-{shards}"),
            )  # fmt: skip
        except BadInput as error:
            (folder / f"{name}-{shards}-{number}.txt").write_text(str(error))
            continue
        random = torch.Generator().manual_seed(100 + number)
        inputs = torch.randn(64, 8, generator=random, dtype=torch.float64).to(device)
        labels = (inputs.sum(1) > number).long()
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            node.step()
        whole = [p.full_tensor() if mesh is not None else p for p in model.parameters()]  # type: ignore[operator]
        node.leave()
        if rank % shards == 0:
            flat = torch.cat([p.detach().reshape(-1).cpu() for p in whole])
            torch.save(flat, folder / f"{name}-{shards}-{number}.pt")
    if is_sharded:
        dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemes", default=",".join([*SCHEMES, *REFUSED]))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.schemes.split(",")
    if options.rank_of:
        folder, is_sharded = json.loads(options.rank_of)
        train(Path(folder), names, is_sharded, options.device)
        return 0
    with tempfile.TemporaryDirectory(prefix="sharded-") as text:
        folder = Path(text)
        for ranks, is_sharded in ((NODES * SHARDS, True), (NODES, False)):
            command = [
                "torchrun", "--nproc-per-node", str(ranks), __file__, "--schemes", options.schemes,
                "--device", options.device, "--rank-of", json.dumps([text, is_sharded]),
            ]  # fmt: skip
            subprocess.run(command, check=True, timeout=600)
        failed = False
        print(f"{'scheme':20} largest difference of sharded and whole models")
        for name in names:
            refusal = folder / f"{name}-{SHARDS}-0.txt"
            if refusal.exists():
                is_wrong = name not in REFUSED
                print(f"{name:20} refused: {refusal.read_text()}")
            else:
                pairs = [
                    [torch.load(folder / f"{name}-{s}-{i}.pt", weights_only=True) for s in (SHARDS, 1)]
                    for i in range(NODES)
                ]
                most = max(float((sharded - whole).abs().max()) for sharded, whole in pairs)
                is_wrong = most > MOST or name in REFUSED
                print(f"{name:20} {most:.1e}")
            failed = failed or is_wrong
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
