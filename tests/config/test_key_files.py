"""Key files: what `decentnode keys` writes, and what is refused before a start, each in one line.

`tests/corpus` has the other messages about them.
"""

import json
import os
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from typer.testing import CliRunner

from decentnode.cli import doctor
from decentnode.cli.app import app
from decentnode.communication.security import curve as security
from decentnode.communication.security import key_files as keys
from decentnode.config import loader as config
from decentnode.config.settings import KeyFolder
from decentnode.errors import BadInput
from decentnode.launcher import preflight

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = (ROOT / "configs" / "quickstart.yaml").read_text().replace("../", f"{ROOT}/")
NEAR = ["127.0.0.1", "127.0.0.2"]
FAR = ["127.0.0.1", "10.77.31.2"]


def mapping(addresses):
    listed = ", ".join(f"{{address: '{address}', nodes: {16 // len(addresses)}}}" for address in addresses)
    return f"mapping.machines=[{listed}]"


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(QUICKSTART)
    return path


@pytest.fixture
def folder(tmp_path):
    """The keys of three machines."""
    keys.make_keys(tmp_path / "keys", 3)
    return tmp_path / "keys"


def refusal(act, *arguments):
    with pytest.raises(BadInput) as caught:
        act(*arguments)
    (line,) = caught.value.lines
    assert "\n" not in line
    return line


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestFiles:
    def test_every_machine_finds_itself_on_the_list_of_all(self, folder):
        loaded = [keys.load_credentials(folder, machine, 3) for machine in range(3)]
        assert len({credentials.public for credentials in loaded}) == 1
        for machine, credentials in enumerate(loaded):
            pair = credentials.own_keys
            assert credentials.machine == machine
            assert credentials.public[machine] == pair.public == zmq.curve_public(pair.secret)

    def test_all_keys_differ(self, folder):
        machines = keys.load_manifest(folder, 3).machines
        assert len({key for machine in machines for key in (machine.curve, machine.ed25519)}) == 6

    def test_a_machine_needs_its_own_secret_alone(self, folder):
        for machine in (0, 2):
            keys.secret_file(folder, machine).unlink()
        assert keys.load_credentials(folder, 1, 3).machine == 1

    @pytest.mark.parametrize("mask", [0o000, 0o077])
    def test_secrets_are_for_their_owner_alone_whatever_the_mask(self, tmp_path, mask):
        before = os.umask(mask)
        try:
            manifest, *secrets = keys.make_keys(tmp_path / "a" / "keys", 2)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "a" / "keys").stat().st_mode) == 0o700
        assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600, 0o600]
        assert not stat.S_IMODE(manifest.stat().st_mode) & 0o022
        assert sorted(path.name for path in manifest.parent.iterdir()) == [
            "machine-0.secret", "machine-1.secret", "machines.json"
        ]  # fmt: skip

    def test_no_secret_is_shown(self, folder):
        loaded = keys.load_credentials(folder, 0, 3)
        assert loaded.own_keys.secret.decode() not in repr(loaded)

    def test_keys_are_replaced_only_when_asked_to(self, folder):
        before = keys.secret_file(folder, 2).read_bytes()
        assert "exists" in refusal(keys.make_keys, folder, 3)
        keys.secret_file(folder, 0).unlink()
        (folder / "machines.json").unlink()
        assert refusal(keys.make_keys, folder, 3).startswith(str(keys.secret_file(folder, 1)))
        assert keys.secret_file(folder, 2).read_bytes() == before
        keys.make_keys(folder, 3, overwrite=True)
        assert keys.secret_file(folder, 2).read_bytes() != before
        assert keys.load_credentials(folder, 2, 3).machine == 2

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        assert "cannot be written: Not a directory" in refusal(keys.make_keys, tmp_path / "file" / "keys", 2)


