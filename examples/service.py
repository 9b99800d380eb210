"""A web service on a session: requests of many clients share workers that hold one model.

::

    disco local --nodes 2 --slots 2 -- python examples/service.py
    curl -s localhost:8080/predict -d '{"inputs": [1, 2, 3, 4]}'

Each worker holds a share of a perceptron with random weights; a request is one call, whose
allreduce adds the shares up. What is wrong with a request is the answer to that request alone.
A request that takes longer than its ``"timeout"``, in seconds, or whose client leaves, is cancelled
on the workers, so that no other one waits for it.
Needs aiohttp, which the extra ``server`` brings.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
from aiohttp import web

import disco_client
import disco_server

__all__ = ["Model", "application", "predict_alone"]

SEED, INNER = 7, 4096
"""Of the weights, and the columns of the first layer."""

LONGEST_S = 10.0
"""How long a request may take."""


# On the workers ----------------------------------------------------------------------------


def make_weights(width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights of both layers, [width, INNER] and [INNER, width], as float32."""
    draw = np.random.default_rng(seed).standard_normal
    first = draw((width, INNER), np.float32) / np.float32(width**0.5)
    return first, draw((INNER, width), np.float32) / np.float32(INNER**0.5)


@disco_server.register_func("service.load")
def load(width: int, seed: int) -> list[np.ndarray]:
    """This worker's share of the weights: columns of the first layer, rows of the second."""
    worker = disco_server.current_worker()
    first, second = make_weights(width, seed)
    mine = np.array_split(np.arange(INNER), worker.num_workers)[worker.worker_id]
    return [np.ascontiguousarray(first[:, mine]), np.ascontiguousarray(second[mine])]


@disco_server.register_func("service.predict")
def predict(share: list[np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """The outputs for one row of inputs, on every worker."""
    first, second = share
    if inputs.shape != first.shape[:1]:
        msg = f"expected {first.shape[0]} numbers, got an array of shape {list(inputs.shape)}"
        raise ValueError(msg)
    partial = np.maximum(inputs @ first, 0) @ second
    return disco_server.current_worker().allreduce(partial)


def predict_alone(inputs: np.ndarray, seed: int = SEED) -> np.ndarray:
    """The same in one process, to compare with."""
    first, second = make_weights(len(inputs), seed)
    return np.maximum(inputs @ first, 0) @ second


# The service -------------------------------------------------------------------------------


class Model:
    """The model on the workers of a session.

    Args:
        session: A session that was opened by ``aconnect``.
        width: How many numbers a request has.
        seed: Of the weights.
    """

    def __init__(self, session: disco_client.Session, width: int, seed: int) -> None:
        self._session = session
        self._predict = session.get_global_func("service.predict")
        self._share = session.get_global_func("service.load")(width, seed)

    async def predict(self, inputs: np.ndarray) -> np.ndarray:
        """The outputs for one row of inputs.

        Raises:
            disco_client.RemoteException: The workers refuse it.
        """
        # A client's connection is one task and may send many requests; each is a scope.
        with self._session.scope(cancel=True):
            await self._session.ready()
            return await self._predict(self._share, inputs)


Handler = Callable[[web.Request], Awaitable[web.Response]]
_HANDLE: web.AppKey[Handler] = web.AppKey("handle")


def handler_of(model: Model) -> Handler:
    """Answers ``{"inputs": [...]}`` with ``{"outputs": [...]}``, and what is wrong with 400.

    Where the answer does not come in time, that is 504.
    """

    async def handle(request: web.Request) -> web.Response:
        try:
            asked = await request.json()
            inputs = np.asarray(asked["inputs"], np.float32)
            timeout = min(LONGEST_S, float(asked.get("timeout", LONGEST_S)))
        except (KeyError, TypeError, ValueError) as error:
            return web.json_response(
                {"error": f"expected {{'inputs': [...]}}: {error}"}, status=400
            )
        try:
            async with asyncio.timeout(timeout):
                outputs = await model.predict(inputs)
        except TimeoutError:
            return web.json_response({"error": f"no answer within {timeout:g} s"}, status=504)
        except disco_client.RemoteException as error:
            return web.json_response({"error": error.failures[0].message}, status=400)
        return web.json_response({"outputs": outputs.tolist()})

    return handle


def application(address: str | None, workers: int, width: int, seed: int = SEED) -> web.Application:
    """Makes the service; its session opens with it, and closes with it."""

    async def hold_session(app: web.Application) -> AsyncIterator[None]:
        async with disco_client.aconnect(address, num_workers=workers) as session:
            await asyncio.to_thread(session.load_source, __file__)
            app[_HANDLE] = handler_of(Model(session, width, seed))
            yield

    async def predict_route(request: web.Request) -> web.Response:
        return await request.app[_HANDLE](request)

    app = web.Application()
    app.cleanup_ctx.append(hold_session)
    app.router.add_post("/predict", predict_route)
    return app


def main() -> None:
    """Runs the service until it is interrupted."""
    parser = argparse.ArgumentParser(description="A web service on a Disco session.")
    parser.add_argument("--address", help="the controller; else DISCO_ADDRESS")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--width", type=int, default=4, help="how many numbers a request has")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    app = application(options.address, options.workers, options.width)
    web.run_app(app, host="127.0.0.1", port=options.port, handler_cancellation=True)


if __name__ == "__main__":
    main()
