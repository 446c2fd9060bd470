"""The sum in C: the bits of torch's operations, what it refuses, and an installation without it."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.sharing.blocks import native_sum, weighted_sum
from decentnode.sharing.blocks.weighted_sum import plain_sum
from eval.build_native import compile_native

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    library = tmp_path_factory.mktemp("native") / "libweighted_sum.so"
    assert compile_native(library) == ""
    made = native_sum.loaded(library, plain_sum)
    if made is None:
        pytest.skip("torch rounds in another way on this processor")
    return made


@needs_compiler
@settings(max_examples=200, deadline=None)
@given(st.integers(1, 13), st.integers(0, 5000), st.integers(0, 3), st.integers(0, 999))
def test_the_bits_are_those_of_torch(compiled, terms, length, offset, seed):
    """`offset`: vectors need not begin at a multiple of a register."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10 ** torch.empty(terms, 1).uniform_(-30, 30, generator=generator)
    vectors = torch.randn(terms, length + offset, generator=generator) * scales
    weights = torch.rand(terms, generator=generator, dtype=torch.float64).tolist()
    listed = [(w, x[offset:]) for w, x in zip(weights, vectors, strict=True)]
    ours, theirs = torch.full((length + offset + 1,), 7.0), torch.empty(length)
    plain_sum(listed, theirs)
    assert compiled(listed, ours[offset:-1]) == bool(theirs.isfinite().all())
    assert torch.equal(ours[offset:-1], theirs)
    assert (ours[:offset] == 7).all() and ours[-1] == 7


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_not_finite_is_noticed_wherever_it_stands(compiled, value):
    for terms in (1, 5, 6, 12):
        for place in (0, 2047, 2048, 4099):
            vectors = torch.randn(terms, 4100)
            listed = [(1 / terms, x) for x in vectors]
            assert compiled(listed, torch.empty(4100)) is True
            vectors[terms // 2, place] = value
            assert compiled(listed, torch.empty(4100)) is False


@needs_compiler
def test_what_does_not_fit_is_left_to_torch(compiled, monkeypatch):
    ones, out = torch.ones(8), torch.empty(8)
    for x in (torch.ones(7), ones.double(), ones.half(), torch.ones(16)[::2], torch.ones(8, device="meta")):
        assert compiled([(1.0, ones), (1.0, x)], out) is None
    assert compiled([(1.0, ones)], torch.empty(8, dtype=torch.float64)) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert compiled([(1.0, ones)], out) is True
    long = torch.ones(native_sum.LEAST_FOR_THREADS + 1)
    assert compiled([(1.0, long)], torch.empty_like(long)) is None


@needs_compiler
def test_a_library_with_other_bits_is_not_used(tmp_path, compiled):
    library = tmp_path / "libweighted_sum.so"
    compile_native(library)

    def rounded(terms, out):
        out.copy_(sum(w * x for w, x in terms))
        return True

    assert native_sum.loaded(library, rounded) is None


def test_without_a_library_torch_computes_the_sum(tmp_path, monkeypatch):
    (tmp_path / "broken.so").write_bytes(b"not a library")
    assert native_sum.loaded(tmp_path / "missing.so", plain_sum) is None
    assert native_sum.loaded(tmp_path / "broken.so", plain_sum) is None
    monkeypatch.setattr(weighted_sum, "native", lambda: None)
    out = torch.empty(3)
    assert weighted_sum.weighted_sum([(0.5, torch.ones(3)), (0.25, torch.ones(3))], out)
    assert out.tolist() == [0.75] * 3


def test_a_compiler_that_fails_is_named_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert "compiler failed" in compile_native(tmp_path / "libweighted_sum.so")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "compiler failed" in compile_native(tmp_path / "libweighted_sum.so")
    assert not list(tmp_path.iterdir())
