"""Our names for decentralizepy's keys, classes and flags; docs/from_decentralizepy.md has the same tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from decentnode.errors import Key

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Counterpart:
    """The YAML keys that an INI key or a flag becomes; without any, the reason."""

    yaml: tuple[str, ...] = ()
    reason: str = ""


def _to(*yaml: str) -> Counterpart:
    return Counterpart(yaml)


def _none(reason: str) -> Counterpart:
    return Counterpart(reason=reason)


_DATASET_NAME = _to("dataset.name")
_BY = _to("sharing.transforms[0].by")
_CODING = _to("sharing.transforms")
_BY_ROUND = _to("sharing.transforms[0].fraction", "sharing.transforms[0].fraction_from")
_FIXED = _none("messages have a fixed format")
_SAVED = _none("`records` count the bytes of values and indices")
_SERVER = _none(
    "a server is a graph here: `graph: {name: federated, nodes: 17, rate: 0.5}` with `sharing: fed_avg`, or "
    "`fed_stc` for STC"
)

KEYS: dict[str, dict[str, Counterpart]] = {
    "DATASET": {
        "dataset_package": _DATASET_NAME,
        "dataset_class": _DATASET_NAME,
        "model_class": _to("model.name"),
        "train_dir": _to("dataset.path", "dataset.train_path"),
        "test_dir": _to("dataset.path", "dataset.test_path"),
        "images_dir": _to("dataset.images_path"),
        "sizes": _to("dataset.partition.sizes"),
        "random_seed": _to("seed"),
        "only_local": _none("each rank has its own part of one partition"),
        "test_batch_size": _to("evaluation.batch_size"),
        "partition_niid": _to("dataset.partition.name"),
        "alpha": _to("dataset.partition.alpha"),
        "shards": _to("dataset.partition.labels_per_node"),
        "shard": _to("dataset.partition.labels_per_node"),
        "validation_source": _to("dataset.validation.source"),
        "validation_size": _to("dataset.validation.size"),
        "tokenizer": _none("`amazon` hashes words, and `read` of your own dataset returns ids"),
    },
    "OPTIMIZER_PARAMS": {
        "optimizer_package": _to("training.optimizer.name"),
        "optimizer_class": _to("training.optimizer.name"),
    },
    "TRAIN_PARAMS": {
        "training_package": _to("training.name"),
        "training_class": _to("training.name"),
        "rounds": _to("training.steps_per_round"),
        "full_epochs": _to("training.epochs_per_round", "training.minibatches"),
        "batch_size": _to("training.batch_size"),
        "shuffle": _none("every epoch is shuffled"),
        "loss_package": _to("training.loss"),
        "loss_class": _to("training.loss"),
        "loss": _to("training.loss"),
    },
    "COMMUNICATION": {
        "comm_package": _to("communication.name"),
        "comm_class": _to("communication.name"),
        "addresses_filepath": _to("mapping.machines"),
        "offset": _to("communication.base_port"),
        "recv_timeout": _to("failures.deadline"),
    },
    "NODE": {
        "graph_degree": _to("graph.degree"),
        "timeout": _to("failures.deadline"),
    },
    "SHARING": {
        "sharing_package": _to("sharing.name"),
        "sharing_class": _to("sharing.name"),
        "alpha": _to("sharing.transforms[0].fraction"),
        "alpha_list": _to("sharing.fractions"),
        "metadata_cap": _to("sharing.metadata_cap"),
        "wavelet": _to("sharing.wavelet", "sharing.levels"),
        "level": _to("sharing.wavelet", "sharing.levels"),
        "accumulation": _BY,
        "accumulate_averaging_changes": _BY,
        "change_based_selection": _BY,
        "change_transformer": _to("sharing.transforms"),
        "step_size": _to("sharing.gamma"),
        "layerwise": _to("sharing.transforms[0].per_layer"),
        "compress": _CODING,
        "compression_package": _CODING,
        "compression_class": _CODING,
        "float_precision": _to("sharing.transforms[0].precision"),
        "init_alpha": _BY_ROUND,
        "max_alpha": _BY_ROUND,
        "k": _BY_ROUND,
        "change_alpha": _BY_ROUND,
        "change_rounds": _BY_ROUND,
        "range_start": _BY_ROUND,
        "range_end": _BY_ROUND,
        "epsilon": _to("sharing.transforms[0].relative"),
        "lower_bound": _to("sharing.transforms[0].random", "sharing.transforms[0].random_below"),
        "metro_hastings": _to("sharing.weights", "sharing.fill"),
        "dict_ordered": _FIXED,
        "pickle": _FIXED,
        "save_shared": _to("records.coordinates"),
        "save_accumulated": _SAVED,
    },
}
"""Keys by section. An optimizer has further keys, all of them its own options."""

FLAGS: dict[str, Counterpart] = {
    "-ms": _to("mapping.machines"),
    "-ps": _to("mapping.machines"),
    "-mid": _to("machine"),
    "-is": _to("rounds"),
    "-gf": _to("graph.path", "graph.type"),
    "-gt": _to("graph.path", "graph.type"),
    "-ta": _to("evaluation.every"),
    "-tea": _none("the training loss of each round is recorded"),
    "-ld": _to("run_dir"),
    "-wsd": _to("records.models"),
    "-ll": _none("the console and `logs/` show all that matters"),
    "-ro": _none(
        "the optimizer keeps its state; plain SGD has none, and others are reset there unless it is 0"
    ),
    "-sm": _SERVER,
    "-sr": _SERVER,
    "-wr": _SERVER,
}
"""Arguments of the drivers, apart from -cf: the file itself."""

DATASETS: dict[str, Options] = {
    "CIFAR10": {"name": "cifar10"},
    "Femnist": {"name": "femnist"},
    "Celeba": {"name": "celeba"},
    "Shakespeare": {"name": "shakespeare"},
    "Reddit": {"name": "reddit"},
    "MovieLens": {"name": "movielens"},
    "AmazonReview": {"name": "amazon"},
}
DROPPING = ("Femnist",)
"""Data sets whose loaders leave out a short last minibatch."""
OF_USERS = ("Femnist", "Celeba", "Shakespeare", "Reddit", "AmazonReview")
"""Datasets whose users are distributed and whose parts have a directory each."""
NATURAL = (*OF_USERS, "MovieLens")
"""Datasets whose users stay whole."""
MODELS = {
    "LeNet": "lenet",
    "LogisticRegression": "logistic_regression",
    "CNN": "cnn",
    "ResNet8": "resnet8",
    "LSTM": "shakespeare_lstm",
    "RNN": "reddit_lstm",
    "MatrixFactorization": "matrix_factorization",
}
CNNS = {"CIFAR10": "cifar_cnn", "Celeba": "celeba_cnn"}
"""The model that the class `CNN` stands for beside each of these datasets."""
PARTITIONS = {
    "False": "iid",
    "iid": "iid",
    "simple": "iid",
    "dirichlet": "dirichlet",
    "kshard": "shards",
    "True": "shards",
}
TRAININGS = {name: "local" for name in ("Training", "GradientAccumulator", "ChangeAccumulator")}
COMMUNICATIONS = {"TCP": "zeromq", "TCP_ACK": "zeromq"}
COMPRESSIONS: dict[str, tuple[str, ...]] = {
    "Elias": ("elias_gamma",),
    "EliasFpzip": ("elias_gamma", "fpzip"),
    "EliasFpzipLossy": ("elias_gamma", "fpzip"),
    "Lz4Wrapper": ("lz4",),
    "Quantization": ("uniform",),
}
LOSSES = {"cross_entropy": "CrossEntropyLoss", "nll_loss": "NLLLoss", "mse_loss": "MSELoss"}
"""The functions of torch.nn.functional that `loss` may name, as classes of torch.nn."""


@dataclass(frozen=True)
class Scheme:
    """The section `sharing` that a sharing class of decentralizepy becomes."""

    name: str
    fixed: Options = field(default_factory=dict)
    """Options whatever the INI file says."""
    transforms: tuple[Options, ...] = ()
    keys: Mapping[str, Key] = field(default_factory=dict)
    """The place below `sharing` of each INI key."""
    defaults: Options = field(default_factory=dict)
    """The values of decentralizepy for keys that the INI file leaves out and whose default here differs."""
    required: tuple[str, ...] = ()
    indices: bool = False
    """Whether it sends indices, so that a coder of indices fits."""
    computed: tuple[str, ...] = ()
    """INI keys whose values are converted together (`decentralizepy.COMPUTED`)."""
    by: Key | None = None
    """The place of the change that values are ranked by; None: of a scheme without such a selection."""
    codes_itself: bool = False
    """Whether its messages are coded already."""


RANDOM_FRACTIONS = [0.1, 0.2, 0.3, 0.4, 1.0]
BASIS_KEYS: dict[str, Key] = {"wavelet": ("transforms", 0, "family"), "level": ("transforms", 0, "levels")}


def _top_k(
    *before: str, fraction: str = "alpha", default: Any = 1.0, computed: tuple[str, ...] = (), **fixed: Any
) -> Scheme:
    """Returns gossip of the values that changed most, after a change of basis or none."""
    at = len(before)
    keys: dict[str, Key] = {
        fraction: ("transforms", at, "fraction"),
        "metadata_cap": ("transforms", at, "metadata_cap"),
        "layerwise": ("transforms", at, "per_layer"),
        "change_based_selection": ("transforms", at, "by"),
    }
    defaults = {fraction: default}
    if fraction in computed:
        defaults = {}
        del keys[fraction]
    if before == ("wavelet",):
        keys |= BASIS_KEYS
        defaults |= {"wavelet": "haar"}
    transforms = (*({"name": name} for name in before), {"name": "top_k", **fixed})
    by = ("transforms", at, "by")
    return Scheme(
        "gossip", {}, transforms, keys=keys, defaults=defaults, indices=True, computed=computed, by=by
    )


_JWINS = Scheme(
    "jwins",
    keys={"alpha_list": ("fractions",), "metadata_cap": ("metadata_cap",)}
    | {"wavelet": ("wavelet",), "level": ("levels",)},
    defaults={"alpha_list": RANDOM_FRACTIONS, "metadata_cap": 1.0, "wavelet": "haar"},
    indices=True,
    by=("by",),
)
SCHEMES: dict[str, Scheme] = {
    "Sharing": Scheme("gossip"),
    "PlainAverageSharing": Scheme("gossip", {"weights": "uniform"}),
    "SubSampling": Scheme(
        "gossip",
        transforms=({"name": "random_k"},),
        keys={"alpha": ("transforms", 0, "fraction"), "layerwise": ("transforms", 0, "per_layer")},
        defaults={"alpha": 1.0},
    ),
    "PartialModel": _top_k(),
    "TopK": _top_k(),
    "TopKParams": _top_k(by="magnitude", per_layer=True),
    "Wavelet": _top_k("wavelet"),
    "FFT": _top_k("fourier"),
    "GrowingAlpha": _top_k(fraction="init_alpha", computed=("init_alpha", "max_alpha", "k")),
    "ManualAdapt": _top_k(fraction="change_alpha", computed=("change_alpha", "change_rounds")),
    "RandomAlphaIncremental": _top_k(fraction="range_start", computed=("range_start", "range_end")),
    "RoundRobinPartial": Scheme(
        "gossip",
        transforms=({"name": "fragments", "start": "drawn"},),
        keys={"alpha": ("transforms", 0, "fraction")},
        defaults={"alpha": 1.0},
    ),
    "LowerBoundTopK": _top_k(computed=("alpha", "lower_bound", "metro_hastings")),
    "TopKNormalized": replace(
        (normalized := _top_k()),
        keys={**normalized.keys, "epsilon": ("transforms", 0, "relative")},
        defaults={**normalized.defaults, "epsilon": 0.01},
    ),
    "TopKPlusRandom": _top_k(computed=("alpha",)),
    "Synchronous": Scheme("all_reduce"),
    "RandomAlpha": _top_k(fraction="alpha_list", default=RANDOM_FRACTIONS),
    "JWINS": _JWINS,
    "RandomAlphaWavelet": _JWINS,
    "Choco": Scheme(
        "choco",
        transforms=({"name": "top_k"},),
        keys={"alpha": ("transforms", 0, "fraction"), "step_size": ("gamma",)},
        required=("alpha", "step_size"),
        indices=True,
    ),
    "STC": Scheme("stc", keys={"alpha": ("fraction",)}, defaults={"alpha": 1.0}, codes_itself=True),
}

REFUSED = {
    "SharingCentrality": (
        "its weights sum to 1 over all nodes, not over the neighbors, so models shrink in each round",
        "use sharing=gossip; on a complete graph, where the weights are equal, sharing.weights=uniform",
    ),
}
"""Sharing classes that have no counterpart: why, and what is nearest. Their module may name them, too."""
