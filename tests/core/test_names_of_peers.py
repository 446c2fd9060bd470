"""Names that other frameworks use: a hint leads to what is meant, or there is none.

decentralizepy, Decent-DP 0.2.3, BlueFog 0.3, Flower 1.42, byzfl 0.0.11, FedLab 1.3, NVFlare 2.9, LEAF,
torch and torchvision.
"""

import re

import pytest

from decentnode.config.torch_classes import LOSSES, OPTIMIZERS, SCHEDULERS
from decentnode.core.registry import (
    ATTACKS,
    COMMUNICATIONS,
    DATASETS,
    FAULTS,
    GRAPHS,
    MIXINGS,
    MODELS,
    PARTITIONS,
    SHARINGS,
    TRANSFORMS,
    Registry,
    letters,
)
from decentnode.errors import UnknownPlugin

MEANT = {
    GRAPHS: {
        "fully_connected": "complete CompleteTopology clique all-to-all FullyConnectedGraph fuly_connected",
        "ring": "RingTopology RingGraph cycle Ring rign ringg",
        "one_peer_hypercube": "one-peer-exp OnePeerExpTopology",
        "alternating_exponential_ring": "alternating-exp-ring AlternatingExpRingTopology",
        "exponential": "ExponentialTwoGraph ExponentialGraph static_exp",
        "grid": "MeshGrid2DGraph",
        "star": "StarGraph Star",
        "regular": "Regular random_regular",
        "small_world": "SmallWorld watts_strogatz",
        "epidemic_oracle": "EL_Oracle",
        "epidemic_local": "EL_Local",
        "similarity": "KNN",
        "chain": "path line",
        "one_peer_exponential": "one_peer_exponentail",
        "": "SymmetricExponentialGraph one_peer InnerOuterRing mesh KFN powerlaw barabasi_albert",
    },
    MIXINGS: {
        "metropolis_hastings": "metropolis MetroHastings",
        "uniform": "average equal",
        "": "max_degree laplacian fastest_mixing",
    },
    SHARINGS: {
        "gossip": "dpsgd D-PSGD DSGD mean average PlainAverageSharing NeighborAllreduce gosip gossi",
        "gossip with transforms: [top_k]": "TopK PartialModel",
        "gossip with transforms: [random_k]": "SubSampling",
        "all_reduce": "AllReduce local_sgd",
        "all_reduce with outer: {name: SGD, ...}": "diloco",
        "push_sum": "sgp PushSum",
        "fed_avg": "FedAvg ScatterAndGather",
        "fed_avg with outer: {name: SGD, momentum: ...}": "FedAvgM",
        "fed_avg with outer: {name: Adagrad, ...}": "FedAdagrad",
        "fed_prox": "FedProx",
        "fed_adam": "FedAdam",
        "fed_yogi": "FedYogi",
        "scaffold": "Scaffold SCAFFOLD",
        "parameter_server": "ParameterServer FedSGD",
        "krum": "Krum",
        "krum with select: M": "MultiKrum multi-krum",
        "median": "Median medain",
        "trimmed_mean": "TrMean TrimmedMean trimed_mean",
        "trimmed_mean with before: nnm": "nnm NNM",
        "trimmed_mean with before: bucketing": "Bucketing",
        "geometric_median": "GeometricMedian GeoMed",
        "clipped_gossip": "CenteredClipping",
        "choco": "Choco ChocoSGD",
        "quasi_global": "QG-DSGDm",
        "relay_sum": "RelaySGD",
        "epidemic_push": "EL_Local_Timeout",
        "jwins": "JWINS",
        "stc": "STC",
        "ad_psgd": "AD-PSGD ADPSGD",
        "": (
            "QFedAvg FedMedian FedTrimmedAvg Bulyan FedXgbBagging FedNova FedDyn FedProto Ditto Meamed MDA "
            "MoNNA CAF SMEA ARC fedbuff GrowingAlpha RoundRobinPartial LowerBoundTopK Synchronous psgd fed"
        ),
    },
    TRANSFORMS: {
        "cast with dtype: fp16": "fp16 float16",
        "cast with dtype: bf16": "bf16 bfloat16",
        "uniform with bits: 8": "int8",
        "uniform": "Quantization",
        "top_k": "TopK topk TopkCompressor top-k",
        "qsgd": "QSGDCompressor",
        "elias_gamma": "Elias",
        "lz4": "Lz4Wrapper",
        "fourier": "FFT",
        "low_rank": "PowerSGD",
        "sign": "signSGD",
        "ternary": "TernGrad",
        "random_k": "randk RandK rnadom_k",
        "": "EF21 fp8 zlib dgc natural_compression int2x TopKNormalized",
    },
    COMMUNICATIONS: {
        "zeromq": "TCP TCP_ACK zmq ZeroMQ zeromqq",
        "torch_distributed with backend: nccl": "nccl",
        "torch_distributed with backend: gloo": "gloo",
        "inproc": "in_process",
        "": "grpc mpi http mqtt",
    },
    DATASETS: {
        "cifar10": "CIFAR10 CIFAR-10 cifar_10",
        "cifar100": "CIFAR100",
        "femnist": "Femnist FEMNIST",
        "celeba": "CelebA Celeba",
        "shakespeare": "Shakespeare shakespere",
        "sent140": "Sent140 Sentiment140",
        "reddit": "Reddit",
        "synthetic": "Synthetic",
        "idx": "MNIST FashionMNIST KMNIST EMNIST",
        "movielens": "MovieLens",
        "amazon": "AmazonReview",
        "image_folder": "ImageFolder ImageNet",
        "": "SVHN STL10 Places365 Food101 tiny_shakespeare cifar20 LLMData USPS",
    },
    PARTITIONS: {
        "dirichlet": "DirichletPartitioner LDA dirchlet",
        "iid": "IidPartitioner IID",
        "shards": "PathologicalPartitioner ShardPartitioner kshard",
        "natural": "NaturalIdPartitioner",
        "sizes": "SizePartitioner",
        "": "LinearPartitioner ExponentialPartitioner InnerDirichletPartitioner",
    },
    MODELS: {
        "resnet18": "ResNet18 resnet_18 ResNet-18",
        "resnet50": "ResNet50",
        "resnet8": "ResNet8",
        "cifar_cnn": "LeNet5 cnn_cifar",
        "lenet": "LeNet",
        "logistic_regression": "LogisticRegression logreg",
        "mlp": "MLP",
        "vgg11": "VGG11",
        "matrix_factorization": "MatrixFactorization",
        "gpt2": "GPT-2 nanoGPT",
        "": "resnet34 resnet20 vgg16 vgg11_bn vit_b_16 densenet121 mobilenet_v2 AlexNet wide_resnet50_2",
    },
    OPTIMIZERS: {
        "SGD": "sgd",
        "SGD with momentum: 0.9": "momentum",
        "AdamW": "adamw adam_w",
        "RMSprop": "rmsprop RMSProp",
        "AccumAdam": "accum_adam",
        "": "LAMB LARS Lion AdaBelief Adan Shampoo FusedAdam AdamW8bit Sophia",
    },
    SCHEDULERS: {
        "CosineAnnealingLR": "cosine cosine_annealing CosineAnnealing CosineDecay CosineScheduler",
        "WarmupCosine": "cosine_with_warmup warmup_cosine",
        "StepLR": "step step_lr StepDecay",
        "ExponentialLR": "exponential",
        "LinearLR": "linear",
        "ReduceLROnPlateau": "plateau reduce_lr_on_plateau",
        "OneCycleLR": "one_cycle",
        "InverseSquareRoot": "inverse_sqrt",
        "": "LambdaLR MultiplicativeLR SequentialLR warmup",
    },
    LOSSES: {
        "CrossEntropyLoss": "cross_entropy crossentropy CrossEntropy SparseCategoricalCrossentropy",
        "NLLLoss": "nll nll_loss",
        "MSELoss": "mse mse_loss",
        "L1Loss": "mae l1",
        "BCEWithLogitsLoss": "bce_with_logits",
        "HuberLoss": "huber",
        "": "KLDivLoss MultiLabelMarginLoss GaussianNLLLoss TripletMarginLoss SoftMarginLoss CTCLoss focal",
    },
    ATTACKS: {
        "sign_flip": "SignFlipping sign_flipping",
        "ipm": "InnerProductManipulation IPM",
        "alie": "ALittleIsEnough ALIE",
        "not_finite": "Inf nan",
        "noise": "Gaussian",
        "label_flip": "LabelFlipping",
        "mimic": "Mimic",
        "": "Optimal_ALittleIsEnough Optimal_InnerProductManipulation backdoor sybil",
    },
    FAULTS: {
        "crash": "kill",
        "slow": "straggler",
        "drop": "packet_loss",
        "delay": "latency delays",
        "": "byzantine corrupt duplicate",
    },
}
"""By kind: what is meant, with an option where it takes one, and the names for it; empty: nothing here is."""


@pytest.mark.parametrize("registry", MEANT, ids=lambda registry: registry.kind)
def test_a_hint_leads_to_what_is_meant_or_there_is_none(registry):
    meant = {name: to for to, names in MEANT[registry].items() for name in names.split()}
    hints = {}
    for name in meant:
        with pytest.raises(UnknownPlugin) as error:
            registry.find(name)
        hint = re.search(r"; did you mean '(.*?)'(.*?)\?", str(error.value))
        hints[name] = "".join(hint.groups()) if hint else ""
    assert hints == meant


def test_no_synonym_is_a_name_or_stands_for_two():
    for registry in MEANT:
        assert not registry._synonyms.keys() & set(map(letters, registry.classes()))
    registry = Registry("graph", "decentnode.graph")
    registry.register("ring", "cycle")(type("Ring", (), {}))
    with pytest.raises(ValueError, match="'Cycle' stands for two graph plug-ins, 'ring' and 'loop'"):
        registry.register("loop", "Cycle")
