"""A script as Decent-DP's users write it, started by torchrun: imports, start, loop, evaluation, average."""

import os
import subprocess

import pytest

from tests.integration.spawner import ROOT, Spawner

SCRIPT = """
from functools import partial
import torch
import torch.distributed as dist
from torch import nn
from decentnode.decent_dp.ddp import DecentralizedDataParallel as DecentDP
from decentnode.decent_dp.optim import optim_fn_adamw
from decentnode.decent_dp.topo import Edge, Topology, TopologyReg
from decentnode.decent_dp.utils import initialize_dist

rank, world_size = initialize_dist()
assert dist.get_backend() == "gloo" and world_size == 2

class Pair(Topology):
    def _get_topo_edges(self):
        return [[Edge(ranks=[0, 1], weight=0.5)]]

TopologyReg.registry["pair"] = Pair
torch.manual_seed(rank)
model = DecentDP(nn.Linear(6, 1), optim_fn=partial(optim_fn_adamw, lr=0.1), topology="pair")
target = torch.arange(6.0)[:, None]
losses = []
for step in range(30):
    model.train()
    x = torch.randn(16, 6)
    loss = nn.functional.mse_loss(model(x), x @ target)
    model.zero_grad()
    loss.backward()
    losses.append(loss.item())
distance = model.global_avg(return_d2c=True)
mean = torch.cat([p.detach().flatten() for p in model.parameters()])
others = [torch.empty_like(mean) for _ in range(2)]
dist.all_gather(others, mean)
assert torch.equal(others[0], others[1]) and distance > 0
model.revert_global_avg()
model.eval()
with torch.no_grad():
    model(x)
assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
# One write: both ranks have the same pipe, and torchrun starts Python without buffers.
print(f"rank {rank} of {world_size} has trained\\n", end="")
"""


@pytest.mark.slow
def test_a_script_for_decent_dp_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    python = str(Spawner.of_this_process().python())
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON_EXEC": python}
    run = subprocess.run(
        [python, *launch, str(script)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == [f"rank {rank} of 2 has trained" for rank in range(2)]
