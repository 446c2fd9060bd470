"""What all tests share."""

import os

# Whether triton's functions are for its interpreter is settled when anything, torch too, first imports it.
os.environ["TRITON_INTERPRET"] = "1"

import torch
from hypothesis import settings

# A busy machine is no defect: property tests judge answers, never how long they took.
settings.register_profile("decentnode", deadline=None)
settings.load_profile("decentnode")

# As in host processes: several threads on tiny tensors mostly wait for each other.
torch.set_num_threads(1)
