"""What a resumed node needs from a plug-in, named once in its class."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar


class Stateful:
    """Saves and restores the attributes named in `state`; tensors in a `state_dict` are references.

    An attribute that is itself Stateful, such as a second chain, does so for its own.
    """

    state: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that changed since the start and that the next round depends on."""
        changed = {name: getattr(self, name) for name in self.state}
        return {n: v.state_dict() if isinstance(v, Stateful) else v for n, v in changed.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict()`, with memory of its own."""
        for name in self.state:
            inner = getattr(self, name, None)
            if isinstance(inner, Stateful):
                inner.load_state_dict(state[name])
            else:
                setattr(self, name, copy.deepcopy(state[name]))
