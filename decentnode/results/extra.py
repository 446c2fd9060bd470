"""Libraries of the extra `studies`, imported when something needs them."""

import importlib
from typing import Any

from decentnode.errors import BadInput


def need(module: str) -> Any:
    """A module of the extra; raises BadInput with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        raise BadInput(f"this needs {package}; run: pip install 'decentnode[studies]'") from error
