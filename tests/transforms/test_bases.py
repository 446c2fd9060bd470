"""Changes of basis: orthogonal, and right at every length."""

from itertools import cycle

import numpy as np
import pytest
import pywt
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st

from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput
from decentnode.graph.families import Ring
from decentnode.sharing import Gossip
from decentnode.testing import Lockstep
from decentnode.transforms import Cast, ChunkTopK, Clip, Dct, Fourier, RandomK, TopK, Wavelet
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain

F32, F64 = torch.float32, torch.float64
CONTEXT = Context(seed=1, round=2, sender=3)
LENGTHS = [0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 97, 100]
BASES = {
    "sym2": lambda: Wavelet(),
    "haar": lambda: Wavelet("haar", 9),
    "db8": lambda: Wavelet("db8", 2),
    "coif3": lambda: Wavelet("coif3"),
    "fourier": lambda: Fourier(),
    "blocks of 8": lambda: Fourier(8),
    "blocks of 7": lambda: Fourier(7),
    "whole": lambda: Fourier(0),
    "dct": lambda: Dct(),
    "dct of 7": lambda: Dct(7),
}
each_basis = pytest.mark.parametrize("make", BASES.values(), ids=BASES)


def random(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tolerance(dtype):
    """The filters of PyWavelets are tabled to some 1e-11."""
    return 1e-9 if dtype is F64 else 1e-5


@each_basis
@pytest.mark.parametrize("n", LENGTHS)
def test_the_columns_of_the_map_are_orthonormal(make, n):
    chain = Chain([make()], n, F64)
    matrix = torch.stack([chain.to_basis(row) for row in torch.eye(n, dtype=F64)]) if n else torch.zeros(0, 0)
    assert torch.allclose(matrix @ matrix.T, torch.eye(n, dtype=matrix.dtype), rtol=0, atol=1e-9)
    assert n == 0 or matrix.shape[1] == chain.layouts[1].fields[0].elements


@each_basis
@pytest.mark.parametrize(
    ("n", "dtype"), [*zip(LENGTHS, cycle((F32, F64)), strict=False), (4096, F32), (10_007, F64)]
)
def test_what_was_transformed_comes_back_with_its_energy(make, n, dtype):
    chain, x = Chain([make()], n, dtype), random(n, dtype=dtype)
    coefficients = chain.to_basis(x)
    back = chain.from_basis(coefficients, CONTEXT)
    assert coefficients.dtype == back.dtype == dtype and back.shape == (n,)
    assert float((back - x).norm()) <= tolerance(dtype) * float(x.norm())
    assert float(coefficients.norm()) == pytest.approx(float(x.norm()), rel=tolerance(dtype))
    assert not n or coefficients.data_ptr() != x.data_ptr()


# Wavelets.

EXACT = sorted(set(pywt.wavelist(kind="discrete")) - {"dmey"})


@given(
    family=st.sampled_from(EXACT), levels=st.integers(1, 12), n=st.integers(0, 300), seed=st.integers(0, 99)
)
def test_every_family_reconstructs_at_every_length(family, levels, n, seed):
    chain, x = Chain([Wavelet(family, levels)], n, F64), random(n, seed=seed)
    back = chain.from_basis(chain.to_basis(x), CONTEXT)
    assert torch.allclose(back, x, rtol=0, atol=1e-6 if family in ("bior3.1", "rbio3.1") else 1e-8)


@pytest.mark.parametrize(
    ("n", "levels", "padded"),
    [(0, 4, 0), (1, 4, 1), (2, 4, 2), (3, 4, 4), (16, 4, 16), (17, 4, 32), (1000, 3, 1000)],
)
def test_signals_are_padded_to_a_multiple_of_two_to_the_levels(n, levels, padded):
    assert Chain([Wavelet("sym2", levels)], n, F64).layout.fields[0].elements == padded


def test_the_coefficients_are_those_of_the_library():
    x = random(160)
    expected = np.concatenate(pywt.wavedec(x.numpy(), "sym2", "periodization", 4))
    assert np.allclose(Chain([Wavelet()], 160, F64).to_basis(x).numpy(), expected, rtol=0, atol=1e-14)


def test_haar_on_one_level_is_sums_and_differences():
    x = torch.tensor([1.0, 2, 3, 5], dtype=F64)
    expected = torch.tensor([3.0, 8, -1, -2], dtype=F64) / 2**0.5
    assert torch.allclose(Chain([Wavelet("haar", 1)], 4, F64).to_basis(x), expected, rtol=0, atol=1e-14)


def test_a_family_that_does_not_reconstruct_is_refused():
    with pytest.raises(BadInput, match=r"^transforms\[0\]: wavelet cannot use family 'dmey': .* an error of"):
        Chain([Wavelet("dmey")], 8)


def test_an_unknown_family_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"knows no family 'symm2'; did you mean 'sym2'\?"):
        Chain([Wavelet("symm2")], 8)


def test_without_its_library_the_command_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(BadInput, match=r"needs PyWavelets: pip install 'decentnode\[compression\]'"):
        Chain([Wavelet()], 8)


