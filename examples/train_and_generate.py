"""Trains a small model on two workers and writes with it on two others, of one session.

The model predicts the next character of a text. Workers 0 and 1 train it, each with all weights
and half of every batch; workers 2 and 3 generate, each with half of every layer. Every 50
steps the weights go from the first two to the others, straight from worker to worker, and,
to compare, once more by way of this program::

    disco local --nodes 2 --slots 2 -- python examples/train_and_generate.py

Exit codes: 0, or 1 where a cluster failed or weights arrived otherwise than they left.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import disco_client
from cluster.commands import run_command
from disco_client.distributed import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disco_client import Program, Session
    from disco_client.distributed import DTensor

    Floats = np.ndarray[Any, np.dtype[np.float32]]

TEXT = (
    "Twinkle, twinkle, little star, how I wonder what you are! "
    "Up above the world so high, like a diamond in the sky. "
    "When the blazing sun is gone, when he nothing shines upon, "
    "then you show your little light, twinkle, twinkle, all the night. "
)
LETTERS = sorted(set(TEXT))
CONTEXT = 20
BATCH = 128
RATE = 1.0

TRAIN = DeviceMesh((2,), [0, 1])
GENERATE = DeviceMesh((2,), [2, 3])
PLACEMENTS = {"into": "S[1]", "out": "S[0]"}
"""Of the layers where they generate: the first by columns, the second by rows."""


class Push(NamedTuple):
    """How long it took to bring the weights to those that generate, in seconds.

    Attributes:
        direct: From worker to worker.
        by_client: Fetched and distributed again.
    """

    direct: float
    by_client: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="train_and_generate", description="Trains on two workers, writes on two others."
    )
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument(
        "--every", type=int, default=50, metavar="N", help="steps between pushes (default: 50)"
    )
    parser.add_argument(
        "--hidden", type=int, default=256, metavar="N", help="hidden units (default: 256)"
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the controller (default: $DISCO_ADDRESS, else 127.0.0.1:7600)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the controller and for workers (default: 30)",
    )
    options = parser.parse_args(arguments)
    return run_command("train_and_generate", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Trains, pushes and generates."""
    with disco_client.connect(
        options.address, num_workers=4, timeout=options.timeout, name="train-and-generate"
    ) as session:
        trained = first_weights(session, options.hidden)
        used = {
            name: session.distribute(np.zeros(weight.shape, "float32"), GENERATE, PLACEMENTS[name])
            for name, weight in trained.items()
        }
        step, forward = capture_step(session, trained), capture_forward(session, used)
        rng = np.random.default_rng(7)
        pushes: list[Push] = []
        pushed = trained
        for number in range(1, options.steps + 1):
            x, y = (session.distribute(part, TRAIN, "S[0]") for part in batch(rng))
            into, out, loss = step(trained["into"], trained["out"], x, y)
            trained = {"into": into, "out": out}
            if number % options.every == 0:
                pushed = trained
                pushes.append(push(session, used, pushed))
                print(f"step {number}: loss {loss.item():.3f}")
                print(f"  {generate(session, forward)!r}")
        if not pushes:
            return 0
        report(pushes, used, trained)
        return (
            0 if all(np.array_equal(used[n].numpy(), w.numpy()) for n, w in trained.items()) else 1
        )


def first_weights(session: Session, hidden: int) -> dict[str, DTensor]:
    """The weights before the first step, all of them on each worker that trains."""
    rng = np.random.default_rng(5)
    shapes = {"into": (CONTEXT * len(LETTERS), hidden), "out": (hidden, len(LETTERS))}
    return {
        name: session.distribute(
            rng.normal(0, shape[0] ** -0.5, shape).astype("float32"), TRAIN, "R"
        )
        for name, shape in shapes.items()
    }


def capture_step(session: Session, weights: dict[str, DTensor]) -> Program:
    """A step of gradient descent: each worker's part of a batch, then an allreduce."""
    x, y = (session.distribute(part, TRAIN, "S[0]") for part in batch(np.random.default_rng()))
    with session.capture("step") as program:
        into = program.input("into", like=weights["into"])
        out = program.input("out", like=weights["out"])
        given, wanted = program.input("x", like=x), program.input("y", like=y)
        hidden = session.apply("tanh", given @ into)
        guess = session.apply("softmax", hidden @ out, axis=-1)
        error = (guess - wanted) / BATCH
        back = (error @ out.T) * (1 - hidden * hidden)
        slopes = given.T @ back, hidden.T @ error
        program.output(
            *(
                weight - RATE * slope.redistribute("R")
                for weight, slope in zip((into, out), slopes, strict=True)
            ),
            (wanted * session.apply("log", guess + 1e-9)).sum() / -BATCH,
        )
    return program


def capture_forward(session: Session, weights: dict[str, DTensor]) -> Program:
    """How likely each letter is to come next, computed by those that generate together."""
    like = session.distribute(one_hot([TEXT[:CONTEXT]]), GENERATE, "R")
    with session.capture("forward") as program:
        hidden = session.apply("tanh", program.input("context", like=like) @ weights["into"])
        program.output((hidden @ weights["out"]).redistribute("R"))
    return program


def push(session: Session, used: dict[str, DTensor], trained: dict[str, DTensor]) -> Push:
    """Brings the weights to those that generate, in both ways."""
    session.sync_all()
    started = time.perf_counter()
    fetched = {name: weight.numpy() for name, weight in trained.items()}
    again = [session.distribute(w, GENERATE, PLACEMENTS[name]) for name, w in fetched.items()]
    session.sync_all()
    by_client = time.perf_counter() - started
    del again
    started = time.perf_counter()
    session.assign(used, trained, progress=False)
    return Push(time.perf_counter() - started, by_client)


def generate(session: Session, forward: Program, count: int = 80) -> str:
    """Continues the beginning of the text, each time with the likeliest letter."""
    text = TEXT[:CONTEXT]
    while len(text) < count:
        context = session.distribute(one_hot([text[-CONTEXT:]]), GENERATE, "R")
        text += LETTERS[int(np.argmax(forward(context).numpy()))]
    return text


def report(pushes: list[Push], used: dict[str, DTensor], trained: dict[str, DTensor]) -> None:
    """Says what a push costs in either way."""
    plans = [w.plan(used[name].mesh, used[name].placement) for name, w in trained.items()]
    sent, least = sum(plan.nbytes for plan in plans), sum(plan.bound for plan in plans)
    # Down to this program from one worker, and up to those that generate, each its part.
    passed = sum(weight.nbytes for weight in trained.values()) + sent
    direct = median(each.direct for each in pushes)
    by_client = median(each.by_client for each in pushes)
    print(
        f"a push from worker to worker: {direct * 1e3:.1f} ms, {sent:,} bytes,"
        f" {sent / least:.2f} times the least"
    )
    print(f"a push by way of the client: {by_client * 1e3:.1f} ms, {passed:,} bytes")


def batch(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Some contexts, and what comes next; [BATCH, CONTEXT * letters] and [BATCH, letters]."""
    starts = rng.integers(0, len(TEXT), BATCH)
    whole = TEXT + TEXT
    contexts = [whole[at : at + CONTEXT] for at in starts]
    return one_hot(contexts), one_hot([whole[at + CONTEXT] for at in starts])


def one_hot(texts: list[str]) -> Floats:
    """Each text as a row, with a 1 for each letter at its place."""
    places = np.array([[LETTERS.index(letter) for letter in text] for text in texts])
    return np.eye(len(LETTERS), dtype="float32")[places].reshape(len(texts), -1)


if __name__ == "__main__":
    sys.exit(main())
