"""Datasets, and partitions that distribute their samples to ranks."""

from decentnode.datasets.amazon import Amazon
from decentnode.datasets.base import Dataset, LoadedDataset, Samples, Source
from decentnode.datasets.cifar10 import Cifar10, Cifar100
from decentnode.datasets.digits import Digits
from decentnode.datasets.hugging_face import HuggingFace
from decentnode.datasets.idx import Idx
from decentnode.datasets.image_folder import ImageFolder
from decentnode.datasets.leaf import Leaf
from decentnode.datasets.leaf_images import Celeba, Femnist
from decentnode.datasets.leaf_texts import Reddit, Sent140, Shakespeare
from decentnode.datasets.movielens import MovieLens
from decentnode.datasets.parallel import Parallel
from decentnode.datasets.partition import Partition, label_histogram
from decentnode.datasets.quadratic import Quadratic
from decentnode.datasets.ragged import Ragged, Vocabulary
from decentnode.datasets.skew import Skew
from decentnode.datasets.synthetic import Synthetic
from decentnode.datasets.table import TableFile
from decentnode.datasets.text import Text, Tokens

__all__ = [
    "Amazon", "Celeba", "Cifar10", "Cifar100", "Dataset", "Digits", "Femnist", "HuggingFace", "Idx",
    "ImageFolder", "Leaf", "LoadedDataset", "MovieLens", "Parallel", "Partition", "Quadratic", "Ragged",
    "Reddit", "Samples", "Sent140", "Shakespeare", "Skew", "Source", "Synthetic", "TableFile", "Text",
    "Tokens", "Vocabulary", "label_histogram",
]  # fmt: skip
