"""Each machine signs the handshakes of its nodes, so machine 0 cannot change them (RFC 8032).

Threads: any; nothing here is shared.
"""

from collections.abc import Mapping

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from decentnode.communication.security.curve import Credentials

_PURPOSE = "decentnode introductions 1"


def vouch(credentials: Credentials, digest: str, handshakes: Mapping[int, bytes]) -> bytes:
    """This machine's signature of its nodes' handshakes, for the configuration with that digest."""
    key = Ed25519PrivateKey.from_private_bytes(credentials.signing)
    return key.sign(_statement(credentials.machine, digest, handshakes))


def is_vouched(
    credentials: Credentials, machine: int, digest: str, handshakes: Mapping[int, bytes], signature: bytes
) -> bool:
    """Whether `machine` signed exactly these handshakes."""
    key = Ed25519PublicKey.from_public_bytes(credentials.signers[machine])
    try:
        key.verify(signature, _statement(machine, digest, handshakes))
    except InvalidSignature:
        return False
    return True


def _statement(machine: int, digest: str, handshakes: Mapping[int, bytes]) -> bytes:
    return msgspec.msgpack.encode((_PURPOSE, machine, digest, sorted(handshakes.items())))
