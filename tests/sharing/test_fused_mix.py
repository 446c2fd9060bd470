"""The kernel that mixes on a GPU: run by triton's interpreter, and compiled for two GPUs, without one."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from decentnode.sharing.blocks import weighted_sum as mixing

# Not imported yet: whether its functions are for the interpreter is settled when they are first seen.
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed here")
ROOT = Path(__file__).parents[2]
LENGTHS = (1, 3, 2047, 2048, 2049, 5001)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNELS = ((("fp32", "fp32", "fp32"), 90), (("fp32", "bf16"), 80), (("fp32",), 90))
"""Terms to add, and the GPU to compile for."""


@pytest.fixture(scope="module")
def kernel():
    """The module of the kernel, which tests/conftest.py has loaded for the interpreter."""
    from decentnode.sharing.blocks import triton_sum as fused_mix

    return fused_mix


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> list[Counter]:
    """The instructions that each kernel becomes, counted; in a fresh interpreter, for triton's compiler."""
    code = (
        f"import json; from tests.sharing.test_fused_mix import instructions; "
        f"print(json.dumps([instructions(*kernel) for kernel in {KERNELS!r}]))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return list(map(Counter, json.loads(done.stdout)))


def instructions(dtypes, capability):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from decentnode.sharing.blocks.triton_sum import BLOCK, KERNEL, WARPS

    count = len(dtypes)
    signature = {
        "out": "*fp32", "flag": "*i32", "sources": tuple(f"*{d}" for d in dtypes),
        "weights": ("fp32",) * count, "n": "i32", "FIRST": "constexpr", "SIZE": "constexpr",
    }  # fmt: skip
    aligned = {place: [["tt.divisibility", 16]] for place in ((0,), (1,), *((2, k) for k in range(count)))}
    source = ASTSource(KERNEL, signature, {(5,): True, (6,): BLOCK}, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})
    assert made.asm["cubin"]
    return Counter(re.findall(r"^\s*(?:@\S+ )?([a-z]\S+)", made.asm["ptx"], re.MULTILINE))


@pytest.mark.parametrize("which", range(len(KERNELS)))
def test_it_compiles_to_wide_loads_and_fused_adds(which, compiled):
    """Per thread 8 elements, in programs with and without an end in them, of which one loads by 16 bytes."""
    instructions, (dtypes, _) = compiled[which], KERNELS[which]
    assert instructions["mul.f32"] == 2 * 8
    assert instructions["fma.rn.f32"] == 2 * 8 * (len(dtypes) - 1)
    widths = {"fp32": 2, "bf16": 1}
    assert instructions["ld.global.v4.b32"] == sum(widths[d] for d in dtypes)
    assert instructions["st.global.v4.b32"] == 2
    # Whether a sum is finite is read off its bits: a difference could be fused with the product before it.
    assert instructions["setp.gt.s32"] == 2 * 8
    assert not instructions["sub.f32"] and not instructions["neg.f32"]


def draw_terms(count, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, generator=generator, dtype=torch.float64) - 0.2
    return [
        (float(w), torch.randn(length, generator=generator).to(DTYPES[(k + seed) % 3]))
        for k, w in enumerate(weights)
    ]


def rounded_twice(terms):
    """The sum in fp32 and in order, with each product rounded before it is added, as the interpreter does."""
    products = [x.float() * torch.tensor(w, dtype=torch.float32) for w, x in terms]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 40])
def test_it_adds_what_the_plain_sum_adds_in_the_same_order(count, kernel):
    for length in LENGTHS if count < 16 else (2049,):
        terms = draw_terms(count, length, seed=count)
        out, plain = torch.full((2, length), float("nan"))
        assert kernel.fused_sum(terms, out) is True
        assert torch.equal(out, rounded_twice(terms))
        mixing.plain_sum(terms, plain)
        magnitude = sum(abs(w) * x.float().abs() for w, x in terms)
        assert ((out - plain).abs() <= 2**-23 * count * magnitude).all()


def test_parts_of_a_longer_vector_and_nothing_beside_them(kernel):
    terms = [(w, x[3:2100]) for w, x in draw_terms(3, 2200)]
    room = torch.full((2200,), 7.0)
    assert kernel.fused_sum(terms, room[1:2098])
    assert torch.equal(room[1:2098], rounded_twice(terms))
    assert (room[:1] == 7).all() and (room[2098:] == 7).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("value", "count"), [(math.nan, 2), (math.inf, 18), (-math.inf, 2)])
def test_a_number_that_is_not_finite_is_noticed_wherever_it_stands(value, count, kernel):
    terms, out = draw_terms(count, 2500), torch.empty(2500)
    for source in {0, 1, count - 1}:
        for place in (0, 2047, 2048, 2499):
            before = float(terms[source][1][place])
            terms[source][1][place] = value
            assert kernel.fused_sum(terms, out) is False
            terms[source][1][place] = before
    assert kernel.fused_sum(terms, out) is True


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_sum_that_overflows_is_not_finite(kernel):
    large = torch.full((3,), 3e38)
    assert kernel.fused_sum([(0.5, large), (0.5, large)], torch.empty(3)) is True
    assert kernel.fused_sum([(1.0, large), (1.0, large)], torch.empty(3)) is False


def test_what_the_kernel_leaves_to_torch(kernel):
    x = torch.ones(4)
    assert kernel.fused_sum([(1.0, x)], torch.empty(4, dtype=torch.float64)) is None
    assert kernel.fused_sum([(1.0, x.double())], torch.empty(4)) is None
    assert kernel.fused_sum([(1.0, torch.ones(4, 2)[:, 0])], torch.empty(4)) is None
    assert kernel.fused_sum([(1.0, torch.empty(0))], torch.empty(0)) is True
    with pytest.raises(ValueError, match=r"a vector of shape \(6,\) cannot be mixed into \(5,\)"):
        kernel.fused_sum([(0.5, torch.ones(5)), (0.5, torch.ones(6))], torch.empty(5))


def test_the_kernel_is_used_where_it_works_and_otherwise_the_reason_is_logged(kernel, monkeypatch, capsys):
    mixing.fused_on.cache_clear()
    assert mixing.fused_on(torch.device("cpu")) is kernel.fused_sum

    def broken(terms, out):
        raise RuntimeError("a long story\nFailed to find C compiler")

    monkeypatch.setattr(kernel, "fused_sum", broken)
    mixing.fused_on.cache_clear()
    assert mixing.fused_on(torch.device("cpu")) is None
    assert mixing.fused_on(torch.device("cpu")) is None
    told = capsys.readouterr().out
    assert told == "mixing on cpu: without triton (RuntimeError: Failed to find C compiler)\n"
    mixing.fused_on.cache_clear()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_checks_for_a_gpu_run_and_hold_without_one(kernel, monkeypatch):
    path = Path(__file__).parents[2] / "eval" / "gpu" / "kernels.py"
    spec = importlib.util.spec_from_file_location("gpu_kernels", path)
    checks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checks)
    monkeypatch.setattr(checks, "DEGREES", (0, 2, 17))
    monkeypatch.setattr(checks, "LENGTHS", (1, 2049))
    results = [check(torch.device("cpu")) for check in checks.CHECKS]
    assert results[1:] == [
        "24 spoilt vectors noticed", "6 rounds, no locked host memory",
        "8 chains equal to the bit, 3 but for rounding",
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="other bytes"):
        monkeypatch.setattr(checks.torch, "equal", lambda a, b: False)
        checks.transforms_are_equal(torch.device("cpu"))
