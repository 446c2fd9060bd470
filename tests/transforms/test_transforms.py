"""What every transform owes, run for each registered one by the cases of `transform_cases`."""

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decentnode.core.byte_counters import ByteCounters
from decentnode.core.payload import Form, Payload, PayloadError, dense_layout
from decentnode.core.registry import TRANSFORMS, name_of
from decentnode.core.vector import Entry, ParameterLayout
from decentnode.errors import BadInput, RunFailed
from decentnode.transforms import Cast
from decentnode.transforms.base import Context
from decentnode.transforms.chain import Chain, check_order
from tests.support.transform_cases import CASES

F32, F64 = torch.float32, torch.float64
SHAPES = [(0, F32), (1, F32), (2, F64), (7, F32), (1000, F32), (999, F64)]
ROUNDS = 4
DRAWS = 600
NONSENSE = list(zip(CASES.values(), itertools.cycle((math.nan, math.inf, -math.inf)), strict=False))
"""Each case with one number that is none."""
STANDARD_ERRORS = 5.5
"""How far a mean of draws may be from the expectation: by chance farther once in 25 million."""

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def in_each_shape(test):
    """One test for all lengths and dtypes of the signal: to start one takes longer than what it does."""

    def run(self, case):
        for length, dtype in SHAPES:
            try:
                test(self, case, length, dtype)
            except Exception as error:
                error.add_note(f"for {length} values of {dtype}")
                raise

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def signal(length, dtype=F32, seed=0):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def signals(length, dtype):
    """Of many kinds, none beyond what half precision can hold."""
    kinds = {"normal": signal(length, dtype), "zeros": torch.zeros(length, dtype=dtype)}
    kinds["constant"] = torch.full((length,), -0.1, dtype=dtype)
    kinds["one alone"] = torch.zeros(length, dtype=dtype)
    kinds["one alone"][length // 2 :][:1] = 3.0
    kinds["heavy tails"] = (signal(length, dtype, 1) / signal(length, dtype, 2).abs()).clamp(-1e4, 1e4)
    kinds["tiny"] = 1e-30 * signal(length, dtype, 3)
    return kinds


def chain_of(case, length, dtype=F32, transforms=None):
    """A fresh chain that has seen that all nodes start from zeros."""
    chain = Chain((transforms or case.chain)(), length, dtype, case.parameters(length))
    chain.begin(torch.zeros(length, dtype=dtype))
    return chain


def context_of(chain, round=2):
    return Context(seed=1, round=round, sender=3, receiver=5 if chain.per_receiver else None)


def received(chain, payload):
    """The payload as its receiver reads it."""
    return Payload.parse(chain.layout, payload.buffer.clone())


def through(chain, vector, round=2):
    """What a receiver decodes, in the signal's dtype."""
    context = context_of(chain, round)
    return chain.decode(received(chain, chain.encode(vector, context)), context).to(vector.dtype)


def test_every_registered_transform_has_a_case_that_exercises_it():
    ours = {name for name, cls in TRANSFORMS.classes().items() if cls.__module__.startswith("decentnode.")}
    assert {key.split()[0] for key in CASES} == ours
    for key, case in CASES.items():
        assert key.split()[0] in {name_of(transform) for transform in case.chain()}


@each_case
class TestBytes:
    @in_each_shape
    def test_what_is_encoded_has_the_declared_layout_and_form(self, case, length, dtype):
        chain = chain_of(case, length, dtype)
        form = Form.DENSE
        for transform in chain.stages:
            form = transform.emits or form
        assert chain.layout.form is form
        for vector in signals(length, dtype).values():
            payload = chain.encode(vector, context_of(chain))
            assert payload.layout.hash == chain.layout.hash
            assert received(chain, payload).nbytes == payload.nbytes <= chain.layout.max_bytes

    @in_each_shape
    def test_bytes_that_are_counted_are_those_on_the_wire(self, case, length, dtype):
        chain, counters = chain_of(case, length, dtype), ByteCounters()
        payload = chain.encode(signal(length, dtype), context_of(chain))
        counters.count_sent(payload, receivers=3)
        counters.count_received(received(chain, payload))
        assert counters.sent_payload + counters.sent_index == 3 * payload.buffer.numel()
        assert counters.received_payload + counters.received_index == payload.buffer.numel()
        assert (counters.sent_index > 0) <= chain.layout.has_indices

    @in_each_shape
    def test_the_same_seed_gives_the_same_bytes_in_two_instances(self, case, length, dtype):
        first, second = (chain_of(case, length, dtype) for _ in range(2))
        for round in range(2):
            vector = signal(length, dtype, seed=round)
            a, b = (chain.encode(vector, context_of(chain, round)) for chain in (first, second))
            assert torch.equal(a.buffer, b.buffer)


@each_case
class TestMemory:
    @in_each_shape
    def test_encoding_leaves_the_signal_alone_and_keeps_no_view_of_it(self, case, length, dtype):
        chain, vector = chain_of(case, length, dtype), signal(length, dtype)
        payload = chain.encode(vector, context_of(chain))
        content = payload.buffer.clone()
        assert torch.equal(vector, signal(length, dtype))
        vector.fill_(7.0)
        assert case.may_alias or torch.equal(payload.buffer, content), "the payload is a view of the signal"

    @in_each_shape
    def test_a_payload_stays_as_it_was_when_later_ones_are_made(self, case, length, dtype):
        chain = chain_of(case, length, dtype)
        payload = chain.encode(signal(length, dtype), context_of(chain))
        content = payload.buffer.clone()
        chain.encode(signal(length, dtype, 1), context_of(chain, 3))
        assert torch.equal(payload.buffer, content)

    @in_each_shape
    def test_decoding_leaves_the_payload_and_the_own_signal_alone(self, case, length, dtype):
        chain, receiver_signal = chain_of(case, length, dtype), signal(length, dtype, 9)
        payload = received(chain, chain.encode(signal(length, dtype), context_of(chain)))
        content = payload.buffer.clone()
        decoded = chain.decode(payload, replace(context_of(chain), fill=receiver_signal))
        assert decoded.shape == receiver_signal.shape
        assert not length or decoded.data_ptr() != receiver_signal.data_ptr(), (
            "what is decoded is the own signal itself"
        )
        assert torch.equal(payload.buffer, content)
        assert torch.equal(receiver_signal, signal(length, dtype, 9))

    @in_each_shape
    def test_any_node_decodes_what_any_other_one_sent(self, case, length, dtype):
        """Whatever has been sent before: only the sender's part may remember."""
        sender, fresh = (chain_of(case, length, dtype) for _ in range(2))
        for round in range(ROUNDS):
            context = context_of(sender, round)
            payload = sender.encode(signal(length, dtype, seed=round), context)
            mine, others = (c.decode(received(c, payload), context) for c in (sender, fresh))
            assert torch.equal(mine, others)


@each_case
class TestNumbers:
    @in_each_shape
    def test_what_is_decoded_is_within_the_declared_error(self, case, length, dtype):
        for kind, vector in signals(length, dtype).items():
            whole, reference = (chain_of(case, length, dtype, t) for t in (None, case.reference))
            expected = through(reference, vector) if reference.stages else vector
            error = (through(whole, vector).double() - expected.double()).abs()
            bound = 0.0 if case.bound is None else case.bound(vector)
            if isinstance(bound, torch.Tensor) and bound.shape == error.shape and bound.dim():
                assert (error <= bound.double()).all(), kind
            else:
                assert float(torch.linalg.vector_norm(error)) <= float(bound), kind

    @in_each_shape
    def test_a_resumed_chain_continues_as_if_never_stopped(self, case, length, dtype):
        running, resumed = (chain_of(case, length, dtype) for _ in range(2))
        for round in range(ROUNDS):
            running.encode(signal(length, dtype, seed=round), context_of(running, round))
        resumed.load_state_dict(running.state_dict())
        apart = running.copy()
        apart.encode(signal(length, dtype, 99), context_of(running, 99))
        for round in range(ROUNDS, 2 * ROUNDS):
            vector = signal(length, dtype, seed=round)
            a, b = (chain.encode(vector, context_of(chain, round)) for chain in (running, resumed))
            assert torch.equal(a.buffer, b.buffer)

    @in_each_shape
    def test_transforms_without_state_ignore_the_past(self, case, length, dtype):
        fresh, used = (chain_of(case, length, dtype) for _ in range(2))
        if any(transform.remembers for transform in fresh.stages):
            return
        for round in range(2):
            used.encode(signal(length, dtype, seed=round), context_of(used, round))
        a, b = (c.encode(signal(length, dtype, 5), context_of(c, 5)) for c in (fresh, used))
        assert torch.equal(a.buffer, b.buffer)

    @in_each_shape
    def test_a_change_of_basis_is_linear(self, case, length, dtype):
        chain = chain_of(case, length, dtype)
        u, v = signal(length, dtype, 1), signal(length, dtype, 2)
        for transform in chain.transforms[: chain.basis]:
            combined, separate = (
                transform.in_basis(3 * u - v),
                3 * transform.in_basis(u) - transform.in_basis(v),
            )
            tolerance = 100 * torch.finfo(dtype).eps * max(1.0, float(separate.norm()))
            assert float((combined - separate).norm()) <= tolerance
            u, v = transform.in_basis(u), transform.in_basis(v)
        assert u.numel() == chain.layouts[chain.basis].fields[0].elements


def claims_to_be_unbiased(key, case):
    tested = (transform for transform in case.chain() if name_of(transform) == key.split()[0])
    return case.unbiased or any(transform.unbiased for transform in tested)


UNBIASED = {key: case for key, case in CASES.items() if claims_to_be_unbiased(key, case)}


@pytest.mark.parametrize("case", UNBIASED.values(), ids=UNBIASED)
@pytest.mark.parametrize("length", [1, 33])
def test_what_claims_to_be_unbiased_is_right_on_average(case, length):
    """Over rounds, each with its own randomness. Values that are equal in size share no luck of rounding."""
    chain, vector = chain_of(case, length, F64), signal(length, F64, seed=4)
    draws = torch.stack([through(chain, vector, round) for round in range(DRAWS)])
    standard_error = draws.std(0) / math.sqrt(DRAWS)
    off = (draws.mean(0) - vector).abs()
    assert (off <= STANDARD_ERRORS * standard_error + 1e-6 * vector.abs().max()).all()


@pytest.mark.parametrize(("case", "nonsense"), NONSENSE, ids=CASES)
def test_what_is_not_finite_is_refused_and_named(case, nonsense):
    bias, weight = Entry("conv.bias", torch.Size([4]), 0), Entry("fc.weight", torch.Size([4, 4]), 4)
    chain = Chain(case.chain(), 20, F32, ParameterLayout((bias, weight)))
    chain.begin(torch.zeros(20))
    vector = signal(20)
    vector[13] = nonsense
    with pytest.raises(RunFailed) as refusal:
        chain.encode(vector, context_of(chain))
    message = f"rank 3, round 3: {name_of(chain.stages[0])} cannot encode {nonsense} in fc.weight"
    assert str(refusal.value) == message
    assert torch.isfinite(through(chain, signal(20))).all(), "a refused signal has left something behind"


@each_case
def test_a_second_chain_has_state_of_its_own(case):
    chain = chain_of(case, 100)
    chain.encode(signal(100), context_of(chain, 0))
    second, untouched = chain.copy(), chain.copy()
    second.encode(signal(100, seed=1), context_of(chain, 1))
    a, b = (c.encode(signal(100, seed=2), context_of(c, 2)) for c in (chain, untouched))
    assert torch.equal(a.buffer, b.buffer)


@cache
def sent(key, length):
    """The chain of a case and the bytes that it sends."""
    case = CASES[key]
    chain = chain_of(case, length)
    return chain, chain.encode(signal(length), context_of(chain)).buffer


flips = st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), max_size=6)


