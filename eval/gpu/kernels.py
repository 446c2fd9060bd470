"""Whether mixing, copies and transforms on a GPU give what the CPU gives; exits with 1 where one does not.

    python eval/gpu/kernels.py [--device cuda]

`--device cpu` goes through the same checks without a GPU: the kernel in triton's interpreter, the copies
within host memory. That shows that the checks run, and nothing about a GPU.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decentnode.communication.base import BufferSpec, Inbox
from decentnode.communication.device.staging import DeviceStaging
from decentnode.communication.inproc import InProcess
from decentnode.core.payload import Payload, dense_layout
from decentnode.core.registry import TRANSFORMS
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.sharing.blocks.weighted_sum import Terms, plain_sum
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEGREES = (0, 1, 2, 8, 16, 33, 63)
LENGTHS = (1, 2047, 2048, 5001)
ROUNDS, ELEMENTS = 6, 100_001
MATRIX = ParameterLayout(
    (Entry("weight", torch.Size([300, 200]), 0), Entry("bias", torch.Size([301]), 60_000))
)
CHAINS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "cast": [("cast", {})],
    "top_k": [("top_k", {"by": "change"})],
    "top_k of layers + qsgd 4": [("top_k", {"per_layer": True}), ("qsgd", {"levels": 4, "norm": "max"})],
    "random_k": [("random_k", {})],
    "qsgd, largest": [("qsgd", {"norm": "max"})],
    "uniform": [("uniform", {"bits": 4, "rounding": "stochastic"})],
    "ternary": [("ternary", {})],
    "threshold": [("threshold", {"value": 1.0})],
}
"""Chains whose bytes are equal to the bit, because no sum of theirs depends on an order."""
CLOSE: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "qsgd": [("qsgd", {})],
    "sign": [("sign", {})],
    "low_rank": [("low_rank", {"rank": 2})],
}
"""Chains with sums or factorizations, which round otherwise on another device."""


def require(holds: bool, what: str) -> None:
    """Raises AssertionError with what does not hold."""
    if not holds:
        raise AssertionError(what)


def draw_terms(degree: int, length: int, dtype: torch.dtype) -> list[tuple[float, Tensor]]:
    """The own vector in fp32 and others of a dtype, on the CPU."""
    random = torch.Generator().manual_seed(degree)
    weights = torch.rand(degree + 1, generator=random, dtype=torch.float64) / (degree + 1)
    vectors = [torch.randn(length, generator=random) for _ in weights]
    made = [vectors[0], *(x.to(dtype) for x in vectors[1:])]
    return list(zip(weights.tolist(), made, strict=True))


def mixes_like_torch(device: torch.device) -> str:
    """The kernel against torch's operations, on the device and on the CPU; equal where both fuse alike."""
    from decentnode.sharing.blocks.triton_sum import fused_sum

    equal = {"the device's torch": 0, "the CPU's torch": 0}
    cases = [(d, n, t) for d in DEGREES for n in LENGTHS for t in DTYPES]
    for degree, length, dtype in cases:
        terms = draw_terms(degree, length, dtype)
        there = [(w, x.to(device)) for w, x in terms]
        out = torch.full((length,), float("nan"), device=device)
        require(fused_sum(there, out) is True, f"degree {degree}, {length} of {dtype}: said not to be finite")
        bound = 2.0**-23 * (degree + 1) * sum(abs(w) * x.float().abs() for w, x in terms)
        for name, plain in (("the device's torch", there), ("the CPU's torch", terms)):
            other = torch.empty(length, device=plain[0][1].device)
            plain_sum(plain, other)
            apart = (out.cpu() - other.cpu()).abs()
            require(bool((apart <= bound).all()), f"degree {degree}, {length} of {dtype}: unlike {name}")
            equal[name] += torch.equal(out.cpu(), other.cpu())
    return ", ".join(f"{count} of {len(cases)} cases bit-equal to {name}" for name, count in equal.items())


