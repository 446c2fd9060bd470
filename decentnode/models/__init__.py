"""Models: networks that a node trains; one family per file."""

from decentnode.models.base import Model, check_scores, initial_model, model_of
from decentnode.models.celeba_cnn import CelebaCnn
from decentnode.models.cifar_cnn import CifarCnn
from decentnode.models.cnn import Cnn
from decentnode.models.gpt2 import Gpt2
from decentnode.models.lenet import LeNet
from decentnode.models.logistic_regression import LogisticRegression
from decentnode.models.lstm import Lstm
from decentnode.models.matrix_factorization import MatrixFactorization
from decentnode.models.mlp import Mlp
from decentnode.models.quadratic import Quadratic
from decentnode.models.reddit_lstm import RedditLstm
from decentnode.models.resnet8 import ResNet8
from decentnode.models.resnet18 import ResNet18
from decentnode.models.resnet50 import ResNet50
from decentnode.models.shakespeare_lstm import ShakespeareLstm
from decentnode.models.transformer import Transformer

__all__ = [
    "CelebaCnn",
    "CifarCnn",
    "Cnn",
    "Gpt2",
    "LeNet",
    "LogisticRegression",
    "Lstm",
    "MatrixFactorization",
    "Mlp",
    "Model",
    "Quadratic",
    "RedditLstm",
    "ResNet8",
    "ResNet18",
    "ResNet50",
    "ShakespeareLstm",
    "Transformer",
    "check_scores",
    "initial_model",
    "model_of",
]
