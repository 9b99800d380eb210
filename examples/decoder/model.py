"""The decoder, written as for one array: nothing here says what moves between workers.

The placements of the weights decide it. The matrices that lead into heads and into the inner
layer are split by columns and those that lead out of them by rows, so that each worker
has heads and inner columns of its own; the results are partial sums, which are then
redistributed to be whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import disco_client
    from decoder.settings import DecoderSettings, Floats
    from disco_client.distributed import DeviceMesh, DTensor

__all__ = ["Decoder", "State"]

_BY_COLUMNS = ("query", "key", "value", "gate", "up", "head")
_BY_ROWS = ("out", "down", "words")


class State:
    """The state of a generation; all of it is on the workers.

    Attributes:
        token: [1], integers: the newest token.
        start: [], integers: how many tokens came before it.
        caches: For each layer keys and values, [kv_heads, context, head] each.
    """

    def __init__(self, token: DTensor, start: DTensor, caches: Sequence[DTensor]) -> None:
        self.token = token
        self.start = start
        self.caches = tuple(caches)


class Decoder:
    """A model on the workers of a mesh with one axis.

    Args:
        session: Its workers compute.
        mesh: Over which of them the model is split.
        settings: The figures.
        weights: See `decoder.settings.random_weights`.
    """

    def __init__(
        self,
        session: disco_client.Session,
        mesh: DeviceMesh,
        settings: DecoderSettings,
        weights: Mapping[str, Floats],
    ) -> None:
        self._session = session
        self._mesh = mesh
        self._settings = settings
        self._weights = {
            name: session.distribute(array, mesh, _placement(name))
            for name, array in weights.items()
        }
        angles = _angles(settings)
        self._cos = session.distribute(np.cos(angles), mesh, "R")
        self._sin = session.distribute(np.sin(angles), mesh, "R")
        self.program: disco_client.Program | None = None

    def prefill(self, prompt: Sequence[int]) -> State:
        """Reads the prompt, all of it at once, and finds the first token of the answer."""
        settings, put = self._settings, self._session.distribute
        empty = np.zeros((settings.kv_heads, settings.context, settings.head), np.float32)
        caches = [put(empty, self._mesh, "S[0]") for _ in range(2 * settings.layers)]
        ids = put(np.array(prompt, np.int64), self._mesh, "R")
        start = put(np.int64(0), self._mesh, "R")
        token, caches = self._forward(ids, start, caches)
        return State(token, start + len(prompt), caches)

    def step(self, state: State) -> State:
        """Finds the next token; captured as a program when it is called first.

        A step is then one command, whatever it takes, and returns at once.
        """
        if self.program is None:
            self.program = self._capture(state)
        token, start, *caches = self.program(state.token, state.start, *state.caches)
        return State(token, start, caches)

    def _capture(self, like: State) -> disco_client.Program:
        with self._session.capture("decode") as program:
            token = program.input("token", like.token)
            start = program.input("start", like.start)
            caches = [program.input(f"cache{n}", each) for n, each in enumerate(like.caches)]
            token, caches = self._forward(token, start, caches)
            program.output(token, start + 1, *caches)
        return program

    def _forward(
        self, ids: DTensor, start: DTensor, caches: Sequence[DTensor]
    ) -> tuple[DTensor, list[DTensor]]:
        """Takes T tokens that come after others; returns the next one, and the new caches.

        Args:
            ids: [T], integers.
            start: [], integers: how many tokens came before.
            caches: Keys and values of each layer.
        """
        apply, weights, settings = self._session.apply, self._weights, self._settings
        positions = start + np.arange(ids.shape[0])
        rotary = [
            apply("take", table, positions).reshape(-1, 1, settings.head // 2)
            for table in (self._cos, self._sin)
        ]
        # [T, context]: a token sees those before it, and itself.
        seen = positions.reshape(-1, 1) >= np.arange(settings.context)
        mask = apply("where", seen, np.float32(0), np.float32(-np.inf))
        state = apply("take", weights["words"], ids).redistribute("R")
        kept: list[DTensor] = []
        for layer in range(settings.layers):
            keys, values = caches[2 * layer : 2 * layer + 2]
            x = self._norm(state, f"{layer}.norm")
            keys = self._remember(keys, self._heads(x, f"{layer}.key", rotary), start)
            values = self._remember(values, self._heads(x, f"{layer}.value"), start)
            asked = self._heads(x, f"{layer}.query", rotary)
            mixed = self._attend(asked, keys, values, mask)
            state = state + (mixed @ weights[f"{layer}.out"]).redistribute("R")
            x = self._norm(state, f"{layer}.inner_norm")
            inner = apply("silu", x @ weights[f"{layer}.gate"]) * (x @ weights[f"{layer}.up"])
            state = state + (inner @ weights[f"{layer}.down"]).redistribute("R")
            kept += [keys, values]
        logits = self._norm(state[-1:], "norm") @ weights["head"]
        return logits.redistribute("R").argmax(axis=-1), kept

    def _norm(self, x: DTensor, name: str) -> DTensor:
        epsilon = self._settings.epsilon
        return self._session.apply("rms_norm", x, self._weights[name], epsilon=epsilon)

    def _heads(self, x: DTensor, name: str, rotary: Sequence[DTensor] = ()) -> DTensor:
        """Projects [T, H] to [heads, T, head], turned by its positions where these are given."""
        split = (x @ self._weights[name]).reshape(x.shape[0], -1, self._settings.head)
        if rotary:
            cos, sin = rotary
            half = self._settings.head // 2
            one, other = split[..., :half], split[..., half:]
            turned = one * cos - other * sin, one * sin + other * cos
            split = self._session.apply("concatenate", *turned, axis=-1)
        return split.transpose(1, 0, 2)

    def _remember(self, cache: DTensor, new: DTensor, start: DTensor) -> DTensor:
        return self._session.apply("update", cache, new, start, axis=1)

    def _attend(self, asked: DTensor, keys: DTensor, values: DTensor, mask: DTensor) -> DTensor:
        """Mixes values by the attention of each head; [T, heads * head]."""
        heads, tokens, head = asked.shape
        groups = keys.shape[0]
        # The heads that share keys stand one after the other, so they make one product.
        asked = asked.reshape(groups, heads // groups * tokens, head) * np.float32(head**-0.5)
        scores = (asked @ keys.transpose(0, 2, 1)).reshape(heads, tokens, keys.shape[1])
        shares = self._session.apply("softmax", scores + mask)
        mixed = shares.reshape(groups, heads // groups * tokens, keys.shape[1]) @ values
        return mixed.reshape(heads, tokens, head).transpose(1, 0, 2).reshape(tokens, heads * head)


def _placement(name: str) -> str:
    kind = name.rpartition(".")[2]
    if kind in _BY_COLUMNS:
        return "S[1]"
    return "S[0]" if kind in _BY_ROWS else "R"


def _angles(settings: DecoderSettings) -> Any:
    """[context, head / 2], float32: by how much each pair of a head turns at each position."""
    pairs = np.arange(0, settings.head, 2, dtype=np.float64)
    speeds = settings.base ** (-pairs / settings.head)
    return np.outer(np.arange(settings.context), speeds).astype(np.float32)