@pytest.mark.parametrize("key", CASES)
@given(
    length=st.sampled_from([57, 57, 1, 0]), flips=flips, cut=st.integers(0, 24), tail=st.binary(max_size=9)
)
@settings(max_examples=12)
def test_a_broken_payload_is_refused_or_gives_a_signal(key, length, flips, cut, tail):
    """Never another exception, and never a signal of another length."""
    chain, buffer = sent(key, length)
    broken = buffer.clone()
    for place, bits in flips:
        if broken.numel():
            broken[place % broken.numel()] ^= bits
    broken = broken[: max(0, broken.numel() - max(0, cut - 16))]
    broken = torch.cat([broken, torch.tensor(list(tail[8:]), dtype=torch.uint8)])
    try:
        decoded = chain.decode(Payload.parse(chain.layout, broken), context_of(chain))
    except PayloadError:
        return
    assert decoded.shape == (length,)


@each_case
def test_a_transform_declares_its_cost_and_its_order(case):
    for transform in case.chain():
        assert transform.wire
        assert transform.accepts <= set(Form) and (transform.emits in {None, *Form})


def test_a_signal_is_decoded_where_its_payload_lies():
    class OnHost(Cast):
        def decode(self, payload, context):
            return Payload.dense(torch.zeros(3))

    chain, device = Chain([OnHost()], 3), torch.device("meta")
    payload = Payload(chain.layout, torch.empty(6, dtype=torch.uint8, device=device))
    assert chain.decode(payload, Context(0, 0, 0)).device == device


def test_an_empty_chain_sends_the_signal_itself():
    values = signal(10)
    chain, context = Chain([], 10), Context(seed=1, round=2, sender=3)
    payload = chain.encode(values, context)
    assert payload.buffer.data_ptr() == values.data_ptr()
    assert chain.decode(payload, context).data_ptr() == values.data_ptr()
    assert chain.layout == dense_layout(10)


class FromLists:
    accepts = frozenset({Form.SPARSE, Form.BYTES})
    emits = Form.BYTES


def test_a_wrong_order_is_one_line_that_names_both():
    message = r"^transforms\[1\]: cast takes dense or sparse but cast gives quantized; leave one of them out$"
    with pytest.raises(BadInput, match=message):
        Chain([Cast(), Cast("fp16")], 10)


def test_a_wrong_first_transform_names_the_signal():
    problem = "FromLists takes bytes or sparse but the signal gives dense"
    with pytest.raises(BadInput, match=rf"^transforms\[0\]: {problem}; put one that .*top_k$"):
        check_order([FromLists()])
