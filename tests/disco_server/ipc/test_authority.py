"""What an authority signs, as a verifier sees it."""

from __future__ import annotations

import ssl

import pytest

from disco_client.errors import ConfigError
from disco_server.ipc.authority import Authority, write_private
from fault_tools.certificates import Pki


def handshake(server, client, hostname):
    """Lets two ends speak TLS in memory; raises what either of them refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=hostname)
    for _ in range(10):
        for end in (other, one):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return one.getpeercert()


def contexts(pki, server="controller", client="client"):
    ends = []
    for purpose, name in (
        (ssl.Purpose.CLIENT_AUTH, server),
        (ssl.Purpose.SERVER_AUTH, client),
    ):
        files = pki.files(name)
        context = ssl.create_default_context(purpose, cafile=files["tls_ca"])
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(files["tls_cert"], files["tls_key"])
        ends.append(context)
    ends[0].verify_mode = ssl.CERT_REQUIRED
    return ends


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki.make(tmp_path_factory.mktemp("pki"), ("localhost", "127.0.0.1", "::1"))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_both_ends_accept_each_other_strictly(pki, host):
    """By all rules of X.509, under each name and address of the server."""
    seen = handshake(*contexts(pki), host)
    assert ("URI", "disco://client") in seen["subjectAltName"]


def test_a_client_s_certificate_serves_nobody(pki):
    """It may not be shown as a server's, by which it could take a daemon's place."""
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*contexts(pki, server="client"), "localhost")


def test_an_authority_is_read_as_it_was_written(tmp_path):
    """What it signs then is accepted with what it signed before."""
    pki = Pki.make(tmp_path)
    again = Authority.load(tmp_path / "ca.pem", tmp_path / "ca.key")
    again.issue("client/late").write(tmp_path, "late")
    handshake(*contexts(pki, client="late"), "localhost")


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\n"])
def test_files_that_are_no_authority_are_refused(tmp_path, content):
    """Missing, empty or cut off."""
    Pki.make(tmp_path)
    key = tmp_path / "ca.key"
    key.unlink() if content is None else key.write_bytes(content)
    with pytest.raises(ConfigError, match=r"ca\.key"):
        Authority.load(tmp_path / "ca.pem", key)


def test_no_secret_is_in_a_repr(tmp_path):
    """Neither of the authority nor of what it issues."""
    authority = Authority.create()
    assert "BEGIN" not in repr(authority) + repr(authority.pem()) + repr(authority.issue("a"))


def test_a_private_file_is_private_from_its_first_byte(tmp_path):
    """Also where one that others could read was in its place."""
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["key"]
