"""Why a reachable controller refuses a connection: a probe with the standard library.

gRPC reports most refusals only as a broken connection, and keeps retrying. A second
handshake tells a wrong certificate from a controller that is not running.
"""

from __future__ import annotations

import socket

from disco_client.transport.credentials import Credentials

__all__ = ["dial", "host_of", "why_refused"]


_LOOK_S = 2.0

_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The first bytes of a client: the preface, and settings that change nothing."""


def why_refused(address: str, credentials: Credentials) -> str | None:
    """Says why this program and the server at an address refuse each other.

    Takes some seconds at most, plus the time to find the host's address.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        credentials: The credentials that were used.

    Returns:
        What is wrong and what to do, as far as it can be known; None if no server
        listens there, or nothing is wrong with the start of the connection.
    """
    try:
        raw = dial(address)
    except (OSError, ValueError):  # no server, or no address
        return None
    with raw:
        if credentials.encrypts:
            return _try_tls(raw, host_of(address), credentials)
        return _try_in_clear(raw, address)


def host_of(address: str) -> str:
    """The host of an address, without its port."""
    # gRPC asks for this name where there is none.
    return "localhost" if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")


def dial(address: str) -> socket.socket:
    """Connects to an address, over TCP or a Unix socket.

    Raises:
        OSError: Nobody listens there, or it cannot be reached in time.
    """
    if not address.startswith("unix:"):
        port = int(address.rpartition(":")[2])
        return socket.create_connection((host_of(address), port), _LOOK_S)
    raw = socket.socket(socket.AF_UNIX)
    try:
        raw.settimeout(_LOOK_S)
        raw.connect(address.removeprefix("unix:"))
    except OSError:
        raw.close()
        raise
    return raw


def _try_tls(raw: socket.socket, host: str, credentials: Credentials) -> str | None:
    import ssl  # needed only with TLS

    context = ssl.create_default_context(cafile=credentials.ca)
    context.set_alpn_protocols(["h2"])
    if credentials.cert is not None:
        context.load_cert_chain(credentials.cert, credentials.key)
    try:
        with context.wrap_socket(raw, server_hostname=host) as secured:
            secured.sendall(_HTTP2_HELLO)
            came = secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate was refused: {error.verify_message}; expected one that names"
            f" {host!r}, has not expired, and is signed by the authority in {credentials.ca}"
            " (tls_ca, DISCO_TLS_CA)"
        )
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return (
                "it does not speak TLS; start it with --tls-cert and --tls-key, or leave out"
                " tls_ca (DISCO_TLS_CA)"
            )
        if "ALERT" in (error.reason or ""):
            return _refused_by_peer(credentials)
        return f"TLS failed: {error.reason or error}"
    except TimeoutError:
        return None
    except OSError:  # it closes connections that it refuses
        return _refused_by_peer(credentials)
    # A server that accepts a client sends its settings; one that refuses it sends nothing.
    return None if came else _refused_by_peer(credentials)


def _refused_by_peer(credentials: Credentials) -> str:
    if credentials.cert is None:
        return (
            "it closes the connection after the handshake: it wants a client certificate, and"
            " none was given (tls_cert and tls_key, DISCO_TLS_CERT and DISCO_TLS_KEY)"
        )
    return (
        f"it refuses the client certificate {credentials.cert}: expected one that has not expired"
        " and is signed by an authority that the controller trusts (its --tls-ca)"
    )


def _try_in_clear(raw: socket.socket, address: str) -> str | None:
    """Says, of a server that closes the connection at once, whether it expects TLS."""
    import ssl

    try:
        raw.sendall(_HTTP2_HELLO)
        if raw.recv(1)[:1] not in (b"", b"\x15"):  # the latter begins an alert of TLS
            return None
    except TimeoutError:
        return None
    except OSError:
        pass
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        # The server is not verified and nothing is sent: this only finds out whether it speaks TLS.
        with dial(address) as another, context.wrap_socket(another):
            pass
    except OSError:
        return None
    return (
        "it speaks TLS, and this program does not; give tls_ca (DISCO_TLS_CA): the certificate of"
        " the authority that signed the controller's"
    )
