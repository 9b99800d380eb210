"""The language model's service while the pods of its workers are replaced, one after another."""

from __future__ import annotations

import asyncio
import functools
import os
import signal

import openai
import psutil
import pytest
from llm_serving import ALLOWED, Server
from tiny_llama import write_gguf

from deploying.charts import CHART, containers, render, values_of
from deploying.pods import pods
from fault_tools.certificates import Pki
from fault_tools.namespaces import NoNamespaces, network

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(300)]

CONTROLLER = "disco-controller"
ASKED = {"model": "tiny", "prompt": "x", "temperature": 0}
CLIENTS = 4
WORKERS = 2


@pytest.fixture
def joined():
    """A network for the pods, and hosts on it for the controller, the service and who asks."""
    try:
        with network(os.getpid() % 100_000) as made:
            yield made
    except NoNamespaces as error:
        pytest.skip(str(error))


@pytest.fixture
def started(joined, daemons):  # which ends after them, as it waits for what ran in them
    """Starts pods; all of them end with the test."""
    with pods(joined) as made:
        yield made


@pytest.fixture(scope="module")
def container():
    """That of a worker's pod, as the chart has it."""
    (found,) = (c for c in containers(render(values_of("serve"))) if c["name"] == "worker")
    return found


@pytest.fixture(scope="module")
def domain(container):
    """That of the workers' names, by which clients bring arrays to them."""
    (value,) = (e["value"] for e in container["env"] if e["name"] == "DISCO_ARRAY_LISTEN")
    name, _, rest = value.partition(".")
    assert name == "$(POD_NAME)"
    return rest.removesuffix(":7602")


class Rolling:
    """Workers' pods that are replaced as a StatefulSet does it.

    Args:
        started: Starts pods.
        begin: Starts the daemon of a pod.
        names: Of the pods, in the order in which they are replaced.
    """

    def __init__(self, started, begin, names):
        self._started, self._begin = started, begin
        self.running = {name: begin(name) for name in names}

    def update(self, hook):
        """Each is drained, told to end, and made anew before the next one's turn."""
        for name, (pod, entered) in list(self.running.items()):
            pod.run(*hook, seconds=100)
            (daemon,) = psutil.Process(entered.process.pid).children()
            assert entered.ranks() == [daemon]  # so that no rank is ended by force
            daemon.send_signal(signal.SIGTERM)
            assert entered.wait() == 0
            self._started.end(pod)
            self.running[name] = self._begin(name)

    @property
    def addresses(self):
        """Those of the pods of this moment."""
        return {pod.host.address for pod, _ in self.running.values()}


@pytest.fixture
def pki(joined, domain, tmp_path):
    """Everybody shows a certificate; workers' have the names of their pods."""
    return Pki.make(tmp_path / "pki", (CONTROLLER, f"*.{domain}"))


@pytest.fixture
def rolling(started, joined, daemons, domain, pki):
    """Starts a controller, and so many pods of workers with so many slots each."""

    def start(count, slots):
        daemons.prefix = [*joined.join(CONTROLLER).within]
        secured = ("--require-client-cert", *pki.flags("controller"))
        daemons.controller("--listen", "0.0.0.0:7600", *secured)

        def begin(name):
            pod = started.start(name, domain)
            daemons.prefix = [*pod.within]
            options = ("--slots", slots, "--name", name, "--http", "0.0.0.0:7601", *ALLOWED)
            secured = ("--require-client-cert", *pki.flags("worker"))
            arrays = {"DISCO_ARRAY_LISTEN": f"{name}.{domain}:7602"}
            return pod, daemons.worker(f"{CONTROLLER}:7600", *options, *secured, **arrays)

        return Rolling(started, begin, [f"disco-worker-{at}" for at in reversed(range(count))])

    return start


async def ask_until(done, client, answers):
    """Asks one thing after another, long answers as streams; none is tried again."""
    while not done.is_set():
        short = await client.completions.create(**ASKED, max_tokens=5)
        answers.append((5, short.choices[0].text))
        chunks = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(**ASKED, max_tokens=60, stream=True)
        ]
        answers.append((60, "".join(chunks)))


async def ask_during(update, url):
    """Asks all the time while the pods are replaced.

    Returns:
        The answers as they were before, by their length; and those of that time.
    """
    answers: list[tuple[int, str]] = []
    async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
        expected = {
            tokens: (await client.completions.create(**ASKED, max_tokens=tokens)).choices[0].text
            for tokens in (5, 60)
        }
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(ask_until(done, client, answers))
            try:
                await asyncio.to_thread(update)
            finally:
                done.set()
    return expected, answers


@pytest.fixture
def serve(joined, pki, tmp_path, eventually):
    """Starts the service of a small model; it ends with the test."""
    served: list[Server] = []

    def start():
        host = joined.join("disco-serve")
        model = write_gguf(tmp_path / "tiny.gguf", layers=4)
        options = ("--workers", WORKERS, "--model", model, "--host", host.address)
        where = {"within": host.within, "environ": pki.variables("client")}
        address = f"{CONTROLLER}:7600"
        served.append(Server(tmp_path / "server", eventually, address, *options, **where))
        return served[-1].await_ready()

    yield start
    for each in served:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize(
    ("count", "slots", "moves"), [(3, 2, 3), (4, 1, 2)], ids=["within-a-pod", "across-pods"]
)
def test_no_request_fails_while_all_pods_are_replaced(
    rolling, serve, container, joined, count, slots, moves
):
    """Every answer is whole and right, and no worker is lost on the way.

    Each new pod has the name of the former, and another address. The workers of the service fill
    the pods in the order in which these are replaced, so it has to move.
    """
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (CHART / "files" / "drain.py").read_text() in hook
    nodes = rolling(count, slots)
    first = nodes.addresses
    server = serve()
    with joined.join("asking").entered():
        update = functools.partial(nodes.update, hook)
        expected, answers = asyncio.run(ask_during(update, f"{server.url}/v1"))
        assert server.metric("recoveries_total") == 0
    assert len(answers) > CLIENTS
    assert [each for each in answers if expected[each[0]] != each[1]] == []
    assert not first & nodes.addresses
    assert server.stderr.count("another session") >= moves
    assert server.end() == 0
