"""What a resumed node needs of a plug-in, named once in its class."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar


class Stateful:
    """Saves and restores the attributes named in `state`; tensors in a `state_dict` are references."""

    state: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Everything that changed since the start and that the next round depends on."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, with memory of its own."""
        for name in self.state:
            setattr(self, name, copy.deepcopy(state[name]))
