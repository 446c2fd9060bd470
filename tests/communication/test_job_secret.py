"""One secret for all machines of a job."""

import hashlib
import hmac
import os

import pytest
import zmq
from zmq.utils import z85

from decentnode.communication.security import job_secret
from decentnode.communication.security.job_secret import derived, derived_credentials, read_secret
from decentnode.communication.security.signatures import is_vouched, vouch
from decentnode.errors import BadInput

SECRET = b"0123456789abcdef" * 4


def test_all_machines_derive_the_keys_of_all():
    keys = [derived_credentials(SECRET, machine, 3) for machine in range(3)]
    assert keys[0].public == keys[1].public == keys[2].public and len({*keys[0].public}) == 4
    # One more for a machine that has no index yet.
    assert keys[0].signers == keys[2].signers
    for machine, own in enumerate(keys):
        assert zmq.curve_public(own.own_keys.secret) == own.own_keys.public == own.public[machine]
        signature = vouch(own, "digest", {machine: b"handshake"})
        assert is_vouched(keys[0], machine, "digest", {machine: b"handshake"}, signature)
    # Those of the first machines do not depend on how many there are.
    assert derived_credentials(SECRET, 0, 2).public == keys[0].public[:3]
    assert {*derived_credentials(SECRET[1:], 0, 3).public}.isdisjoint(keys[0].public)


def test_keys_are_hkdf():
    """RFC 5869: extract, then one block of expand."""
    extracted = hmac.digest(b"decentnode job secret 1", SECRET, hashlib.sha256)
    block = hmac.digest(extracted, b"curve25519 of machine 1\x01", hashlib.sha256)
    assert derived(SECRET, "curve25519 of machine 1") == block
    assert derived_credentials(SECRET, 1, 2).own_keys.secret == z85.encode(block)


def test_a_secret_is_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o440)
    monkeypatch.setenv(job_secret.VARIABLE, os.fsdecode(b"\xff" * 40))
    assert read_secret(None) == b"\xff" * 40
    monkeypatch.setenv(job_secret.VARIABLE, SECRET.decode())
    assert read_secret(path) == read_secret(None) == SECRET


def test_what_is_no_secret_is_refused_in_a_line(tmp_path, monkeypatch):
    def line(path):
        with pytest.raises(BadInput) as error:
            read_secret(path)
        assert len(error.value.lines) == 1
        return str(error.value)

    monkeypatch.delenv(job_secret.VARIABLE, raising=False)
    assert line(None) == (
        "DECENTNODE_SECRET: is not set; set it to the same on all machines, such as $(openssl rand -hex 32)"
    )
    monkeypatch.setenv(job_secret.VARIABLE, "password")
    assert "must have 32 to 4096 characters, not 8; make one: openssl rand -hex 32" in line(None)
    assert line(tmp_path / "none").endswith(
        f"No such file or directory; make it: {job_secret.MAKE} > {tmp_path}/none"
    )
    assert "Is a directory" in line(tmp_path)
    path = tmp_path / "open"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    assert line(path) == f"{path}: everybody can read or write it; type: chmod 600 {path}"
