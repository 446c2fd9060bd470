"""The key files: a secret for each machine, and one list of public keys for all (docs/security.md).

Threads: any; files are read before a thread is started.
"""

import hashlib
import os
import shlex
import stat
import struct
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from zmq.utils import z85

from decentnode.communication.security.curve import Credentials, KeyPair
from decentnode.core.atomic_files import write_durably
from decentnode.errors import UNDECODABLE, BadInput

MANIFEST = "machines.json"
MOST_BYTES = 1 << 20
MAKE = "decentnode keys CONFIG.yaml"
OTHERS = 0o077
OTHERS_WRITE = 0o022

_Curve = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]
_Ed25519 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
T = TypeVar("T")


class MachineKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public keys of one machine."""

    curve: _Curve
    """The key of links: CURVE25519, Z85."""
    ed25519: _Ed25519
    """The key of signatures, hexadecimal."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The public keys of all machines, in the order of `mapping.machines`."""

    version: Literal[1]
    machines: list[MachineKeys]

    @cached_property
    def digest(self) -> str:
        """A hash of all keys."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret keys of one machine."""

    version: Literal[1]
    machine: Annotated[int, msgspec.Meta(ge=0)]
    curve: _Curve
    ed25519: _Ed25519

    @classmethod
    def make(cls, machine: int) -> "Secret":
        """New keys from the system's source of randomness."""
        pair = KeyPair.make()
        return cls(1, machine, pair.secret.decode(), Ed25519PrivateKey.generate().private_bytes_raw().hex())

    @property
    def pair(self) -> KeyPair:
        """The key pair for links."""
        return KeyPair(zmq.curve_public(self.curve.encode()), self.curve.encode())

    @property
    def public(self) -> MachineKeys:
        """The public halves."""
        signing = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.ed25519))
        return MachineKeys(self.pair.public.decode(), signing.public_key().public_bytes_raw().hex())


def secret_file(folder: Path, machine: int) -> Path:
    """The path of a machine's secret keys."""
    return folder / f"machine-{machine}.secret"


def make_keys(folder: Path, machines: int, overwrite: bool = False) -> list[Path]:
    """Writes new keys for all machines; returns the files, the list first. Raises BadInput if they exist."""
    files = [folder / MANIFEST, *(secret_file(folder, machine) for machine in range(machines))]
    taken = [path for path in files if os.path.exists(path)]  # noqa: PTH110 - it may be too long, or not ours
    if taken and not overwrite:
        raise BadInput(f"{taken[0]}: exists, and new keys would invalidate it; --force replaces it")
    secrets = [Secret.make(machine) for machine in range(machines)]
    manifest = Manifest(1, [secret.public for secret in secrets])
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_access(folder, folder.stat(), OTHERS, 0o700)
        for path, content, mode in zip(
            files, [manifest, *secrets], [0o644] + [0o600] * machines, strict=True
        ):
            write_durably(path, [msgspec.json.format(msgspec.json.encode(content)), b"\n"], mode)
    except OSError as error:
        raise BadInput(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    return files


def load_credentials(folder: Path, machine: int, machines: int) -> Credentials:
    """The credentials of `machine`; raises BadInput with the command that helps."""
    manifest = load_manifest(folder, machines)
    path = secret_file(folder, machine)
    secret = _read(path, Secret, OTHERS, 0o600)
    if secret.machine != machine:
        raise BadInput(
            f"{path}: has the keys of machine {secret.machine}, not of {machine}; copy the right one"
        )
    try:
        public = secret.public
    except (ValueError, zmq.ZMQError) as error:
        raise BadInput(f"{path}: curve is no key; copy the file again") from error
    if public != manifest.machines[machine]:
        raise BadInput(
            f"{path}: does not belong to {folder / MANIFEST}; copy both from the folder that '{MAKE}' made"
        )
    return Credentials(
        machine, secret.pair, tuple(listed.curve.encode() for listed in manifest.machines),
        bytes.fromhex(secret.ed25519), tuple(bytes.fromhex(listed.ed25519) for listed in manifest.machines),
    )  # fmt: skip


def load_manifest(folder: Path, machines: int) -> Manifest:
    """The list of public keys in a folder; raises BadInput."""
    try:
        _check_access(folder, folder.stat(), OTHERS, 0o700)
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}; make the keys: {MAKE}") from error
    path = folder / MANIFEST
    manifest = _read(path, Manifest, OTHERS_WRITE, 0o644)
    count = len(manifest.machines)
    if count != machines:
        remedy = f"make new keys: {MAKE} --machines {machines} --force"
        raise BadInput(f"{path}: lists {count} machines, the mapping has {machines}; {remedy}")
    for index, listed in enumerate(manifest.machines):
        _check_listed(path, index, listed, manifest.machines[:index])
    return manifest


def _check_listed(path: Path, index: int, keys: MachineKeys, earlier_keys: list[MachineKeys]) -> None:
    try:
        z85.decode(keys.curve)
    except (ValueError, KeyError, struct.error) as error:
        raise BadInput(f"{path}: machines[{index}].curve is no key; copy the file again") from error
    for other, earlier in enumerate(earlier_keys):
        if earlier.curve == keys.curve or earlier.ed25519 == keys.ed25519:
            raise BadInput(f"{path}: machines[{index}] has the key of machines[{other}]; each needs its own")


def _read(path: Path, kind: type[T], closed_to_others: int, mode: int) -> T:
    """The content of a file that only its owner may have written."""
    try:
        # Without blocking, because the path may be a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadInput(f"{path}: is no file; copy it from the folder that '{MAKE}' made")
            # Checked on the open descriptor, so the file cannot be replaced after the check.
            _check_access(path, status, closed_to_others, mode)
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        reason = f"{path}: {error.strerror}; copy it from the folder that '{MAKE}' made"
        raise BadInput(reason) from error
    try:
        return msgspec.json.decode(content, type=kind)
    except UNDECODABLE as error:
        raise BadInput(f"{path}: {error}; copy it again from the folder that '{MAKE}' made") from error


def _check_access(path: Path, status: os.stat_result, closed_to_others: int, mode: int) -> None:
    shown = shlex.quote(str(path))
    if status.st_uid not in (os.geteuid(), 0):
        raise BadInput(
            f"{path}: belongs to user {status.st_uid}, not to you; type: sudo chown $(id -u) {shown}"
        )
    if status.st_mode & closed_to_others:
        permissions = stat.S_IMODE(status.st_mode)
        raise BadInput(f"{path}: others have access (mode {permissions:04o}); type: chmod {mode:o} {shown}")
