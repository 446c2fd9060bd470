"""The tasks that ship with decentnode."""

from decentnode.training.metrics.base import MetricSpec
from decentnode.training.tasks.base import Task
from decentnode.training.tasks.classification import Classification
from decentnode.training.tasks.logits import Binary, MultiLabel
from decentnode.training.tasks.next_token import NextToken
from decentnode.training.tasks.rating import Rating
from decentnode.training.tasks.regression import Regression
from decentnode.training.tasks.segmentation import Segmentation
from decentnode.training.tasks.translation import Translation

__all__ = [
    "Binary", "Classification", "MetricSpec", "MultiLabel", "NextToken", "Rating", "Regression",
    "Segmentation", "Task", "Translation",
]  # fmt: skip
