"""Builds the image and runs a cluster of its containers: what `make image-test` does.

The base is put together here from Debian's packages, because images may not be had; everything
after it is deploy/Dockerfile and deploy/compose.yaml as they are. All that is made (images,
containers, networks, volumes) has this run's name and goes at the end, however that comes.

Exit codes: 0, or 1 where something is wrong, or 3 where this machine cannot run it. With
--packages it only names those of Debian that it needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "deploy" / "compose.yaml"
DRAIN = ROOT / "deploy" / "helm" / "disco" / "files" / "drain.py"
BASE_TAR = ROOT / "build" / "image-test" / "base.tar"
TOOLS = ("buildah", "podman", "runc", "mmdebstrap")
PACKAGES = (
    *TOOLS,
    "catatonit",
    "containernetworking-plugins",
    "golang-github-containernetworking-plugin-dnsname",
)
INSTALL = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
CANNOT = 3
PATIENCE_S = 120
# With limits that a container may have where this program may not raise its own.
CONTAINERS = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=10000:10000"]
[engine]
runtime = "runc"
"""


class Failed(Exception):
    """Something did not go as it should; the text says what."""


class Cannot(Exception):
    """This machine cannot run it; the text says why."""


def main() -> int:
    """Runs it all, and returns the exit code."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all goes then too
    try:
        check_tools()
        with tempfile.TemporaryDirectory() as folder:
            (config := Path(folder, "containers.conf")).write_text(CONTAINERS)
            os.environ["CONTAINERS_CONF"] = str(config)
            test(f"disco-test-{os.getpid()}")
    except Cannot as error:
        print(f"image-test: not run: {error}")
        return CANNOT
    except Failed as error:
        print(f"image-test: FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        print("image-test: broken off")
        return 130
    print(f"image-test: passed in {time.monotonic() - started:.0f} s")
    return 0


def check_tools() -> None:
    """Looks whether what is needed is there.

    Raises:
        Cannot: It is not; the text has what to type.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise Cannot(f"{', '.join(missing)} not found; {INSTALL}")
    if os.geteuid() != 0:
        raise Cannot("the base is put together by root alone")


def test(name: str) -> None:
    """Builds, runs and looks."""
    with images(name) as image, running(name, image) as compose:
        client = (*compose, "--profile", "client", "run", "--rm", "-T", "client")
        nodes = await_nodes(client)
        print(f"image-test: {nodes} nodes are there, over TLS and with a token")
        sentences = (ROOT / "examples" / "sentences.txt").read_text(encoding="utf-8")
        program = ("python3", "/opt/examples/embed.py", "--workers", "4", "--check")
        said = run(*client, *program, text=sentences)
        expect("check         passed" in said, "the embeddings are those of one process", said)
        ask_model(compose)
        refused = run(
            *client, "env", "DISCO_TOKEN_FILE=", "DISCO_TOKEN=a-wrong-one-of-16", *STATUS, status=4
        )
        expect("does not know the token" in refused, "a wrong token is refused", refused)
        for each in containers(name, "controller", "worker"):
            look_at(each)
        (controller,) = containers(name, "controller")
        program = ("python3", "-c", DRAIN.read_text(), "30", "https://localhost:7601")
        run("podman", "exec", controller, *program)
        print("image-test: the controller drains as its pod would, by HTTPS")
        for each in (*containers(name, "worker"), *containers(name, "controller")):
            run("podman", "stop", "--time", "45", each)
            (state,) = json.loads(run("podman", "inspect", each))
            expect(state["State"]["ExitCode"] == 0, f"{each} ends well when it is told to")


STATUS = ("disco", "status", "--json")
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}


