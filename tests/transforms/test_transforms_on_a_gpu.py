"""Transforms leave a signal that is on a GPU there, and make the same bytes of it as on the CPU."""

import pytest
import torch

from decentnode.core.payload import Payload
from decentnode.core.registry import TRANSFORMS
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain
from decentnode.transforms.sparsify.selection import largest
from tests.support.doubles import GPU, FakeGpu, in_memory, on_gpu

MODEL = ParameterLayout(
    (Entry("weight", torch.Size([30, 40]), 0), Entry("bias", torch.Size([30]), 1200),
     Entry("conv", torch.Size([8, 3, 5, 5]), 1230))
)  # fmt: skip
N = MODEL.numel
ROUNDS = 2
STAY = {
    "cast bf16": [("cast", {})],
    "cast fp16": [("cast", {"dtype": "fp16"})],
    "top_k": [("top_k", {"fraction": 0.1})],
    "top_k of layers": [("top_k", {"fraction": 0.3, "per_layer": True})],
    "top_k by change": [("top_k", {"by": "change"})],
    "top_k, several fractions": [("top_k", {"fraction": [0.1, 0.4, 1.0], "metadata_cap": 0.5})],
    "chunk_top_k": [("chunk_top_k", {"fraction": 0.05, "chunk": 100})],
    "chunk_top_k by change": [("chunk_top_k", {"fraction": 0.05, "by": "change", "packed": False})],
    "dct": [("dct", {"matrices": True})],
    "random_k": [("random_k", {"fraction": 0.1})],
    "random_k, all": [("random_k", {"fraction": 1.0})],
    "random_k, few of layers": [("random_k", {"fraction": 0.002, "per_layer": True})],
    "fragments": [("fragments", {"count": 2}), ("uniform", {})],
    "threshold": [("threshold", {"value": 0.5, "relative": True})],
    "qsgd 127": [("qsgd", {"norm": "max"})],
    "qsgd 4": [("qsgd", {"levels": 4, "block": 100})],
    "qsgd 1": [("qsgd", {"levels": 1, "block": 7, "norm": "max"})],
    "uniform 8": [("uniform", {})],
    "uniform 2": [("uniform", {"bits": 2, "rounding": "stochastic"})],
    "sign": [("sign", {"scale": "layer"})],
    "ternary": [("ternary", {})],
    "ternary, threshold": [("ternary", {"rule": "threshold"})],
    "low_rank": [("low_rank", {"rank": 2})],
    "clip": [("clip", {"norm": 1.0, "per_layer": True})],
    "top_k + qsgd": [("top_k", {"fraction": [0.1, 0.2]}), ("qsgd", {"levels": 4})],
    "threshold + cast": [("threshold", {"value": 1.0}), ("cast", {})],
    "random_k + uniform": [("random_k", {}), ("uniform", {"bits": 4, "rounding": "stochastic"})],
    "error_feedback + top_k": [("error_feedback", {}), ("top_k", {"fraction": 0.1})],
}
"""Chains that need nothing of the host."""
FIRST_DRAW = {"low_rank": 2 * (40 + 75)}
"""Numbers that were drawn on the CPU and copied, before round 0 alone."""
MOST_WAITS = {"random_k": 50}
"""Single numbers that the host waits for in a round: whether all are finite, how many there are; else 12."""
ROUNDS_OTHERWISE = {"dct", "qsgd", "sign", "ternary", "low_rank", "clip", "threshold"}
"""Transforms with a sum or a factorization, which a real GPU may round otherwise than the CPU."""


def chain_of(stages):
    return Chain([TRANSFORMS.find(name)(**options) for name, options in stages], N, parameters=MODEL)


def signal(round):
    x = torch.randn(N, generator=torch.Generator().manual_seed(round))
    x[::7] = 0.25  # of equal values the first ones count
    return x


