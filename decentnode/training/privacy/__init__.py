"""Local steps with differential privacy, and the accountants of what they spend."""

from decentnode.training.privacy.accountants import Accountant, PldAccountant, RdpAccountant, Spending
from decentnode.training.privacy.base import Privacy, PrivacyPlan, PrivateSteps
from decentnode.training.privacy.dp_sgd import DpSgd

__all__ = [
    "Accountant", "DpSgd", "PldAccountant", "Privacy", "PrivacyPlan", "PrivateSteps", "RdpAccountant",
    "Spending",
]  # fmt: skip
