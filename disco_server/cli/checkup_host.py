"""Checks of ``disco doctor`` for what a cluster of several machines needs of this one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import disco_server
from disco_client.errors import AccessDenied, ConfigError, DiscoError
from disco_server.observe.findings import Finding, State, first_line

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from disco_client.transport.credentials import Credentials

__all__ = ["look_at_certificates", "look_at_clock", "look_at_host_name", "look_at_ports"]

PORTS: Final = {7600: "--listen", 7601: "--http"}
"""The ports that daemons take unless they are told another, and how to tell it."""

_ANSWER_S: Final = 1.0
_SOON: Final = timedelta(days=14)
_TIME_ERROR: Final = 5
_UNSYNCHRONISED: Final = 0x40
_TIMEX_BYTES: Final = 256
_MAX_ERROR_AT: Final = 24
_STATUS_AT: Final = 40


def look_at_ports() -> list[Finding]:
    """Whether the ports of the daemons are free on the loopback address, or who has them."""
    return [_look_at_port(port, flag) for port, flag in PORTS.items()]


def _look_at_port(port: int, flag: str) -> Finding:
    name = f"port {port}"
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                hint = "let the process bind sockets of the loopback interface"
                return Finding(name, State.BROKEN, f"cannot be bound: {error.strerror}", hint)
        else:
            return Finding(name, State.OK, "free", facts={"free": True})
    facts = {"free": False, "controller": _serves_disco(port)}
    if facts["controller"]:
        return Finding(name, State.OK, "a controller answers there", facts=facts)
    hint = f"nothing, if that is a daemon of yours; else choose another port with {flag}"
    return Finding(name, State.OK, "in use by another program", hint, facts)


def _serves_disco(port: int) -> bool:
    """Whether a controller answers at a port, if only that it lets nobody in."""
    try:
        from disco_client.transport.line import Line
        from disco_client.transport.watching import ask_for_sessions
    except ImportError:  # that is for the section of the libraries
        return False
    with contextlib.closing(Line(f"127.0.0.1:{port}")) as line:
        try:
            ask_for_sessions(line, _ANSWER_S)
        except AccessDenied:
            return True
        except DiscoError:
            return False
        return True


def look_at_host_name() -> Finding:
    """Whether this machine knows itself by its name, as MPI asks it to."""
    name, own = "host name", socket.gethostname()
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(own, None)})
    except OSError as error:
        hint = f"name it in /etc/hosts: 127.0.1.1 {own}"
        detail = f"{own} has no address ({error.strerror})"
        return Finding(name, State.MISSING, detail, hint, {"name": own, "addresses": []})
    facts = {"name": own, "addresses": found}
    return Finding(name, State.OK, f"{own} is {', '.join(found)}", facts=facts)


def look_at_clock() -> Finding:
    """Whether the clock is kept right, without which certificates are refused."""
    name = "clock"
    installed = Path(disco_server.__file__).stat().st_mtime
    now = datetime.now(UTC).isoformat(" ", "seconds")
    if time.time() < installed - _SOON.total_seconds():
        hint = "set it, and have it kept right: timedatectl set-ntp true"
        return Finding(name, State.BROKEN, f"{now} is before Disco was installed", hint)
    found = _ask_kernel()
    if found is None:
        return Finding(name, State.OK, f"{now}; the kernel does not say whether it is kept right")
    synchronised, error_s = found
    facts = {"synchronised": synchronised, "max_error_s": error_s}
    if synchronised:
        return Finding(name, State.OK, f"kept right within {error_s * 1e3:.0f} ms", facts=facts)
    hint = "unless somebody else keeps it right for this machine: timedatectl set-ntp true"
    return Finding(name, State.OK, f"{now}; not synchronised by this kernel", hint, facts)


def _ask_kernel() -> tuple[bool, float] | None:
    """Whether the clock is synchronised, and its greatest error in seconds."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder)
    error_us = int.from_bytes(buffer.raw[_MAX_ERROR_AT : _MAX_ERROR_AT + 8], sys.byteorder)
    return state != _TIME_ERROR and not status & _UNSYNCHRONISED, error_us / 1e6


def look_at_certificates(credentials: Credentials) -> list[Finding]:
    """Whether what commands show a controller is of use today.

    Args:
        credentials: As the options or the environment say.
    """
    if credentials.ca is None:
        detail = "none given (--tls-ca, DISCO_TLS_CA)"
        return [Finding("certificates", State.NOT_APPLICABLE, detail)]
    try:
        return _look_at_files(credentials.ca, credentials.cert)
    except (OSError, ValueError, ImportError) as error:
        hint = "disco certs init makes certificates"
        return [Finding("certificates", State.BROKEN, first_line(error), hint)]


def _look_at_files(ca: Path, cert: Path | None) -> list[Finding]:
    authorities = _load(ca)
    found = [_look_at_dates("authority", ca, each) for each in authorities]
    if cert is None:
        return found
    own = _load(cert)[0]
    finding = _look_at_dates("own certificate", cert, own)
    if finding.state is State.OK and not any(_signs(each, own) for each in authorities):
        detail = f"{cert} is not signed by {ca}"
        hint = "a controller with that authority refuses it; disco certs issue makes another"
        finding = Finding(finding.name, State.BROKEN, detail, hint)
    return [*found, finding]


def _load(path: Path) -> list[Certificate]:
    from cryptography import x509

    loaded = x509.load_pem_x509_certificates(path.read_bytes())
    if not loaded:
        raise ConfigError(f"expected a certificate in {path}, found none")
    return loaded


def _signs(authority: Certificate, cert: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        cert.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _look_at_dates(name: str, path: Path, cert: Certificate) -> Finding:
    now, begins, ends = datetime.now(UTC), cert.not_valid_before_utc, cert.not_valid_after_utc
    facts = {"file": str(path), "valid_from": begins.isoformat(), "valid_until": ends.isoformat()}
    again = "make another: disco certs issue, or whoever made this one"
    if now > ends:
        return Finding(name, State.BROKEN, f"{path} was valid until {ends:%Y-%m-%d}", again, facts)
    if now < begins:
        hint = "see whether the clock of this machine is right"
        detail = f"{path} is valid from {begins:%Y-%m-%d %H:%M} on"
        return Finding(name, State.BROKEN, detail, hint, facts)
    hint = again if ends - now < _SOON else ""
    return Finding(name, State.OK, f"{path} is valid until {ends:%Y-%m-%d}", hint, facts)
