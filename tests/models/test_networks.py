"""Every registered network: it trains in the vector, in each format; attention sees only what it may."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from decentnode.contrib.vgg11 import Vgg11
from decentnode.contrib.vit import Vit
from decentnode.core.registry import MODELS
from decentnode.core.vector import ModuleTensors, ParameterLayout, Vector
from decentnode.models import (
    CelebaCnn,
    CifarCnn,
    Cnn,
    Gpt2,
    LeNet,
    LogisticRegression,
    Lstm,
    MatrixFactorization,
    Mlp,
    RedditLstm,
    ResNet8,
    ResNet18,
    ResNet50,
    ShakespeareLstm,
    Transformer,
    check_scores,
    initial_model,
)
from decentnode.models.blocks.attention import Attention
from decentnode.node.checkpoint.safetensors_io import pieces, tensors_in
from decentnode.training.evaluation import load_flat
from decentnode.training.settings import Factory, TrainingSettings

IMAGE = (3, 32, 32)
CLASSES = 6
GPT = Gpt2(layers=2, heads=2, width=16)
TRANSLATOR = Transformer(layers=1, heads=2, width=16, hidden=32)
VIT = Vit(patch=8, layers=2, heads=2, width=16)
SMALL = {
    "celeba_cnn": (CelebaCnn(channels=8), IMAGE, ()),
    "cifar_cnn": (CifarCnn(), IMAGE, ()),
    "cnn": (Cnn((2, 3), 8), IMAGE, ()),
    "gpt2": (GPT, (8,), (8,)),
    "lenet": (LeNet(), IMAGE, ()),
    "logistic_regression": (LogisticRegression(), IMAGE, ()),
    "lstm": (Lstm(embedding=4, hidden=8), (5,), (5,)),
    "matrix_factorization": (MatrixFactorization(users=6, items=6, start=1.0), (2,), ()),
    "mlp": (Mlp(), IMAGE, ()),
    "reddit_lstm": (RedditLstm(embedding=4, hidden=8, features=8), (5,), ()),
    "resnet18": (ResNet18(groups=2, width=16, stem="imagenet"), IMAGE, ()),
    "resnet50": (ResNet50(groups=2, width=16), IMAGE, ()),
    "resnet8": (ResNet8(width=16), IMAGE, ()),
    "shakespeare_lstm": (ShakespeareLstm(embedding=4, hidden=8), (5,), ()),
    "transformer": (TRANSLATOR, (2, 8), (8,)),
    "vgg11": (Vgg11("group", groups=2, width=8, pooled=1, hidden=(8,)), IMAGE, ()),
    "vit": (VIT, IMAGE, ()),
}


def test_every_registered_network_has_a_small_form_here():
    """All but `quadratic`, which has tests of its own."""
    names = {name for name, cls in MODELS.classes().items() if cls.__module__.startswith("decentnode.")}
    assert names - {"quadratic"} == SMALL.keys()


def batch_for(shape, dtype=torch.float32, size=4):
    """Random images in channels-last order, or ids."""
    if shape == IMAGE:
        return torch.randn(size, *shape).to(dtype).to(memory_format=torch.channels_last)
    return torch.randint(1, CLASSES, (size, *shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_a_small_form_learns_random_samples_in_the_vector(name, dtype):
    model, shape, labels = SMALL[name]
    classes = 1 if name == "matrix_factorization" else CLASSES
    torch.manual_seed(1)
    network = initial_model(model, shape, classes, seed=1, dtype=dtype)
    zeros = torch.zeros(2, *shape, dtype=dtype if shape == IMAGE else torch.int64)
    check_scores(network, (zeros,), classes, labels)
    settings = TrainingSettings(Factory(torch.optim.Adam), steps_per_round=1)
    layout = ParameterLayout.of(network, channels_last=settings.channels_last(network), dtype=dtype)
    assert layout.channels_last == any(isinstance(part, nn.Conv2d) for part in network.modules())
    vector = Vector(ModuleTensors(network, layout), (torch.zeros(layout.numel, dtype=dtype),) * 2)
    inputs, targets = batch_for(shape, dtype), torch.randint(CLASSES, (4, *labels))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    losses = []
    for _ in range(8):
        vector.gradient.zero_()
        scores = network(inputs).float()
        loss = mse_loss(scores[:, 0], targets.float()) if classes == 1 else cross_entropy(scores, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert vector.values.isfinite().all() and vector.gradient.any()
    assert losses[-1] < losses[0]


def attended(causal):
    """One attention of ours and torch's own with the same weights."""
    ours, theirs = Attention(8, 2, causal), nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return ours, theirs


def test_attention_is_that_of_torch():
    x, other, keep = torch.randn(3, 5, 8), torch.randn(3, 4, 8), torch.rand(3, 4) < 0.7
    keep[:, 0] = True
    ours, theirs = attended(causal=False)
    expected, _ = theirs(x, other, other, key_padding_mask=~keep)
    assert torch.allclose(ours(x, other, keep), expected, atol=1e-5)
    ours, theirs = attended(causal=True)
    expected, _ = theirs(x, x, x, attn_mask=torch.ones(5, 5).triu(1).bool())
    assert torch.allclose(ours(x), expected, atol=1e-5)


