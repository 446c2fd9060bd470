"""Models: sizes known from the papers, shapes, the common start, and refusals word for word."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from decentnode.contrib.vgg11 import Vgg11
from decentnode.contrib.vit import Vit
from decentnode.core.registry import MODELS, name_of
from decentnode.datasets import Ragged, Samples
from decentnode.errors import BadInput
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
    Model,
    RedditLstm,
    ResNet8,
    ResNet18,
    ResNet50,
    ShakespeareLstm,
    Transformer,
    check_scores,
    initial_model,
    model_of,
)
from decentnode.models.base import check_ids

SMALL_RESNETS = [ResNet18(norm="group", groups=2, width=4), ResNet18(norm="batch", width=4)]
FOR_IMAGES = [LogisticRegression(), Mlp((5, 4)), Cnn((2, 3), 4), LeNet(), *SMALL_RESNETS]


def zeros(*shape):
    return (torch.zeros(2, *shape),)


def count(module):
    return sum(p.numel() for p in module.parameters())


MCMAHAN = [  # McMahan et al., 2017, section 3
    (Mlp((200, 200)), (1, 28, 28), 10, 199_210),
    (Cnn(), (1, 28, 28), 10, 1_663_370),
]
DECENTRALIZEPY = [  # Dhasade et al., 2023, and its datasets/*.py
    (CifarCnn(), (3, 32, 32), 10, 62_006),
    (LeNet(), (3, 32, 32), 10, 89_834),
    (ResNet8(), (3, 32, 32), 10, 4_932_344),
    (ResNet8(norm="group"), (3, 32, 32), 10, 4_932_344),
    (LogisticRegression(), (1, 28, 28), 62, 48_670),
    (Cnn(), (1, 28, 28), 62, 1_690_046),
    (CelebaCnn(), (3, 84, 84), 2, 30_242),
    (ShakespeareLstm(), (80,), 92, 2_683_708),
    (RedditLstm(), (10,), 9_999, 4_317_895),
    (MatrixFactorization(), (2,), 1, 206_680),
]
TORCHVISION = [  # torchvision 0.28: resnet18(), resnet50(), vgg11(), vgg11_bn()
    (ResNet18(norm="batch", stem="imagenet"), (3, 224, 224), 1_000, 11_689_512),
    (ResNet50(norm="batch"), (3, 224, 224), 1_000, 25_557_032),
    (ResNet50(norm="group"), (3, 224, 224), 1_000, 25_557_032),
    (Vgg11(), (3, 224, 224), 1_000, 132_863_336),
    (Vgg11(norm="batch"), (3, 224, 224), 1_000, 132_868_840),
    (Vgg11(norm="group"), (3, 224, 224), 1_000, 132_868_840),
]
PUBLISHED = [
    *MCMAHAN,
    *DECENTRALIZEPY,
    *TORCHVISION,
    (LogisticRegression(), (1, 28, 28), 10, 7_850),
    (ResNet18(norm="batch"), (3, 32, 32), 10, 11_173_962),
    (ResNet18(norm="group"), (3, 32, 32), 10, 11_173_962),
    (Vgg11(pooled=1, hidden=()), (3, 32, 32), 10, 9_225_610),
    (Vgg11("batch", pooled=1, hidden=()), (3, 32, 32), 10, 9_231_114),
    (Vit(), (3, 224, 224), 1_000, 22_050_664),  # timm 1.0: vit_small_patch16_224
    (Gpt2(), (1_024,), 50_257, 124_439_808),  # Radford et al., 2019, as released
    (Gpt2(), (1_024,), 50_304, 124_475_904),  # nanoGPT (Karpathy, 2022) rounds the vocabulary up
    (Transformer(), (2, 32), 37_000, 63_082_496),  # Vaswani et al., 2017, table 3: "65 million"
]


@pytest.mark.parametrize(("model", "shape", "classes", "parameters"), PUBLISHED)
def test_parameter_counts(model, shape, classes, parameters):
    with torch.device("meta" if parameters > 10_000_000 else "cpu"):
        assert count(model.build(shape, classes)) == parameters


def test_the_page_has_every_network_and_its_published_count():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()
    rows = [row.split(" | ") for row in re.findall(r"^\| (`.*) \|$", page, re.MULTILINE)]
    assert {row[0].split("`")[1] for row in rows} == MODELS.classes().keys()
    counts = {(name_of(model), f"{parameters:,}") for model, _, _, parameters in PUBLISHED}
    assert {(row[0].split("`")[1], row[2]) for row in rows if row[2][0].isdigit()} <= counts


def test_the_transformer_is_that_of_torch_without_its_last_norms():
    with torch.device("meta"):
        ours = count(Transformer().build((2, 8), 37_000)) - 37_000 * 512
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8), 6, enable_nested_tensor=False)
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(512, 8), 6)
    assert ours == count(encoder) + count(decoder) == 44_138_496


@pytest.mark.parametrize("model", FOR_IMAGES, ids=repr)
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (3, 17, 23)])
def test_images_give_one_score_per_class(model, shape):
    check_scores(model.build(shape, 7), zeros(*shape), 7)


@pytest.mark.parametrize("model", [LogisticRegression(), Mlp()], ids=repr)
def test_features_need_no_image_shape(model):
    check_scores(model.build((60,), 3), zeros(60), 3)


def test_logistic_regression_is_one_affine_map():
    module = LogisticRegression().build((2, 3), 4)
    weight, bias = module.parameters()
    x = torch.randn(5, 2, 3)
    assert torch.allclose(module(x), x.reshape(5, 6) @ weight.T + bias, atol=1e-6)


def test_lenet_is_convolution_normalization_relu_pooling():
    module = LeNet().build((3, 32, 32), 10)
    parts = list(module)
    x = expected = torch.randn(2, 3, 32, 32)
    for convolution, norm in ((0, 1), (4, 5), (8, 9)):
        expected = nn.functional.max_pool2d(parts[norm](parts[convolution](expected)).relu(), 2)
    assert torch.equal(module(x), parts[-1](expected.flatten(1)))


def test_norm_of_resnet_is_a_choice():
    kinds = [{type(part) for part in m.build((1, 8, 8), 2).modules()} for m in SMALL_RESNETS]
    assert nn.GroupNorm in kinds[0] and nn.BatchNorm2d not in kinds[0]
    assert nn.BatchNorm2d in kinds[1] and nn.GroupNorm not in kinds[1]


def test_everyone_starts_from_the_same_model_whoever_drew_before():
    first = initial_model(Mlp(), (4,), 3, seed=5)
    torch.rand(3)
    second, other = initial_model(Mlp(), (4,), 3, seed=5), initial_model(Mlp(), (4,), 3, seed=6)
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    initial_model(Mlp(), (4,), 3, seed=5)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (LeNet(), (64,), "model: lenet takes images of shape (channels, height, width), at least 8 x 8; "
         "the dataset gives (64,)"),
        (Cnn(), (1, 2, 8), "model: cnn takes images of shape (channels, height, width), at least 4 x 4; "
         "the dataset gives (1, 2, 8)"),
        (ResNet18(groups=3), (3, 32, 32), "model: resnet18: groups 3 does not divide width 64"),
        (Vgg11("group", groups=5), (3, 32, 32), "model: vgg11: groups 5 does not divide width 64"),
        (Gpt2(), (1, 8), "model: gpt2 takes ids of shape (length,); the dataset gives (1, 8)"),
        (Gpt2(heads=5), (8,), "model: gpt2: heads 5 does not divide width 768"),
        (Gpt2(context=4), (8,), "model: gpt2: context 4 is shorter than the samples, which have 8 ids"),
        (Vit(), (3, 32, 24), "model: vit: patch 16 does not divide images of 32 x 24"),
        (Transformer(), (3, 8),
         "model: transformer takes ids of source and target, in two fields or in shape (2, length); the "
         "dataset gives samples of shape (3, 8)"),
        (MatrixFactorization(), (2,),
         "model: matrix_factorization takes ids (user, item) of shape (2,) and gives one rating; the "
         "dataset gives (2,) and 10 classes"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_take_is_said_in_one_line(model, shape, message):
    with pytest.raises(BadInput) as caught:
        model.build(shape, 10)
    assert str(caught.value) == message


def test_a_plain_module_class_gets_its_own_options():
    model = model_of(nn.Linear, {"in_features": 4, "out_features": 3})
    check_scores(model.build((4,), 3), zeros(4), 3)


def test_a_function_that_returns_a_network_is_named_like_a_class():
    def linear(weights=None, **options):
        return nn.Linear(4, **options)

    check_scores(model_of(linear, {"out_features": 3, "pretrained": None}).build((4,), 3), zeros(4), 3)
    with pytest.raises(BadInput, match=r"model: linear cannot be built: Linear.__init__.. got an unexpected"):
        model_of(linear, {"outs": 3}).build((4,), 3)
    with pytest.raises(BadInput, match=r"model: count gives int, not a torch.nn.Module"):
        model_of(count, {"module": nn.Linear(1, 1)}).build((4,), 3)


def test_a_model_class_gets_its_fields():
    assert model_of(Mlp, {"hidden": (3,)}) == Mlp((3,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: model_of(dict, {}), "model: dict is neither a decentnode Model nor a torch.nn.Module"),
        (lambda: model_of(nn.Flatten, {"x": 1}).build((4,), 3),
         "model: Flatten cannot be built: Flatten.__init__() got an unexpected keyword argument 'x'"),
        (lambda: check_scores(nn.Linear(4, 2), zeros(4), 3),
         "model: Linear gives (2, 2) for 2 samples; it must give (2, 3)"),
        (lambda: check_scores(nn.Linear(5, 2), zeros(4), 2),
         "model: Linear does not take samples of shape (4,): "
         "mat1 and mat2 shapes cannot be multiplied (2x4 and 5x2)"),
    ],
)  # fmt: skip
def test_networks_from_outside_that_cannot_work(call, message):
    with pytest.raises(BadInput) as caught:
        call()
    assert str(caught.value) == message


def test_every_registered_model_is_a_model_that_cites_its_source():
    classes = MODELS.classes()
    assert len(classes) == 18
    for cls in classes.values():
        assert issubclass(cls, Model)
        assert re.search(r"\([^()]*\b(19|20)\d\d\b", (cls.__doc__ or "").splitlines()[0])


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("mlp", {"hidden": [8, 4]}, {"hidden": [0]}),
        ("cnn", {"channels": [2, 3], "hidden": 4}, {"channels": [2]}),
        ("resnet18", {"norm": "batch", "width": 4}, {"norm": "layer"}),
        ("vit", {"patch": 4, "layers": 1, "heads": 2, "width": 8}, {"dropout": 1.5}),
    ],
)
def test_options_are_checked_by_their_types(name, right, wrong):
    options = TypeAdapter(MODELS.find(name))
    check_scores(options.validate_python(right).build((1, 8, 8), 3), zeros(1, 8, 8), 3)
    with pytest.raises(ValidationError):
        options.validate_python(wrong)


def test_ids_that_a_network_has_no_room_for_are_refused_before_the_start():
    pairs = Samples(torch.tensor([[2, 0], [0, 7]], dtype=torch.int32), torch.ones(2))
    assert torch.equal(pairs.largest_ids()[0], torch.tensor([[2, 7]]))
    check_ids(MatrixFactorization(users=3, items=8).build((2,), 1), pairs.largest_ids())
    with pytest.raises(BadInput, match="Factors does not take the ids of the samples, which go up to 7: "):
        check_ids(MatrixFactorization(users=3, items=7).build((2,), 1), pairs.largest_ids())
    mapped = torch.from_numpy(np.array([[1, 65_000]], dtype=np.uint16))
    ragged = Ragged(torch.tensor([5, 6, 9]), torch.tensor([0, 2]), torch.tensor([2, 1]))
    images = Samples(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    assert Samples(mapped, torch.zeros(1, 2)).largest_ids()[0].tolist() == [[1, 65_000]]
    assert Samples(ragged, torch.zeros(2)).largest_ids()[0].tolist() == [[9, 9]]
    check_ids(Lstm(), images.largest_ids())  # no ids: nothing to check
