"""The models that a run keeps as results: their places, and how to read them without torch."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from decentnode.core.text import counted
from decentnode.errors import BadInput
from decentnode.formats.reader import StrPath

FOLDER = "models"
COORDINATES = "coordinates"
"""The folder of the counts of sent coordinates, whose files have the same names and format."""
ENDING = ".safetensors"
OTHERS = "decentnode:"
"""Begins the names of tensors that are parts of other state (decentnode/models/pretrained.py)."""
PARTS = ("dtype", "shape", "data")
"""The fields of a tensor in the library's result."""
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8",
}  # fmt: skip
"""numpy's names for the types of the format; it has no BF16."""


def path_of(run: Path, rank: int, round: int, folder: str = FOLDER) -> Path:
    """The file of a rank's model after a round, or of its other tensors."""
    return run / folder / f"{rank:05d}" / f"{round:08d}{ENDING}"


def rounds_of(run: Path, rank: int, folder: str = FOLDER) -> list[int]:
    """The rounds, counted from 0, after which a rank's model was kept, in order."""
    stems = [path.stem for path in (run / folder / f"{rank:05d}").glob(f"*{ENDING}")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def model_rounds(run: StrPath, folder: str = FOLDER) -> dict[int, list[int]]:
    """Returns the rounds, counted from 0, after which models were kept, by rank; empty where none was."""
    run = Path(run)
    ranks = sorted(int(of_rank.name) for of_rank in (run / folder).glob("[0-9]*"))
    return {rank: rounds for rank in ranks if (rounds := rounds_of(run, rank, folder))}


def read_model(run: StrPath, rank: int, round: int, folder: str = FOLDER) -> dict[str, NDArray[Any]]:
    """A rank's model after a round, counted from 0: its tensors by their names in the module.

    bfloat16, which numpy lacks, becomes float32 with the same values. Extra state and sparse tensors are left
    out; `pretrained` reads them. Raises BadInput.
    """
    run = Path(run)
    path = path_of(run, rank, round, folder)
    try:
        content = path.read_bytes()
        tensors = dict(deserialize(content))  # type: ignore[no-untyped-call]
        plain = (name for name in names_in(content) if name in tensors and not name.startswith(OTHERS))
        return {name: _array(*map(tensors[name].get, PARTS)) for name in plain}
    except OSError as error:
        kept = counted(len(rounds_of(run, rank, folder)), "other round")
        raise BadInput(f"{path}: {error.strerror}; of this rank there are {folder} of {kept}") from error
    except (SafetensorError, ValueError) as error:
        raise BadInput(f"{path}: not in the safetensors format: {error}") from error


def model_hash(digests: Mapping[int, str]) -> str:
    """Returns one hash of all finished models: SHA-256 over their ranks and digests in rank order."""
    text = "".join(f"{rank}:{digest}\n" for rank, digest in sorted(digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def names_in(content: bytes) -> list[str]:
    """The names in the order of the file: that of the module, wide types first. The library has any order."""
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    return [*msgspec.json.decode(header, type=dict[str, Any])]


def _array(dtype: str, shape: list[int], content: bytes) -> NDArray[Any]:
    if dtype == "BF16":
        upper = np.frombuffer(content, "<u2").astype("<u4")
        return (upper << 16).view("<f4").reshape(shape)
    if dtype not in _TYPES:
        raise ValueError(f"numpy has no {dtype}")
    return np.frombuffer(content, _TYPES[dtype]).reshape(shape)
