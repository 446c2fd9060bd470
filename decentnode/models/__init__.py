"""Models: networks that a node trains; one family per file."""

from decentnode.models.base import Model, check_scores, initial_model, model_of
from decentnode.models.cnn import Cnn
from decentnode.models.lenet import LeNet
from decentnode.models.logistic_regression import LogisticRegression
from decentnode.models.mlp import Mlp
from decentnode.models.quadratic import Quadratic
from decentnode.models.resnet18 import ResNet18

__all__ = [
    "Cnn",
    "LeNet",
    "LogisticRegression",
    "Mlp",
    "Model",
    "Quadratic",
    "ResNet18",
    "check_scores",
    "initial_model",
    "model_of",
]