def ask_model(compose: tuple[str, ...]) -> None:
    """Starts the service on the cluster's workers, asks it a question, and ends it."""
    run(*compose, "--profile", "serve", "up", "--detach", "--no-build", "serve")
    url = f"http://127.0.0.1:{os.environ['DISCO_SERVE_PORT']}"
    body = json.dumps({**QUESTION, "temperature": 0, "max_tokens": 16}).encode()
    asking = urllib.request.Request(  # noqa: S310  (of this machine)
        f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(asking, timeout=PATIENCE_S) as answer:  # noqa: S310
                said = json.load(answer)["choices"][0]["message"]["content"]
            break
        except OSError as error:  # it is not there yet, or waits for workers
            if time.monotonic() > end:
                raise Failed(f"the service answers after {PATIENCE_S} s: no\n{error}") from error
            time.sleep(0.5)  # it says on its own output alone that it is ready
    expect("Paris" in said, "the language model on 4 workers answers over HTTP", said)
    (serve,) = containers(compose[2], "serve")
    look_at(serve)
    run("podman", "stop", "--time", "45", serve)
    (state,) = json.loads(run("podman", "inspect", serve))
    expect(state["State"]["ExitCode"] == 0, f"{serve} ends well when it is told to")


def await_nodes(client: tuple[str, ...]) -> int:
    """Waits until both workers have registered; returns how many there are."""
    end = time.monotonic() + PATIENCE_S
    while True:
        said = run(*client, *STATUS, status=None)
        with contextlib.suppress(ValueError, KeyError):
            found = len(json.loads(said[said.index("{") :])["nodes"])
            if found == 2:  # noqa: PLR2004  (as many as the file says)
                return found
        if time.monotonic() > end:
            raise Failed(f"two nodes are there after {PATIENCE_S} s: no\n{said}")
        time.sleep(1)  # each look starts a container


def look_at(container: str) -> None:
    """A daemon's container is healthy, nobody's, and cannot write to its image."""
    end = time.monotonic() + PATIENCE_S
    # By hand, since podman leaves the clock to systemd, which need not be there.
    while said := run("podman", "healthcheck", "run", container, status=None).strip():
        if time.monotonic() > end:
            raise Failed(f"{container} is healthy after {PATIENCE_S} s: no\n{said}")
        time.sleep(1)
    who = run("podman", "exec", container, "id", "-u").strip()
    expect(who == "65532", f"{container} is healthy, and runs as 65532", who)
    said = run("podman", "exec", container, "touch", "/opt/disco/new", status=1)
    expect("Read-only" in said, f"{container} cannot write to its image", said)


def expect(truth: bool, what: str, said: str = "") -> None:
    """Says that something is so, or fails."""
    if not truth:
        raise Failed(f"{what}: no\n{said}")
    print(f"image-test: {what}")


def run(*command: str, text: str | None = None, status: int | None = 0) -> str:
    """Runs a command and returns what it says; it ends with a status, or None for any."""
    done = subprocess.run(
        command,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if status is not None and done.returncode != status:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def containers(name: str, *services: str) -> list[str]:
    """The containers of some services."""
    found = run("podman", "ps", "--all", "--format", "{{.Names}}").split()
    return [each for each in found for service in services if each.startswith(f"{name}_{service}_")]


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def images(name: str) -> Generator[str]:
    """The image with the example, built from a base that is made here."""
    base, image = f"localhost/{name}-base", f"localhost/{name}"
    try:
        try:
            make_base(base, name)
        except Failed as error:
            raise Cannot(f"no container runs here:\n{error}") from None
        print("image-test: deploy/Dockerfile, about a minute")
        command = ["buildah", "bud", "--isolation", "chroot", "--file", "deploy/Dockerfile"]
        command += ["--target", "example", "--tag", image, "--build-arg", f"BASE_IMAGE={base}"]
        if AUTHORITIES.exists():  # pip trusts whom this machine trusts
            command += ["--volume", f"{AUTHORITIES}:/run/ca.crt:ro"]
            command += ["--build-arg", "PIP_CERT=/run/ca.crt"]
        if index := os.environ.get("PIP_INDEX_URL"):
            command += ["--build-arg", f"PIP_INDEX_URL={index}"]
        run(*command, ".")
        yield image
    finally:
        for each in (image, base):
            run("podman", "rmi", "--force", each, status=None)


def make_base(base: str, name: str) -> None:
    """Puts an image together from Debian's packages, and runs it."""
    if not BASE_TAR.exists():
        BASE_TAR.parent.mkdir(parents=True, exist_ok=True)
        part = BASE_TAR.with_name(f"{name}.tar")
        print("image-test: a base of Debian's packages, about a minute")
        include = "--include=python3,python3-venv,ca-certificates"
        run("mmdebstrap", "--quiet", "--variant=minbase", include, "bookworm", str(part))
        part.replace(BASE_TAR)
    run("podman", "import", str(BASE_TAR), base)
    run("podman", "run", "--rm", base, "true")


@contextlib.contextmanager
def running(name: str, image: str) -> Generator[tuple[str, ...]]:
    """The cluster of the compose file; gives the command that speaks with it."""
    program = str(Path(sys.executable).with_name("podman-compose"))
    compose = (program, "--project-name", name, "--file", str(COMPOSE))
    published = ("DISCO_PORT", "DISCO_HTTP_PORT", "DISCO_SERVE_PORT")
    ports = {name: str(free_port()) for name in published}
    os.environ |= {"DISCO_IMAGE": image, **ports}
    try:
        run(*compose, "up", "--detach", "--no-build")
        yield compose
    except Failed:
        for each in containers(name, "setup", "controller", "worker", "serve"):
            print(f"--- {each}\n{run('podman', 'logs', '--tail', '20', each, status=None)}")
        raise
    finally:
        run(
            *compose,
            "--profile",
            "client",
            "--profile",
            "serve",
            "down",
            "--volumes",
            "--timeout",
            "5",
            status=None,
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["--packages"]:
        print(" ".join(PACKAGES))
    else:
        sys.exit(main())
