"""One secret for all machines of a job, from which each derives all keys (docs/security.md).

No list of machines is needed, so it fits jobs whose machines are not known before. A machine that comes back
has the keys that it had. Whoever has the secret can take any machine's place; key files keep machines apart.

Threads: any.
"""

import os
import stat
from pathlib import Path

import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from zmq.utils import z85

from decentnode.communication.security.curve import Credentials, KeyPair
from decentnode.errors import BadInput

VARIABLE = "DECENTNODE_SECRET"
LEAST, MOST = 32, 4096
"""Characters of a secret: the public keys allow to try short ones."""
MAKE = "openssl rand -hex 32"
EVERYBODY = 0o007


def read_secret(path: Path | None) -> bytes:
    """Returns the secret in a file, or in the environment; raises BadInput in one line."""
    where = VARIABLE if path is None else str(path)
    if path is None:
        content = os.environb.get(VARIABLE.encode(), b"")
        if not content:
            raise BadInput(f"{VARIABLE}: is not set; set it to the same on all machines, such as $({MAKE})")
    else:
        try:
            # Without blocking, because the path may be a pipe.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise BadInput(f"{path}: is no file; make one: {MAKE} > FILE")
                if status.st_mode & EVERYBODY:
                    raise BadInput(f"{path}: everybody can read or write it; type: chmod 600 {path}")
                content = file.read(MOST + 1)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}; make it: {MAKE} > {path}") from error
    secret = content.strip()
    if not LEAST <= len(secret) <= MOST:
        wanted = f"must have {LEAST} to {MOST} characters"
        raise BadInput(f"{where}: {wanted}, not {len(secret)}; make one: {MAKE}")
    return secret


def derived(secret: bytes, purpose: str) -> bytes:
    """Returns 32 bytes for a purpose (HKDF with SHA-256, RFC 5869)."""
    return HKDF(SHA256(), 32, salt=b"decentnode job secret 1", info=purpose.encode()).derive(secret)


def derived_credentials(secret: bytes, machine: int, machines: int) -> Credentials:
    """Returns the credentials of a machine; all machines derive the same public keys.

    One more pair, of index `machines`, is that of a machine which has no index yet.
    """
    pairs = [_pair(secret, index) for index in range(machines + 1)]
    signing = [derived(secret, f"ed25519 of machine {index}") for index in range(machines + 1)]
    public = [Ed25519PrivateKey.from_private_bytes(one).public_key().public_bytes_raw() for one in signing]
    return Credentials(
        machine, pairs[machine], tuple(pair.public for pair in pairs), signing[machine], tuple(public)
    )


def _pair(secret: bytes, machine: int) -> KeyPair:
    key = z85.encode(derived(secret, f"curve25519 of machine {machine}"))
    return KeyPair(zmq.curve_public(key), key)
