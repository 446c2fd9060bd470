"""The flat vector: views, slots, memory order, and what is part of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from decentnode.core.vector import Entry, ModuleTensors, ParameterLayout, Vector
from decentnode.errors import BadInput

SIZES = st.integers(1, 4)


def vector_of(module, **options):
    layout = ParameterLayout.of(module, **options)
    return Vector(ModuleTensors(module, layout), (torch.empty(layout.numel), torch.empty(layout.numel)))


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))


def test_values_are_the_parameters_one_after_the_other():
    module = small_net()
    expected = torch.cat([p.detach().reshape(-1).clone() for p in module.parameters()])
    assert torch.equal(vector_of(module).values, expected)


def test_parameters_follow_the_values_without_a_copy():
    module = small_net()
    vector = vector_of(module)
    vector.values.fill_(2.0)
    assert all((p == 2.0).all() for p in module.parameters())


@pytest.mark.parametrize("channels_last", [False, True])
def test_backward_fills_the_flat_gradient(channels_last):
    plain, module = small_net(), small_net()
    vector = vector_of(module, channels_last=channels_last)
    samples = torch.randn(4, 2, 4, 4)
    for net in (plain, module):
        net(samples).square().sum().backward()
    for entry, parameter in zip(vector.layout.entries, plain.parameters(), strict=True):
        assert torch.allclose(entry.view(vector.gradient), parameter.grad, atol=1e-6)


def test_gradients_add_up_in_place():
    module = small_net()
    vector = vector_of(module)
    addresses = [p.grad.data_ptr() for p in module.parameters()]
    for _ in range(2):
        module(torch.ones(2, 2, 4, 4)).sum().backward()
    assert [p.grad.data_ptr() for p in module.parameters()] == addresses
    vector.gradient.zero_()
    assert not any(p.grad.any() for p in module.parameters())


def test_flip_makes_the_spare_slot_the_model_and_leaves_the_old_one_alone():
    module = small_net()
    vector = vector_of(module)
    old = vector.values
    before = old.clone()
    vector.spare.copy_(old + 1)
    vector.flip()
    assert vector.spare is old and torch.equal(old, before)
    assert torch.equal(next(module.parameters()).reshape(-1), before[:54] + 1)
    vector.flip()
    assert vector.values is old


def test_gradient_stays_where_it_is_over_flips():
    module = small_net()
    vector = vector_of(module)
    vector.spare.copy_(vector.values)
    vector.flip()
    module(torch.ones(2, 2, 4, 4)).square().sum().backward()
    assert torch.equal(torch.cat([p.grad.reshape(-1) for p in module.parameters()]), vector.gradient)
    assert vector.gradient.any()


def test_channels_last_keeps_the_output_and_the_memory_order():
    plain, module = small_net().eval(), small_net().eval()
    vector = vector_of(module, channels_last=True)
    samples = torch.randn(3, 2, 4, 4)
    assert torch.allclose(module(samples), plain(samples), atol=1e-6)
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert vector.layout.channels_last and not ParameterLayout.of(plain).channels_last


@given(st.tuples(SIZES, SIZES, SIZES, SIZES), st.integers(0, 3), st.booleans())
def test_an_entry_reads_back_what_was_written(shape, offset, channels_last):
    entry = Entry("weight", torch.Size(shape), offset, channels_last=channels_last)
    flat = torch.full((offset + entry.shape.numel() + 1,), -1.0)
    tensor = torch.arange(float(entry.shape.numel())).view(shape)
    entry.view(flat).copy_(tensor)
    assert torch.equal(entry.view(flat), tensor)
    assert (flat[:offset] == -1).all() and flat[-1] == -1
    assert flat[offset:-1].sort().values.equal(tensor.reshape(-1))


def test_float_buffers_are_part_of_the_vector_only_if_asked():
    names = [e.name for e in ParameterLayout.of(small_net()).entries]
    mixed = [e.name for e in ParameterLayout.of(small_net(), mix_buffers=True).entries]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert mixed == [*names, "1.running_mean", "1.running_var"]


def test_mixed_buffers_are_updated_in_the_vector_and_move_with_it():
    module = small_net()
    vector = vector_of(module, mix_buffers=True)
    module(torch.randn(4, 2, 4, 4) + 5)
    assert torch.equal(vector.values[-6:-3], module[1].running_mean) and module[1].running_mean.any()
    vector.spare.fill_(0.5)
    vector.flip()
    assert (module[1].running_mean == 0.5).all() and module[1].num_batches_tracked == 1


def test_frozen_parameters_are_not_part():
    module = small_net()
    module[0].requires_grad_(False)
    assert "0.weight" not in {e.name for e in ParameterLayout.of(module).entries}
    assert ParameterLayout.of(module).entries[0].offset == 0


def test_a_shared_parameter_is_in_the_vector_once():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert ParameterLayout.of(module).numel == 9 + 3 + 3


def test_other_types_than_float32_are_refused():
    with pytest.raises(BadInput) as caught:
        ParameterLayout.of(nn.Linear(2, 2).double())
    message = (
        "model: 'weight' is torch.float64; the vector is torch.float32 (training.dtype), so set "
        "training.dtype: float64, or call .to(torch.float32)"
    )
    assert str(caught.value) == message


def test_a_copy_is_trained_beside_the_model_and_its_change_is_added_to_the_mix():
    module = nn.Linear(2, 1, bias=False)
    vector = vector_of(module)
    vector.values.copy_(torch.tensor([1.0, 2.0]))
    vector.step_aside()
    module.weight.data += 0.25
    assert vector.trained.tolist() == [1.25, 2.25]
    assert vector.values.tolist() == [1.0, 2.0]
    vector.spare.copy_(torch.tensor([10.0, 20.0]))
    vector.rejoin(own_weight=0.5)
    vector.flip()
    assert module.weight.tolist() == [[10.25, 20.25]]
    assert vector.trained.data_ptr() == vector.values.data_ptr() == module.weight.data_ptr()


def test_the_change_of_a_buffer_counts_by_the_own_weight():
    module = nn.BatchNorm1d(1)
    vector = vector_of(module, mix_buffers=True)
    vector.step_aside()
    module.running_var.fill_(0.25)
    module.weight.data.fill_(0.25)
    vector.spare.fill_(1.0)
    vector.rejoin(own_weight=0.5)
    vector.flip()
    assert module.running_var.tolist() == [1.0 + 0.5 * (0.25 - 1.0)]
    assert module.weight.tolist() == [0.25]