# Fourier.


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 100, 101])
def test_the_coefficients_are_the_real_and_imaginary_parts(n):
    x = random(n)
    X = np.fft.rfft(x.numpy(), norm="ortho")
    expected = [X[0].real]
    for m in range(1, (n + 1) // 2):
        expected += [2**0.5 * X[m].real, 2**0.5 * X[m].imag]
    expected += [X[-1].real] if n % 2 == 0 else []
    assert np.allclose(Chain([Fourier(0)], n, F64).to_basis(x).numpy(), expected, rtol=0, atol=1e-13)


def test_blocks_are_transformed_each_by_itself():
    x = random(20)
    parts = [Chain([Fourier(0)], len(part), F64).to_basis(part) for part in x.split(8)]
    assert torch.allclose(Chain([Fourier(8)], 20, F64).to_basis(x), torch.cat(parts), rtol=0, atol=1e-14)


def test_a_wave_is_one_coefficient():
    wave = torch.sin(2 * torch.pi * 3 * torch.arange(64, dtype=F64) / 64)
    kept = Chain([Fourier(), TopK(1 / 64)], 64, F64)
    decoded = kept.decode(kept.encode(wave, CONTEXT), CONTEXT)
    assert torch.allclose(decoded, wave, rtol=0, atol=1e-13)


# Cosines.

MODEL = ParameterLayout(
    (Entry("weight", torch.Size([13, 17]), 0), Entry("bias", torch.Size([11]), 221),
     Entry("kernel", torch.Size([3, 2, 2, 5]), 232, channels_last=True), Entry("scale", torch.Size([]), 292))
)  # fmt: skip
"""293 values, in matrices and otherwise."""


def test_the_coefficients_are_scipys():
    x = random(100).numpy()
    parts = [scipy.fft.dct(part, norm="ortho") for part in np.split(x, [32, 64, 96])]
    coefficients = Chain([Dct(32)], 100, F64).to_basis(torch.from_numpy(x)).numpy()
    assert np.allclose(coefficients, np.concatenate(parts), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_matrices_are_transformed_in_blocks_of_both_sides(dtype):
    """Block by block, whole ones first; each tensor by itself; whatever the order of a kernel in memory."""
    x = random(MODEL.numel, dtype=dtype)
    chain = Chain([Dct(8, matrices=True)], MODEL.numel, dtype, MODEL)
    coefficients, expected = chain.to_basis(x), []
    for entry in MODEL.entries:
        m = entry.shape[0] if len(entry.shape) > 1 else 1
        matrix = x[entry.offset :][: entry.shape.numel()].double().numpy().reshape(m, -1)
        # Rows and columns of whole blocks, then the rest of the columns, and the same of the last rows.
        height, width = m // 8 * 8, matrix.shape[1] // 8 * 8
        for rows in (matrix[:height], matrix[height:]):
            for part, w in ((rows[:, :width], 8), (rows[:, width:], matrix.shape[1] - width)):
                for start in range(0, part.shape[0], 8):
                    for left in range(0, part.shape[1], max(1, w)):
                        block = part[start : start + 8, left : left + w]
                        expected.append(scipy.fft.dctn(block, norm="ortho").ravel())
    assert np.allclose(coefficients, np.concatenate(expected), rtol=0, atol=1e-5 if dtype is F32 else 1e-13)
    back = chain.from_basis(coefficients, CONTEXT)
    assert torch.allclose(back, x, rtol=0, atol=1e-6 if dtype is F32 else 1e-13)


def test_a_smooth_matrix_is_few_coefficients_of_its_block():
    t = (torch.arange(64, dtype=F64) + 0.5) / 64
    wave = torch.cos(3 * torch.pi * t)[:, None] * torch.cos(5 * torch.pi * t)
    layout = ParameterLayout((Entry("w", torch.Size([64, 128]), 0),))
    x = torch.cat([wave, 2 * wave], 1).flatten()
    kept = Chain([Dct(matrices=True), ChunkTopK(1 / 4096)], 8192, F64, layout)
    payload = kept.encode(x, CONTEXT)
    assert payload["values"].tolist() == pytest.approx([32, 64]) and payload["index_code"].numel() == 3
    assert torch.allclose(kept.decode(payload, CONTEXT), x, rtol=0, atol=1e-12)


def test_matrices_need_the_models():
    with pytest.raises(BadInput, match=r"^transforms\[1\]: dct with matrices needs the model's, which"):
        Chain([Wavelet(), Dct(matrices=True)], MODEL.numel, F64, MODEL)
    with pytest.raises(BadInput, match="dct with matrices takes whole models of 293 values, not 300"):
        Chain([Dct(matrices=True)], 300, F64, MODEL)


# In a chain.


@each_basis
def test_gossip_of_a_whole_basis_is_gossip(make):
    models = random(8, 45)
    plain = Lockstep(Gossip, Ring(8), models).run(5)
    assert torch.allclose(
        Lockstep(Gossip, Ring(8), models, lambda: (make(),)).run(5), plain, rtol=0, atol=1e-8
    )


@each_basis
def test_gaps_are_filled_in_the_basis(make):
    """x_i + T^-1 m_j T (x_j - x_i): what the receiver mixes in place of the model of j."""
    x, receiver_signal = random(45), random(45, seed=1)
    chain, selection = Chain([make(), RandomK(0.3)], 45, F64), RandomK(0.3)
    basis = Chain([make()], 45, F64)
    Chain([selection], basis.layout.fields[0].elements, F64)
    change = basis.to_basis(x - receiver_signal)
    mask = torch.zeros_like(change).index_fill_(0, selection.coordinates(CONTEXT), 1.0)
    expected = receiver_signal + basis.from_basis(mask * change, CONTEXT)
    decoded = chain.decode(chain.encode(x, CONTEXT), Context(1, 2, 3, 0, receiver_signal))
    assert torch.allclose(decoded, expected, rtol=0, atol=1e-8)


@each_basis
def test_half_precision_on_the_wire_comes_back_in_the_signals_precision(make):
    chain, x = Chain([Clip(100.0), make(), Cast("fp16")], 45, F32), random(45, dtype=F32)
    decoded = chain.decode(chain.encode(x, CONTEXT), CONTEXT)
    assert decoded.dtype == F32
    assert float((decoded - x).norm()) <= 2e-3 * float(x.norm())
