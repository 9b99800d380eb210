"""What a program shows a controller, from arguments, environment and files."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_client.transport.credentials import Credentials, is_local, state_of
from fault_tools.certificates import Pki

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki.make(tmp_path_factory.mktemp("pki"))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:7600", True),
        ("127.3.2.1:7600", True),
        ("[::1]:7600", True),
        ("localhost:7600", True),
        ("unix:/run/controller", True),
        ("0.0.0.0:7600", False),
        ("[::]:7600", False),
        ("10.0.0.1:7600", False),
        ("localhost.example.org:7600", False),
        ("node-1", False),
    ],
)
def test_only_loopback_and_unix_sockets_are_local(address, local):
    """A name is local only where it is localhost itself."""
    assert is_local(address) is local


def test_arguments_come_before_the_environment(pki):
    """Each of the files alone; a token given in one form hides both forms of the other."""
    environ = {**pki.variables("admin"), "DISCO_TOKEN": TOKEN}
    read = Credentials.read(**{**pki.files("client"), "tls_ca": None}, environ=environ)
    assert (read.ca, read.cert, read.key) == tuple(pki.files("client").values())
    assert read.bearer() == (("authorization", f"Bearer {TOKEN}"),)
    given = Credentials.read(token=TOKEN, environ={"DISCO_TOKEN_FILE": "/nowhere"})
    assert given.token_file is None


def test_nothing_given_is_no_tls_and_no_token():
    """As before there were any."""
    nothing = Credentials.read(environ={})
    assert not nothing.encrypts
    assert nothing.secrets() is None
    assert nothing.bearer() == ()
    nothing.check_address("203.0.113.7:7600")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tls_cert": "a.pem"}, "tls_key .DISCO_TLS_KEY. is missing"),
        ({"tls_key": "a.key"}, "tls_cert .DISCO_TLS_CERT. is missing"),
        ({"tls_cert": "a.pem", "tls_key": "a.key"}, "expected tls_ca"),
        ({"tls_ca": "/nowhere/ca.pem"}, "tls_ca: /nowhere/ca.pem cannot be read: No such"),
        ({"tls_ca": __file__}, "expected a PEM file"),
        ({"tls_ca": 7}, "tls_ca: expected the path of a file, got int"),
        ({"tls_ca": "~nobody-at-all/ca.pem"}, "tls_ca: '~nobody-at-all/ca.pem': Could not"),
        ({"token": TOKEN, "token_file": "a"}, "got both"),
        ({"token": "two words of it"}, "without spaces"),
        ({"token": 7}, "expected a text, got int"),
        ({"token_file": "/nowhere/token"}, "/nowhere/token cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused(given, told):
    """Before anything is dialled; a token is never repeated."""
    with pytest.raises(ConfigError, match=told) as refused:
        Credentials.read(**given, environ={})
    assert TOKEN not in str(refused.value)
    assert "two words" not in str(refused.value)


def test_a_key_of_another_certificate_is_refused(pki):
    """Where gRPC would only break each connection."""
    files = {**pki.files("client"), "tls_key": pki.files("admin")["tls_key"]}
    with pytest.raises(ConfigError, match="expected a certificate and its key"):
        Credentials.read(**files, environ={})


@pytest.mark.parametrize(
    ("content", "role", "found"),
    [
        (f"{TOKEN}\n", "client", TOKEN),
        (f"# mine\n\nclient alice {TOKEN}\n", "client", TOKEN),
        (f"client a {'x' * 20}\nworker pool {TOKEN}\n", "worker", TOKEN),
    ],
)
def test_a_token_file_holds_it_alone_or_in_lines_with_roles(tmp_path, content, role, found):
    """So the file of a controller serves on a test cluster as well."""
    file = tmp_path / "token"
    file.write_text(content)
    assert Credentials(token_file=file, role=role).bearer()[0][1] == f"Bearer {found}"


@pytest.mark.parametrize("content", ["", "# none\n", f"client a {TOKEN}\nclient b {TOKEN}x\n"])
def test_a_file_without_a_token_of_the_role_is_refused(tmp_path, content):
    """With the path, and without what is in it."""
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(ConfigError, match="expected a token") as refused:
        Credentials(token_file=file, role="worker").check()
    assert TOKEN not in str(refused.value)


def test_a_token_leaves_this_machine_encrypted_or_not_at_all(pki):
    """Loopback needs no TLS; any other address does."""
    plain = Credentials(token=TOKEN)
    plain.check_address("127.0.0.1:7600")
    Credentials(token=TOKEN, ca=pki.ca).check_address("10.0.0.1:7600")
    with pytest.raises(ConfigError, match="over TLS or on this machine only"):
        plain.check_address("10.0.0.1:7600")
    assert TOKEN not in repr(plain)


def test_the_state_changes_with_the_files(tmp_path):
    """A file that is replaced counts, also by one of the same size."""
    file = tmp_path / "file"
    none = state_of(file)
    file.write_text("a")
    first = state_of(file, None)
    (tmp_path / "new").write_text("b")
    (tmp_path / "new").replace(file)
    assert len({none, first, state_of(file, None)}) == 3