def rounds(stages, place, device):
    """Some rounds of a sender and a receiver: the bytes, and what came out."""
    sender, receiver = chain_of(stages), chain_of(stages)
    for chain in (sender, receiver):
        chain.begin(place(torch.zeros(N)))
    for round in range(ROUNDS):
        context = Context(1, round, 3, fill=place(signal(50)))
        payload = sender.encode(place(signal(round)), context)
        assert payload.buffer.device == device and payload.buffer.dtype == torch.uint8
        assert payload.buffer.is_contiguous()
        received = Payload(receiver.layout, payload.buffer.clone(), payload.counts)
        decoded = receiver.decode(received, context)
        assert decoded.device == device
        yield payload.buffer, decoded


@pytest.mark.parametrize("stages", STAY.values(), ids=STAY)
def test_what_is_on_a_gpu_stays_there_and_is_what_the_cpu_makes(stages, request):
    on_cpu = list(rounds(stages, lambda x: x, torch.device("cpu")))
    with FakeGpu() as gpu:
        on_fake_gpu = list(rounds(stages, on_gpu, GPU))
    for (buffer, decoded), (gpu_buffer, gpu_decoded) in zip(on_cpu, on_fake_gpu, strict=True):
        assert torch.equal(buffer, in_memory(gpu_buffer))
        assert torch.equal(decoded, in_memory(gpu_decoded))
    drawn = sum(FIRST_DRAW[name] for name, _ in stages if name in FIRST_DRAW)
    assert gpu.crossings.out == []
    assert sum(gpu.crossings.into) == drawn
    assert gpu.crossings.waits <= ROUNDS * max(MOST_WAITS.get(name, 12) for name, _ in stages)


@pytest.mark.gpu
@pytest.mark.parametrize("stages", STAY.values(), ids=STAY)
def test_a_real_gpu_makes_what_the_cpu_makes(stages):
    plain = list(rounds(stages, lambda x: x, torch.device("cpu")))
    on_device = list(rounds(stages, lambda x: x.to(GPU), GPU))
    is_exact = not ROUNDS_OTHERWISE & {name for name, _ in stages}
    for (expected, decoded), (encoded, decoded_there) in zip(plain, on_device, strict=True):
        if is_exact:
            assert torch.equal(encoded.cpu(), expected)
        # A value beside the border of two levels may be a level off.
        apart = (decoded_there.cpu() - decoded).abs() > 1e-4
        assert int(apart.sum()) <= (0 if is_exact else N // 200)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_largest_are_the_same_whatever_the_precision(dtype):
    x = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64).abs()
    x[::5] = x[3] * (1 + 1e-12)  # larger in fp64, and equal in the others
    score = x.to(dtype)
    for k in (0, 1, 100, 101, 499, 500):
        with FakeGpu():
            selected = largest(on_gpu(score), k)
        expected = sorted(range(500), key=lambda i: (-float(score[i]), i))[:k]
        assert in_memory(selected).tolist() == sorted(expected)


def test_what_computes_on_the_host_brings_the_signal_back():
    stages = [("top_k", {}), ("rice", {})]
    with FakeGpu() as gpu:
        chain = chain_of(stages)
        payload = chain.encode(on_gpu(signal(0)), Context(1, 0, 3))
        assert payload.buffer.device.type == "cpu"
        decoded = chain.decode(payload.to(GPU), Context(1, 0, 3, fill=on_gpu(signal(1))))
        assert decoded.device == GPU and gpu.crossings.out


def test_the_fake_gpu_refuses_what_a_real_one_refuses():
    x = on_gpu(torch.ones(3))
    with FakeGpu() as gpu:
        with pytest.raises(AssertionError, match="add of tensors on the GPU and one in host memory"):
            x + torch.ones(3)
        with pytest.raises(TypeError, match="not in host memory"):
            x.numpy()
        assert (x + 1).device == torch.zeros(2, device=GPU).device == GPU
        assert x.cpu().device.type == "cpu" and gpu.crossings.out == [3]
        assert float(x.sum()) == 3 and gpu.crossings.waits == 1
