"""Servers of objects that tests start as processes of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
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
def s3_server(folder: Path, **env: str) -> Iterator[str]:
    """Runs moto's S3 server, which may not answer yet; gives its address."""
    need("obstore", "moto", "flask", "flask_cors")
    address = f"127.0.0.1:{own_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address[10:]]
    variables = {**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": f"http://{address}", **env}
    with (
        (folder / "s3-server.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=variables) as server,
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


def ask_for_credentials(address: str) -> dict[str, str]:
    """Makes a user of S3, whose credentials a server checks from now on; returns them.

    Args:
        address: Of a server with ``INITIAL_NO_AUTH_ACTION_COUNT=inf``; its buckets are made before.
    """

    def post(path: str, body: str, **headers: str) -> str:
        url = f"http://{address}{path}"
        request = urllib.request.Request(url, body.encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())

    def manage(action: str, **fields: str) -> str:
        scope = "Credential=any/20260101/us-east-1/iam/aws4_request"
        signed = f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=none"
        asked = {"Action": action, "UserName": "trainer", "Version": "2010-05-08", **fields}
        return post("/", urllib.parse.urlencode(asked), Authorization=signed)

    manage("CreateUser")
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    manage("PutUserPolicy", PolicyName="all", PolicyDocument=policy)
    made = manage("CreateAccessKey")
    post("/moto-api/reset-auth", "0", **{"Content-Type": "text/plain"})
    found = {tag: made.partition(f"<{tag}>")[2].partition("<")[0] for tag in _KEY}
    return {_KEY[tag]: value for tag, value in found.items()}


_KEY = {"AccessKeyId": "AWS_ACCESS_KEY_ID", "SecretAccessKey": "AWS_SECRET_ACCESS_KEY"}


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
