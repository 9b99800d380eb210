"""``disco certs``: what it makes, and what it does not overwrite."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from cryptography import x509

from disco_server.cli.certs import certs

SAN = x509.SubjectAlternativeName


def run(*arguments):
    return CliRunner().invoke(certs, [str(each) for each in arguments])


def names(path):
    """Hosts, addresses and URIs of a certificate."""
    cert = x509.load_pem_x509_certificate(path.read_bytes())
    return [str(name.value) for name in cert.extensions.get_extension_for_class(SAN).value]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("certs") / "pki"
    done = run("init", made, "--host", "10.0.0.1", "--host", "head.example.org", "--days", "2")
    assert done.exit_code == 0, done.output
    made.with_name("said").write_text(done.output)
    return made


def test_it_makes_an_authority_and_one_certificate_for_each_role(folder):
    """All of them files that nobody else can read."""
    stems = {"ca", "controller", "worker", "client", "observer", "admin"}
    files = {file.name for file in folder.iterdir()}
    assert files == {f"{stem}.{kind}" for stem in stems for kind in ("pem", "key")}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_daemons_have_the_names_of_their_hosts_and_all_have_a_role(folder):
    """Localhost is among them; who does not serve has none."""
    for role in ("controller", "worker"):
        assert {"localhost", "127.0.0.1", "10.0.0.1", "head.example.org"} <= set(
            names(folder / f"{role}.pem")
        )
    assert names(folder / "client.pem") == ["disco://client"]


def test_they_are_valid_as_long_as_was_said(folder):
    """Two days, and some minutes before now for clocks that differ."""
    for stem in ("ca", "client"):
        cert = x509.load_pem_x509_certificate((folder / f"{stem}.pem").read_bytes())
        assert (cert.not_valid_after_utc - cert.not_valid_before_utc).total_seconds() / 86400 >= 2
        assert (cert.not_valid_after_utc - cert.not_valid_before_utc).days == 2


def test_it_says_what_to_type_next(folder):
    """With the paths of the files and the first of the hosts."""
    said = folder.with_name("said").read_text()
    for part in (
        "disco-controller --listen 10.0.0.1:7600 --require-client-cert",
        "disco-worker --controller 10.0.0.1:7600 --tls-ca",
        f'tls_ca="{folder}/ca.pem"',
        "Keep ca.key away",
    ):
        assert part in said


def test_it_overwrites_nothing(folder):
    """A cluster that runs would lose its authority."""
    before = (folder / "ca.key").read_bytes()
    done = run("init", folder)
    assert done.exit_code == 2
    assert "holds files" in done.output
    assert (folder / "ca.key").read_bytes() == before


def test_one_more_certificate_is_of_the_same_authority(folder):
    """For a person, or for a node with the names of its machine."""
    assert run("issue", folder, "client", "alice").exit_code == 0
    assert names(folder / "client-alice.pem") == ["disco://client/alice"]
    assert run("issue", folder, "worker", "node-1", "--host", "10.0.0.2").exit_code == 0
    assert {"disco://worker/node-1", "10.0.0.2"} <= set(names(folder / "worker-node-1.pem"))
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    made = x509.load_pem_x509_certificate((folder / "client-alice.pem").read_bytes())
    made.verify_directly_issued_by(ca)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("issue", "FOLDER", "client", "two words"), "NAME"),
        (("issue", "EMPTY", "client", "alice"), "cannot be read"),
        (("init", "EMPTY", "--host", "\u00e4.example.org"), "--host"),
        (("init", "EMPTY/file/x"), "cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(folder, tmp_path, arguments, told):
    """With the exit code 2."""
    (tmp_path / "file").write_text("")
    words = [a.replace("FOLDER", str(folder)).replace("EMPTY", str(tmp_path)) for a in arguments]
    if arguments[0] == "init" and words[1] == str(tmp_path):
        (tmp_path / "file").unlink()
    done = run(*words)
    assert done.exit_code == 2
    assert told in done.output
    assert len(done.output.splitlines()) == 1
