"""Servers of objects that tests start as processes of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_ports import own_port

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "not-to-be-seen",
    "AWS_REGION": "us-east-1",
}
_NUMBERS = itertools.count()


def need(*packages: str) -> None:
    """Skips a test where one of some packages is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed here; the group `test` has it")


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Runs moto's S3 server; gives its address once it answers."""
    need("obstore", "moto", "flask", "flask_cors")
    address = f"127.0.0.1:{own_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address[10:]]
    env = {**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": f"http://{address}"}
    with (
        (folder / "s3-server.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=env) as server,
    ):
        try:
            yield address
        finally:
            server.kill()


def answers(address: str) -> bool:
    """Whether a server at an address answers requests."""
    with contextlib.suppress(urllib.error.URLError, OSError):
        urllib.request.urlopen(f"http://{address}/moto-api/", timeout=5).close()
        return True
    return False


def make_bucket(address: str) -> str:
    """Makes a bucket that no other test uses; returns its name."""
    name = f"bucket-{os.getpid()}-{next(_NUMBERS)}"
    request = urllib.request.Request(f"http://{address}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    return name


def copy_file(file: Path, url: str, *, public: bool = False) -> None:
    """Copies a file into a bucket, as other programs do.

    Args:
        file: The file.
        url: The object that it becomes.
        public: Whether everybody may read it, as from a web server.
    """
    import obstore

    bucket, _, key = url.removeprefix("s3://").partition("/")
    headers = {"x-amz-acl": "public-read"} if public else {}
    options = {"allow_http": True, "default_headers": headers}
    obstore.put(obstore.store.S3Store(bucket, client_options=options), key, file.read_bytes())
