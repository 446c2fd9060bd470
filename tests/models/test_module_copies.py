"""Whatever keeps a network, a copy of it computes with parameters of its own, as does a copy of the copy."""

import functools
import types
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import nn
from torch.nn.utils import parametrize

from decentnode.config.python_source import passed_plugin
from decentnode.core.registry import MODELS
from decentnode.errors import BadInput
from decentnode.models.base import initial_model, model_of
from decentnode.models.module_copies import Memo, copied, deep_copy
from decentnode.node.copy_trial import leaves_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Kept:
    """An object that computes with the network that it keeps, also in a slot and a function."""

    __slots__ = ("call", "net")

    def __init__(self, net):
        self.net, self.call = net, lambda x: net.last(net.first(x))

    def __call__(self, x):
        return self.call(x) + 0 * Net.forward(self.net, x)


@dataclass(slots=True)
class Registry:
    layers: Any
    lock: Any = None


def changed(change):
    """A function that makes a network and changes it."""

    def make():
        net = Net()
        made = change(net)
        return net if made is None else made

    make.__name__ = change.__name__
    return make


def forward_is(function, net):
    net.forward = types.MethodType(function, net)


@changed
def compiled(net):
    return torch.compile(net, backend="eager")


@changed
def compiled_part(net):
    net.last = torch.compile(net.last, backend="eager")


@changed
def compiled_forward(net):
    net.forward = torch.compile(net.forward, backend="eager")


@changed
def not_compiled(net):
    net.first = torch._dynamo.disable(net.first)


@changed
def method_of_a_function(net):
    original = net.forward
    forward_is(lambda self, x: original(x).float(), net)


@changed
def as_accelerate_does(net):
    for part in (net.first, net.last):
        part.forward = functools.update_wrapper(
            functools.partial(lambda part, x, call: call(x), part, call=part.forward), part.forward
        )


@changed
def default_values(net):
    def forward(x, net=net, *, last=net.last):
        return last(net.first(x))

    net.forward = forward


@changed
def object_that_is_called(net):
    net.forward = Kept(net)


@changed
def functions_in_containers(net):
    net.calls = {"first": [(lambda x: net.first(x),)], "last": frozenset([net.last.forward])}
    forward_is(lambda self, x: next(iter(self.calls["last"]))(self.calls["first"][0][0](x)), net)


@changed
def weak_references(net):
    net.own, net.layers = weakref.ref(net), weakref.WeakValueDictionary(last=net.last)
    net.firsts, net.scales = weakref.WeakSet([net.first]), weakref.WeakKeyDictionary({net.first: 2.0})

    def forward(self, x):
        (first,) = self.firsts
        return self.layers["last"](self.own().first(x) + first(x) * self.scales[first])

    forward_is(forward, net)


@changed
def method_of_c(net):
    net.multiply = net.last.weight.mul
    forward_is(lambda self, x: self.last(self.first(x)) + self.multiply(1).sum(), net)


@changed
def hook_of_the_root(net):
    net.first.register_forward_pre_hook(
        functools.partial(lambda net, part, x: net.last(x[0]).repeat(1, 2), net)
    )
    net.last = nn.Linear(4, 2)
    forward_is(lambda self, x: self.first(x), net)


@changed
def parametrization(net):
    class Scaled(nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call = call

        def forward(self, weight):
            return self.call(weight)

    parametrize.register_parametrization(net.last, "weight", Scaled(lambda w: w * net.first.bias.sum()))


@changed
def function_of_itself(net):
    def forward(x, again=True):
        return forward(x, again=False) if again else net.last(net.first(x))

    net.forward = forward


@changed
def object_with_a_slot(net):
    registry = Registry(layers=(net.first, net.last))
    net.forward = lambda x: registry.layers[1](registry.layers[0](x))


def passed(network):
    """As a network that Python passes is made."""
    _, cls, _ = passed_plugin(MODELS, network)
    return cls()


MAKERS = [
    value for value in list(globals().values()) if getattr(value, "__qualname__", "").startswith("changed.")
]


@pytest.mark.parametrize("copy", [copied, passed])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_copy_computes_with_its_own_parameters(make, copy):
    torch.manual_seed(1)
    original, x = make(), torch.rand(5, 4)
    expected, own = original(x), [(p.shape, p.requires_grad) for p in original.parameters()]
    last = copied(copy(original))
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.fill_(torch.nan)
    assert torch.equal(last(x), expected)
    parameters = [*last.parameters()]
    assert [(p.shape, p.requires_grad) for p in parameters] == own
    leaves = leaves_of(last(x).sum())
    assert {id(leaf) for leaf in leaves} == {id(parameter) for parameter in parameters}


def test_what_does_not_lead_to_the_network_is_shared_and_state_is_not():
    net, shared, calls = Net(), Registry(layers=None, lock=object()), []
    count = 0

    def counted(part, given, made):
        nonlocal count
        count += 1
        calls.append((shared, count))

    def reported(part, given, made):
        calls.append(count)

    net.first.register_forward_hook(counted)
    net.last.register_forward_hook(reported)
    made = copied(net)
    made(torch.zeros(1, 4))
    assert calls == []
    hook, report = (next(iter(part._forward_hooks.values())) for part in (made.first, made.last))
    cells = dict(zip(hook.__code__.co_freevars, hook.__closure__, strict=True))
    # The hooks of the copy still have one counter, and one list, in common.
    assert cells["calls"].cell_contents[0] == (shared, 1) and cells["calls"].cell_contents[0][0] is shared
    assert cells["count"] in report.__closure__


def test_a_copy_may_not_share_what_is_trained():
    class Sharing(Net):
        def __deepcopy__(self, memo):
            return self

    with pytest.raises(BadInput, match=r"a copy of Sharing has the same 'first.weight' as the original"):
        copied(Sharing())
    frozen = Net()
    frozen.teacher = Sharing().requires_grad_(False)
    assert copied(frozen).teacher is frozen.teacher


def test_a_plug_in_that_keeps_a_network_is_copied_as_one():
    @dataclass
    class Wrapping:
        net: nn.Module

    kept = Wrapping(method_of_a_function())
    made = deep_copy(kept)
    assert made.net is not kept.net
    assert {id(leaf) for leaf in leaves_of(made.net(torch.rand(2, 4)).sum())} == set(
        map(id, made.net.parameters())
    )


def test_a_compiled_network_starts_no_processes_that_compile(monkeypatch):
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 8)
    initial_model(model_of(lambda: torch.compile(nn.Linear(4, 2)), {}), (4,), 2, seed=1)
    assert torch._inductor.config.compile_threads == 1


def test_the_time_of_a_copy_is_in_proportion_to_its_modules(monkeypatch):
    """What was copied is searched once, not again for each attribute."""
    searched = []
    originals = Memo.originals.fget

    class Counted(list):
        def __getitem__(self, part):
            found = super().__getitem__(part)
            searched.append(len(found))
            return found

        def __iter__(self):
            searched.append(len(self))
            return super().__iter__()

    monkeypatch.setattr(Memo, "originals", property(lambda memo: Counted(originals(memo))))
    network = nn.Sequential(*(Net() for _ in range(30)))
    copied(network)
    parts = len(list(network.modules())) + len(list(network.parameters()))
    assert parts < sum(searched) < 40 * parts
