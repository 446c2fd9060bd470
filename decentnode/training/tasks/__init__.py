"""The tasks that ship with decentnode."""

from decentnode.training.tasks.base import MetricSpec, Task
from decentnode.training.tasks.classification import Classification
from decentnode.training.tasks.next_token import NextToken
from decentnode.training.tasks.rating import Rating
from decentnode.training.tasks.translation import Translation

__all__ = ["Classification", "MetricSpec", "NextToken", "Rating", "Task", "Translation"]