def test_gpt2_sees_no_later_token():
    network = initial_model(GPT, (8,), CLASSES, seed=2).eval()
    ids = batch_for((8,))
    later = ids.clone()
    later[:, 5:] = (later[:, 5:] + 1) % CLASSES
    before, after = network(ids), network(later)
    assert torch.allclose(before[..., :5], after[..., :5], atol=1e-6)
    assert not torch.allclose(before[..., 5:], after[..., 5:], atol=1e-3)


def test_a_translation_depends_on_the_source_and_the_targets_before_it():
    model = Transformer(layers=1, heads=2, width=16, hidden=32, padding=0)
    network = initial_model(model, (2, 8), CLASSES, seed=2).eval()
    source, target = batch_for((6,)), batch_for((8,))
    scores = network(source, target)
    assert scores.shape == (4, CLASSES, 8)
    padded = torch.cat([source, torch.zeros(4, 2, dtype=torch.int64)], dim=1)
    assert torch.allclose(network(torch.stack([padded, target], dim=1)), scores, atol=1e-6)
    assert not torch.allclose(network(source.flip(1), target), scores, atol=1e-3)
    target[:, 5] = 0
    assert torch.allclose(network(source, target)[..., :5], scores[..., :5], atol=1e-6)
    assert network(torch.zeros_like(source), target).isfinite().all()


@pytest.mark.parametrize("name", ["gpt2", "transformer", "vit"])
def test_gradient_checkpointing_changes_no_bit(name):
    model, shape, _ = SMALL[name]
    inputs, gradients = batch_for(shape), []
    for recompute in (False, True):
        options = vars(model) | {"dropout": 0.2, "gradient_checkpointing": recompute}
        network = initial_model(type(model)(**options), shape, CLASSES, seed=3)
        torch.manual_seed(4)
        network(inputs).square().mean().backward()
        gradients.append([p.grad for p in network.parameters()])
    assert all(map(torch.equal, *gradients))
    assert any(not torch.equal(a, torch.zeros_like(a)) for a in gradients[0])


def test_dropout_is_for_training_alone():
    network = initial_model(GPT, (8,), CLASSES, seed=2)
    ids = batch_for((8,))
    assert not torch.equal(network(ids), network(ids))
    network.eval()
    assert torch.equal(network(ids), network(ids))


def test_gpt2_starts_as_published():
    network = initial_model(Gpt2(layers=8, heads=4, width=128), (8,), 500, seed=1)
    block = network.blocks[0]
    for weight in (network.tokens.weight, block.attention.query.weight, block.feed_forward[0].weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    for weight in (block.attention.output.weight, block.feed_forward[2].weight):
        assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert not block.attention.key_value.bias.any()


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_a_tied_embedding_is_one_tensor_in_vector_and_export(name):
    model, shape, _ = SMALL[name]
    network = initial_model(model, shape, CLASSES, seed=1)
    layout = ParameterLayout.of(network)
    assert sum(entry.shape == (CLASSES, 16) for entry in layout.entries) == 1
    vector = Vector(ModuleTensors(network, layout), (torch.zeros(layout.numel), torch.ones(layout.numel)))
    expected = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    exported = tensors_in(b"".join(bytes(piece) for piece in pieces(network.state_dict())))
    assert exported.keys() == expected.keys() == {entry.name for entry in layout.entries}
    assert all(torch.equal(exported[key], expected[key]) for key in expected)
    copy = initial_model(model, shape, CLASSES, seed=2).eval()
    load_flat(copy, layout, vector.values)
    ids = batch_for(shape)
    assert torch.equal(copy(ids), network.eval()(ids))
    vector.flip()
    assert (next(p for p in network.parameters() if p.shape == (CLASSES, 16)) == 1).all()


def test_layers_of_resnet8_without_use_are_sent_but_never_change():
    network = initial_model(ResNet8(width=8, groups=2, norm="group"), IMAGE, CLASSES, seed=1)
    network(batch_for(IMAGE)).sum().backward()
    unused = {name for name, p in network.named_parameters() if p.grad is None}
    assert unused == {"linear2.weight", "linear2.bias", "emb.weight"}
    assert unused < {entry.name for entry in ParameterLayout.of(network).entries}
    assert torch.equal(network.emb.weight, torch.eye(CLASSES))


def test_the_padding_of_reddit_stays_zero():
    network = initial_model(RedditLstm(embedding=4, hidden=8, features=8), (5,), CLASSES, seed=1)
    network(torch.zeros(2, 5, dtype=torch.int64)).sum().backward()
    assert not network.embedding.weight[0].any() and not network.embedding.weight.grad.any()
