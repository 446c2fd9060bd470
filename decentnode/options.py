"""Types of options with their ranges, and what a change of an option changes, for dataclass fields."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

ENDLESS = 1_000_000_000
"""The rounds of a run that ends when its loops do."""
Positive = Annotated[int, Gt(0)]
NonNegative = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Gt(0), Le(1)]
Probability = Annotated[float, Ge(0), Le(1)]
Bits = Annotated[int, Ge(1), Le(8)]
NAMES_FILE = "a text that is there as a file is its path"
INLINED = "its name and its options are keys of the section around it"
"""Marks a plug-in among the fields of a section, whose other fields are keys beside its options."""
TextOrFile = Annotated[str, NAMES_FILE]
"""A text such as `20 ms`, or the path of a file, which is looked for as other paths are."""
Port = Annotated[int, Gt(0), Lt(65536)]

Changes = Literal["nothing", "results", "rounding", "models"]
"""What another value changes: nothing; what is measured, or how long it takes; the rounding of sums in the
models; or the models."""


@dataclass(frozen=True)
class Effect:
    """What another value of an option changes. Resume, digests and the tables of the docs follow from it."""

    changes: Changes = "models"
    timing: bool = False
    """Whether it decides when messages arrive or who is lost: the models, where virtual time decides them."""
    per_host: bool = False
    """Whether machines of one run may differ in it."""


MODELS = Effect()
"""The effect of an option that says nothing else."""


def option(
    default: Any = MISSING, *, changes: Changes = "models", timing: bool = False, per_host: bool = False
) -> Any:
    """Returns a dataclass field for an option that says what another value of it changes (`Effect`)."""
    return field(default=default, metadata={Effect: Effect(changes, timing, per_host)})


def effect_of(cls: Callable[..., Any], name: str, usual_effect: Effect = MODELS) -> Effect:
    """Returns the effect of an option of a class; `usual_effect`: that of one whose field says nothing."""
    declared: dict[str, Effect] = {}
    if is_dataclass(cls):
        declared = {f.name: f.metadata[Effect] for f in fields(cls) if Effect in f.metadata}
    return declared.get(name, usual_effect)
