"""Defects of values are found at any depth of lists, mappings and unions of classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from decentnode.config.type_check import TypeMismatch, typed
from decentnode.options import Positive


@dataclass(frozen=True)
class Batches:
    batches: Positive | Literal["auto"]


@dataclass(frozen=True)
class Workers:
    workers: Positive
    inner: Batches | Literal["none"] = "none"


@dataclass(frozen=True)
class Steps:
    by: Batches | Workers | Literal["alone"]
    more: tuple[Batches | Workers, ...] = ()


CASES = [
    (
        tuple[Batches | Workers | None, ...],
        [{"batchs": 1}, None, {"workers": 0}, {}],
        [
            "[0].batchs: unknown key; did you mean 'batches'?",
            "[2].workers: must be a whole number > 0, not 0",
            "[3]: must be a mapping with batches or a mapping with workers or null, not an empty mapping",
        ],
    ),
    (
        Mapping[str, Batches | Workers],
        {"a": {"workers": 1, "inner": {"batch": 3}}, "b": {"batches": 1, "workers": 1, "inner": "none"}},
        [
            "a.inner.batch: unknown key; did you mean 'batches'?",
            "a.inner.batches: missing; it must be a whole number > 0 or 'auto'",
            "b.batches: does not go with workers; leave one of them out",
        ],
    ),
    (
        Steps,
        {"by": {"workrs": 2}, "more": [{"zebra": 1}], "else": object()},
        [
            "else: unknown key (known: by, more)",
            "by.workrs: unknown key; did you mean 'workers'?",
            "more[0].zebra: unknown key (known: batches, workers, inner)",
        ],
    ),
    (Batches | Mapping[str, int], {"batchs": "x"}, ["batchs: must be a whole number, not 'x'"]),
    (Batches | Mapping[str, int], {"batches": {}}, ["batches: must be ... or 'auto', not an empty mapping"]),
]


@pytest.mark.parametrize(("hint", "value", "lines"), CASES)
def test_a_key_is_checked_in_the_class_that_a_mapping_means(hint, value, lines):
    with pytest.raises(TypeMismatch) as unfit:
        typed(hint, value)
    assert [*map(str, unfit.value.defects)] == [line.replace("...", "a whole number > 0") for line in lines]
