"""What the tests of the example share: the real model, reference results, small models."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

EXAMPLES = Path(__file__).parents[2] / "examples"

# As a script, embed.py has its own folder on the path; the tests do as Python does.
sys.path.insert(0, str(EXAMPLES))

from embedding.settings import find_bundled_model, read_settings  # noqa: E402


class Reference(NamedTuple):
    """Sentences and what the model's published implementation makes of them, [sentences, H]."""

    sentences: list[str]
    embeddings: np.ndarray


@pytest.fixture(scope="session")
def reference():
    content = json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))
    return Reference(content["sentences"], np.array(content["embeddings"]))


@pytest.fixture(scope="session")
def settings():
    return read_settings()


@pytest.fixture
def make_model(tmp_path):
    """Writes a small BERT with random weights in the layout of Hugging Face; returns its folder."""

    def make(prefix="", dtype=np.float32, old_names=False, pooling=None, drop=(), **config):
        hidden, inner, words, places = 24, 48, 30522, 40
        rng = np.random.default_rng(11)
        shapes = {
            "embeddings.word_embeddings.weight": (words, hidden),
            "embeddings.position_embeddings.weight": (places, hidden),
            "embeddings.token_type_embeddings.weight": (2, hidden),
            "embeddings.LayerNorm.weight": (hidden,),
            "embeddings.LayerNorm.bias": (hidden,),
        }
        for layer in range(2):
            name = f"encoder.layer.{layer}"
            for part in ("query", "key", "value"):
                shapes[f"{name}.attention.self.{part}.weight"] = (hidden, hidden)
                shapes[f"{name}.attention.self.{part}.bias"] = (hidden,)
            shapes[f"{name}.attention.output.dense.weight"] = (hidden, hidden)
            shapes[f"{name}.attention.output.dense.bias"] = (hidden,)
            shapes[f"{name}.intermediate.dense.weight"] = (inner, hidden)
            shapes[f"{name}.intermediate.dense.bias"] = (inner,)
            shapes[f"{name}.output.dense.weight"] = (hidden, inner)
            shapes[f"{name}.output.dense.bias"] = (hidden,)
            for norm in ("attention.output", "output"):
                shapes[f"{name}.{norm}.LayerNorm.weight"] = (hidden,)
                shapes[f"{name}.{norm}.LayerNorm.bias"] = (hidden,)
        tensors = {}
        for name, shape in shapes.items():
            stored = name
            if old_names:
                stored = stored.replace("LayerNorm.weight", "LayerNorm.gamma")
                stored = stored.replace("LayerNorm.bias", "LayerNorm.beta")
            # Large enough that attention is uneven and the GELU's bend matters.
            if name not in drop:
                tensors[prefix + stored] = rng.normal(0, 0.5, shape).astype(dtype)
        folder = tmp_path / "model"
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        shutil.copy(find_bundled_model() / "tokenizer.json", folder)
        described = {
            "model_type": "bert",
            "hidden_act": "gelu",
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "max_position_embeddings": places,
        }
        (folder / "config.json").write_text(json.dumps(described | config))
        if pooling is not None:
            (folder / "1_Pooling").mkdir()
            (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return folder

    return make
