"""`decentnode keys`: makes the key files, and prints which machine needs which."""

from collections.abc import Iterator
from pathlib import Path

from decentnode.communication.security.key_files import make_keys
from decentnode.config.link_security import KEY_FOLDER
from decentnode.config.settings import KeyFolder, Settings
from decentnode.mapping.base import Mapping


def make(
    settings: Settings, config: Path, out: Path | None, machines: int | None, overwrite: bool
) -> Iterator[str]:
    """Makes keys for all machines, or for so many; one line for each file. Raises BadInput."""
    mapping: Mapping = settings.mapping.make()
    security = settings.security
    # The name of a shipped one has no folder here.
    config_folder = config.parent if config.exists() else Path()
    folder = out or (security.keys if isinstance(security, KeyFolder) else config_folder / KEY_FOLDER)
    manifest, *secrets = make_keys(folder, machines or len(mapping.machines), overwrite)
    width = max(len(str(path)) for path in (manifest, *secrets))
    yield f"{manifest!s:<{width}}  for every machine; nothing in it is secret"
    for machine, path in enumerate(secrets):
        address = f" ({mapping.address(machine)})" if machines is None else ""
        yield f"{path!s:<{width}}  for machine {machine}{address} alone"
    yield f"Copy them into a folder '{folder.name}' of mode 0700 there, and remove here what is for others."