class TestRefusals:
    @pytest.mark.parametrize("name", ["machine-0.secret", "machines.json"])
    def test_a_stricter_mode_is_fine(self, folder, name):
        (folder / name).chmod(0o400)
        assert keys.load_credentials(folder, 0, 3).machine == 0

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    @pytest.mark.parametrize("name", ["machine-0.secret", "machines.json", "."])
    def test_what_belongs_to_another_user_is_refused(self, folder, name):
        os.chown(folder / name, 12345, -1)
        line = refusal(keys.load_credentials, folder, 0, 3)
        assert f"{folder / name}: belongs to user 12345, not to you; type: sudo chown" in line

    def test_a_missing_folder_is_named_with_the_command_that_makes_it(self, tmp_path):
        line = refusal(keys.load_credentials, tmp_path / "keys", 0, 3)
        assert (
            line == f"{tmp_path}/keys: No such file or directory; make the keys: decentnode keys CONFIG.yaml"
        )

    def test_a_pipe_is_not_waited_for(self, folder):
        secret = keys.secret_file(folder, 0)
        secret.unlink()
        os.mkfifo(secret, 0o600)
        assert "is no file" in refusal(keys.load_credentials, folder, 0, 3)

    @pytest.mark.parametrize("name", ["machine-0.secret", "machines.json"])
    @pytest.mark.parametrize(
        "content",
        [
            b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 5000, b'{"version": 2}', b'{"version": 1}',
            b" " * (1 << 21),
        ],
        ids=["empty", "torn", "list", "bytes", "null", "nested", "version", "bare", "huge"],
    )  # fmt: skip
    def test_broken_content_is_one_line(self, folder, name, content):
        (folder / name).write_bytes(content)
        line = refusal(keys.load_credentials, folder, 0, 3)
        assert line.startswith(f"{folder / name}: ") and "copy it again" in line

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"machine": -1}, "copy it again"),
            ({"curve": "~" * 40}, "curve is no key"),
            ({"curve": "é" * 40}, "curve is no key"),
        ],
    )
    def test_a_secret_that_is_none_is_refused(self, folder, changes, message):
        rewrite(keys.secret_file(folder, 0), **changes)
        line = refusal(keys.load_credentials, folder, 0, 3)
        assert message in line and str(keys.secret_file(folder, 0)) in line

    @pytest.mark.parametrize("field", ["curve", "ed25519"])
    def test_two_machines_with_one_key_are_refused(self, folder, field):
        listed = json.loads((folder / "machines.json").read_text())["machines"]
        listed[2][field] = listed[1][field]
        rewrite(folder / "machines.json", machines=listed)
        line = refusal(keys.load_credentials, folder, 0, 3)
        assert "machines[2] has the key of machines[1]" in line

    @pytest.mark.parametrize("key", ["#" * 40, "~" * 40, "é" * 40])
    def test_a_list_with_a_key_that_is_none_is_refused(self, folder, key):
        listed = json.loads((folder / "machines.json").read_text())["machines"]
        listed[1]["curve"] = key
        rewrite(folder / "machines.json", machines=listed)
        assert "machines[1].curve is no key" in refusal(keys.load_credentials, folder, 0, 3)


