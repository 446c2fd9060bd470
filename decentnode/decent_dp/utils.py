"""Decent-DP's start of torch.distributed."""

import os

import torch
import torch.distributed as dist


def initialize_dist() -> tuple[int, int]:
    """Initializes torch.distributed as torchrun says; returns the rank, and the number of ranks.

    Over NCCL where each rank of a machine has a GPU, which becomes the current one, otherwise over gloo. A
    process that torchrun did not start is a single rank.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        torch.cuda.set_device(local)
        backend = "nccl"
    else:
        backend = "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size()


__all__ = ["initialize_dist"]
