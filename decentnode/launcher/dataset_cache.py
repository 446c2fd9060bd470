"""Data sets that are read once and shared by all runs forked later."""

import json
from collections.abc import Iterable
from dataclasses import replace

from decentnode.config.loader import plain
from decentnode.config.settings import Settings
from decentnode.datasets.base import Dataset, LoadedDataset

SIZES = ("train_size", "test_size")
"""Options that each run applies to the samples that it shares."""


class DatasetCache:
    """All samples, by the settings that decide which they are."""

    def __init__(self) -> None:
        self._datasets: dict[str, LoadedDataset] = {}

    def of(self, settings: Settings) -> LoadedDataset:
        """Returns the samples of a run, read if they are not here; raises BadInput."""
        key = key_of(settings)
        if key not in self._datasets:
            dataset: Dataset = settings.dataset.make()
            self._datasets[key] = dataset.whole(settings.seed, settings.training.ignored)
        return self._datasets[key]

    def keep(self, settings: Iterable[Settings]) -> None:
        """Forgets all samples that none of these runs needs."""
        keys = set(map(key_of, settings))
        self._datasets = {key: samples for key, samples in self._datasets.items() if key in keys}


def key_of(settings: Settings) -> str:
    """Returns a key that is equal for runs with the same samples."""
    options = {name: value for name, value in settings.dataset.options.items() if name not in SIZES}
    # A class of one's own that derives from one of ours may use the seed.
    seed = settings.seed if vars(settings.dataset.cls).get("uses_seed", True) else None
    dataset = plain(replace(settings.dataset, options=options))
    return json.dumps([dataset, seed, settings.training.ignored], sort_keys=True)