class TestPreflight:
    def load(self, experiment, *overrides):
        return config.load(experiment, overrides)

    @pytest.mark.parametrize(
        "overrides",
        [
            [],
            [mapping(NEAR)],
            [mapping(["10.77.31.1"])],
            ["communication.local=tcp"],
            [mapping(["::1", "localhost"])],
            [mapping(FAR), "security=none"],
        ],
        ids=["one machine", "loopback", "no ports", "local tcp", "names", "none"],
    )
    def test_keys_are_not_asked_for_where_nobody_else_comes(self, experiment, overrides):
        assert preflight.credentials(self.load(experiment, *overrides), 0) is None

    @pytest.mark.parametrize(
        "overrides",
        [[mapping(FAR)], [mapping(["10.77.31.1"]), "communication={name: zeromq, local: tcp}"]],
        ids=["two machines", "local tcp"],
    )
    def test_keys_are_asked_for_where_others_could_come(self, experiment, overrides):
        line = refusal(preflight.credentials, self.load(experiment, *overrides), 0)
        assert "run: decentnode keys CONFIG.yaml, set DECENTNODE_SECRET, or write security: none" in line

    def test_keys_beside_the_file_are_found(self, experiment, tmp_path):
        keys.make_keys(tmp_path / "keys", 2)
        settings = self.load(experiment, mapping(FAR))
        assert settings.security == KeyFolder(tmp_path / "keys")
        assert preflight.credentials(settings, 1).machine == 1
        assert self.load(experiment, mapping(NEAR)).security == "auto"
        assert self.load(experiment, mapping(FAR), "security=none").security == "none"

    def test_a_folder_can_be_named(self, experiment, tmp_path):
        keys.make_keys(tmp_path / "elsewhere", 2)
        text = experiment.read_text() + "\nsecurity: {keys: elsewhere}\n"
        experiment.write_text(text)
        settings = self.load(experiment, mapping(NEAR))
        assert settings.security == KeyFolder(tmp_path / "elsewhere")
        assert preflight.credentials(settings, 0).machine == 0

    def test_the_line_about_another_number_of_machines_has_a_command_that_helps(self, experiment, tmp_path):
        """Also in a job's log, where the shell that reads it is outside of the job."""
        keys.make_keys(tmp_path / "keys", 2)
        line = refusal(keys.load_credentials, tmp_path / "keys", 0, 3)
        command = line.partition("make new keys: decentnode ")[2].replace("CONFIG.yaml", str(experiment))
        result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert keys.load_credentials(tmp_path / "keys", 2, 3).machine == 2

    def test_the_saved_configuration_means_the_same(self, experiment, tmp_path):
        keys.make_keys(tmp_path / "keys", 2)
        settings = self.load(experiment, mapping(FAR))
        saved = tmp_path / "run" / "config.yaml"
        saved.parent.mkdir()
        saved.write_text(config.dump(settings))
        assert config.load(saved) == settings

    def test_machines_agree_on_the_keys_and_not_on_where_they_lie(self, experiment, tmp_path):
        keys.make_keys(tmp_path / "keys", 2)
        settings = self.load(experiment, mapping(FAR))
        moved = tmp_path / "moved"
        (tmp_path / "keys").rename(moved)
        elsewhere = replace(settings, security=KeyFolder(moved))
        here = config.digest(elsewhere, settings.graph.make())
        keys.secret_file(moved, 1).unlink()
        (moved / "machines.json").write_text(json.dumps(json.loads((moved / "machines.json").read_text())))
        assert config.digest(elsewhere, settings.graph.make()) == here
        keys.make_keys(moved, 2, overwrite=True)
        assert config.digest(elsewhere, settings.graph.make()) != here
        plain = [replace(settings, security=word) for word in ("auto", "none")]
        assert len({config.digest(unguarded, settings.graph.make()) for unguarded in plain} | {here}) == 2

    def test_an_old_library_is_refused(self, experiment, tmp_path, monkeypatch):
        keys.make_keys(tmp_path / "keys", 2)
        settings = self.load(experiment, mapping(FAR))
        monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
        assert security.OLDEST_LIBZMQ == (4, 3, 5)
        assert "cannot guard links; install pyzmq 26" in refusal(preflight.credentials, settings, 0)


class TestCommand:
    def test_it_says_which_file_goes_where(self, call, experiment, tmp_path):
        code, out, err = call("keys", str(experiment), mapping(FAR))
        assert (code, err) == (0, "")
        for line in ("machine-0.secret  for machine 0 (127.0.0.1) alone", "machine 1 (10.77.31.2) alone"):
            assert line in out
        assert preflight.credentials(config.load(experiment, [mapping(FAR)]), 1).machine == 1

    def test_it_overwrites_nothing_unless_forced(self, call, experiment):
        assert call("keys", str(experiment), mapping(FAR))[0] == 0
        code, out, err = call("keys", str(experiment), mapping(FAR))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert call("keys", str(experiment), mapping(FAR), "--force")[0] == 0

    @pytest.mark.parametrize("words", [["--out", "{}/other"], ["security={{keys: {}/other}}"]])
    def test_the_folder_can_be_named(self, call, experiment, tmp_path, words):
        assert call("keys", str(experiment), mapping(FAR), *(word.format(tmp_path) for word in words))[0] == 0
        assert keys.load_manifest(tmp_path / "other", 2).version == 1

    def test_the_doctor_knows_of_keys(self, experiment, tmp_path):
        def finding(*overrides):
            return str(doctor.experiment_keys(config.load(experiment, overrides), 1))

        assert finding().startswith("ok    keys           links over TCP are plain (only this")
        assert finding(mapping(FAR)).startswith("fail  keys           security: others on the network")
        assert "plain (security: none)" in finding(mapping(FAR), "security=none")
        keys.make_keys(tmp_path / "keys", 2)
        assert "those of machine 1, one of 2 that are let in" in finding(mapping(FAR))
        keys.secret_file(tmp_path / "keys", 1).chmod(0o644)
        assert finding(mapping(FAR)).startswith("fail") and "chmod 600" in finding(mapping(FAR))