def notices_what_is_not_finite(device: torch.device) -> str:
    """One infinity or NaN anywhere sets the flag."""
    from decentnode.sharing.blocks.triton_sum import fused_sum

    for degree in (1, 20):
        terms = [(w, x.to(device)) for w, x in draw_terms(degree, 5001, torch.float32)]
        for value in (float("inf"), -float("inf"), float("nan")):
            for place in (0, 2047, 2048, 5000):
                spoilt: Terms = [(w, x.clone() if k == degree else x) for k, (w, x) in enumerate(terms)]
                list(spoilt)[degree][1][place] = value
                found = fused_sum(list(spoilt), torch.empty(5001, device=device))
                require(found is False, f"degree {degree}: {value} at {place} was not noticed")
    return "24 spoilt vectors noticed"


def copies_are_whole(device: torch.device) -> str:
    """Two nodes swap vectors and other payloads, round after round, while the device has other work."""
    communication, memory = InProcess(), BufferSpec(ELEMENTS, device=device)
    inner = [communication.endpoint(rank, memory) for rank in range(2)]
    ends = [DeviceStaging(end, memory) for end in inner]

    async def node(rank: int) -> None:
        end = ends[rank]
        for round in range(ROUNDS):
            slot = end.slots[round % 2]
            busy = torch.ones(1000, 1000, device=device)
            slot.fill_(10.0 * round + rank + float((busy @ busy).mean() * 0))
            extra = torch.full((999,), round + rank / 2, device=device)
            for phase, tensor in enumerate((slot, extra)):
                payload = Payload.dense(tensor)
                outgoing, layout = {1 - rank: payload}, dense_layout(tensor.numel())
                handle = await end.exchange(outgoing, [1 - rank], (round, phase, 0), 20.0, layout)
                inbox = Inbox(handle, layout, end)
                came = inbox[1 - rank]["vector"]
                require(came.device == end.slots[0].device, "what came is not on the device")
                wanted = (10.0 * round + 1 - rank) if phase == 0 else round + (1 - rank) / 2
                require(bool((came == wanted).all()), f"round {round}, phase {phase}: not what was sent")
                inbox.release()

    async def both() -> None:
        await asyncio.gather(node(0), node(1))

    asyncio.run(both())
    locked = all(slot.is_pinned() for end in inner for slot in end.slots) if device.type == "cuda" else False
    return f"{ROUNDS} rounds, {'locked' if locked else 'no locked'} host memory"


def transforms_are_equal(device: torch.device) -> str:
    """What is encoded on the device is what is encoded on the CPU, and stays on the device."""
    for name, stages in (*CHAINS.items(), *CLOSE.items()):
        found = []
        for place in (torch.device("cpu"), device):
            chain = Chain([TRANSFORMS.find(n)(**o) for n, o in stages], MATRIX.numel, parameters=MATRIX)
            random = torch.Generator().manual_seed(1)
            signals = [torch.randn(MATRIX.numel, generator=random).to(place) for _ in range(3)]
            chain.begin(signals[0])
            payload = chain.encode(signals[1], Context(1, 0, 3))
            require(payload.buffer.device == signals[0].device, f"{name}: left the device")
            decoded = chain.decode(payload, Context(1, 0, 3, fill=signals[2]))
            found.append((payload.buffer.cpu(), decoded.cpu().float()))
        (expected, meant), (made, got) = found
        require(name in CLOSE or torch.equal(expected, made), f"{name}: other bytes")
        # A value that is rounded to another level, where a norm rounds otherwise, is one step off.
        off = int(((meant - got).abs() > 1e-3).sum())
        require(off <= (MATRIX.numel // 1000 if name in CLOSE else 0), f"{name}: {off} values off")
    return f"{len(CHAINS)} chains equal to the bit, {len(CLOSE)} but for rounding"


CHECKS: tuple[Callable[[torch.device], str], ...] = (
    mixes_like_torch, notices_what_is_not_finite, copies_are_whole, transforms_are_equal,
)  # fmt: skip


def main() -> int:
    """Runs all checks, whatever fails."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = torch.device(made.parse_args().device)
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        print("kernels: no GPU here; --device cpu goes through the checks without one", file=sys.stderr)
        return 2
    failed = 0
    for check in CHECKS:
        try:
            print(f"  ok  {check.__name__}: {check(device)}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILS {check.__name__}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
