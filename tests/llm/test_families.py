"""Families beside Llama: what they compute otherwise, in both forms of files, on three workers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reference_llama
from gguf import GGMLQuantizationType
from gguf_conversion import convert
from reference_llama import Otherwise, plain_speeds
from safetensors.numpy import load_file, save_file
from synthetic_models import (
    ALTERNATING,
    CASES,
    FIGURES,
    LAYERS,
    LLAMA3,
    LONGROPE,
    SAID_BESIDE,
    UNSAID,
    VOCABULARY,
    write_folder,
)

import disco_client
from llm.config import ModelError, open_checkpoint
from llm.model import Model, Piece
from llm.plain import Plain
from llm.text import Text

EXAMPLES = Path(__file__).parents[2] / "examples"
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
ROOT = FIGURES["hidden_size"] ** 0.5
LONG_SCALE = math.sqrt(1 + math.log(512 / 256) / math.log(256))
LLAMA3_SPEEDS = reference_llama.llama3_speeds(500000.0, 24, 8.0, 1.0, 4.0, 64)
PLAIN_24, PLAIN_32 = plain_speeds(10000.0, 24), plain_speeds(10000.0, 32)
EVERY_OTHER = [24 if kind == "sliding_attention" else 0 for kind in ALTERNATING]
GEMMA = {"norm_offset": 1.0, "embedding_scale": ROOT, "query_scale": 32**-0.5}
EXPECTED = {
    "llama": (LLAMA3_SPEEDS, Otherwise()),
    "mistral": (PLAIN_32, Otherwise(windows=[24] * LAYERS)),
    "mistral without a window": (PLAIN_24, Otherwise()),
    "qwen2": (PLAIN_24, Otherwise()),
    "qwen2 with a window": (PLAIN_24, Otherwise(windows=[0, 0, 24, 24])),
    "qwen3": (PLAIN_32, Otherwise()),
    "phi3": (PLAIN_24, Otherwise(windows=[24] * LAYERS)),
    "phi4": (
        plain_speeds(10000.0, 18) / np.array(LONGROPE["short_factor"]),
        Otherwise(turned_scale=LONG_SCALE),
    ),
    "gemma2": (
        PLAIN_32,
        Otherwise(windows=EVERY_OTHER, attention_cap=5.0, logit_cap=3.0, **GEMMA),
    ),
    "gemma2 with another scale": (
        PLAIN_32,
        Otherwise(windows=EVERY_OTHER, **{**GEMMA, "query_scale": 12**-0.5}),
    ),
    "gemma3": (
        plain_speeds(1000000.0, 32) / 8,
        Otherwise(windows=EVERY_OTHER, local_speeds=PLAIN_32, **GEMMA),
    ),
}
"""How fast pairs turn, and what else each case does, from the models' published definitions."""

PROMPT = (504, 2242, 282, 260, 905, 314)
"""That of `llm.parallel_mpi`, whose import would start MPI in this process."""

IDS = [int(token) for token in np.random.default_rng(1).integers(3, VOCABULARY, 80)]


@pytest.fixture(scope="module")
def shared():
    """Three workers, which have unequal shares of four heads."""
    with disco_client.ProcessSession(3) as session:
        yield session


def logits_of(session, checkpoint):
    model = Model(session, checkpoint, blocks=8, slots=2)
    blocks = [5, 2, 3, 7, 0, 1]
    parts = [
        model.logits([Piece(1, start, IDS[start : start + 20], blocks)]).numpy()
        for start in range(0, len(IDS), 20)
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_its_definition_says(shared, tmp_path, case):
    """Split in chunks, plain, from a folder and from GGUF: near the formulas in float64."""
    tensors = write_folder(tmp_path / "folder", case, seed=[*CASES].index(case))
    paths = [tmp_path / "folder"]
    if case not in UNSAID:
        paths.append(convert(paths[0], tmp_path / "model.gguf", SAID_BESIDE.get(case)))
    speeds, otherwise = EXPECTED[case]
    expected = reference_llama.logits(
        tensors,
        IDS,
        speeds,
        heads=4,
        epsilon=1e-6,
        activation="gelu_pytorch_tanh" if case.startswith("gemma") else "silu",
        otherwise=otherwise,
    )
    for path in paths:
        checkpoint = open_checkpoint(path)
        assert np.abs(Plain(checkpoint).logits(IDS) - expected).max() < 1e-4 * expected.std()
        assert np.abs(logits_of(shared, checkpoint) - expected).max() < 1e-4 * expected.std()


@pytest.mark.parametrize("case", ["phi3", "gemma3"])
def test_single_tokens_see_the_same_window(shared, tmp_path, case):
    """The steps of an answer see as many positions as a prompt does, in blocks out of order."""
    write_folder(tmp_path / "folder", case)
    checkpoint = open_checkpoint(tmp_path / "folder")
    model, found = Model(shared, checkpoint, blocks=8, slots=1), []
    token = model.step([Piece(0, 0, IDS[:20], [2, 0, 3, 1, 4, 5, 6, 7])])
    for _ in range(30):
        found.append(int(token.numpy()[0]))
        token = model.next_step()
    assert found == Plain(checkpoint).continue_greedily(IDS[:20], 30, set())[0]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "BF16", "F16"])
def test_fused_tensors_of_blocks_are_cut_by_their_rows(shared, tmp_path, kind):
    """Each worker's rows of queries, keys and values, as the whole tensor has them."""
    write_folder(tmp_path / "folder", "phi3")
    quantised = GGMLQuantizationType[kind]
    path = convert(tmp_path / "folder", tmp_path / "model.gguf", quantised=quantised)
    checkpoint = open_checkpoint(path)
    expected = Plain(checkpoint).logits(IDS)
    assert np.abs(logits_of(shared, checkpoint) - expected).max() < 1e-4 * expected.std()


@pytest.mark.parametrize("case", ["qwen3", "phi4", "gemma2", "gemma3"])
def test_single_tokens_of_blocks_are_those_of_numpy(shared, tmp_path, case):
    """What is compiled for single rows turns, looks back and bends as the chunks in numpy do."""
    pytest.importorskip("numba", reason="numba, which compiles it, is not installed")
    write_folder(tmp_path / "folder", case)
    kind = GGMLQuantizationType.Q8_0
    said = SAID_BESIDE.get(case)
    path = convert(tmp_path / "folder", tmp_path / "model.gguf", said, quantised=kind)
    checkpoint = open_checkpoint(path)
    model, blocks = Model(shared, checkpoint, blocks=8, slots=2), [5, 2, 3, 7, 0, 1]
    assert "numba" in model.computed_by
    model.logits([Piece(0, 0, IDS[:60], blocks)])
    found = [model.logits([Piece(0, n, [IDS[n]], blocks)]).numpy()[0] for n in range(60, 80)]
    expected = Plain(checkpoint).logits(IDS, last=20)
    assert np.abs(np.array(found) - expected).max() < 1e-4 * expected.std()


def test_longrope_serves_as_many_positions_as_its_short_divisors(tmp_path):
    """A longer text would turn the keys of its beginning otherwise, so it is refused."""
    write_folder(tmp_path / "folder", "phi4")
    path = convert(tmp_path / "folder", tmp_path / "model.gguf")
    for each in (tmp_path / "folder", path):
        assert open_checkpoint(each).config.context == 256


def opened_with(folder, case, **changes):
    """Opens a folder of a case whose config.json has these fields more; it has no weights."""
    folder.mkdir(exist_ok=True)
    said = {**FIGURES, **CASES[case], **changes}
    (folder / "config.json").write_text(json.dumps(said))
    return open_checkpoint(folder)


REFUSED = [
    ("gemma3", {"model_type": "gemma3"}, "type 'gemma3'; expected 'llama', 'mistral', 'qwen2'"),
    ("llama", {"sliding_window": 24}, "sliding_window = 24"),
    ("mistral", {"use_sliding_window": True}, "use_sliding_window = True"),
    ("mistral", {"layer_types": ALTERNATING}, "expected 'full_attention' of each"),
    ("mistral", {"sliding_window": 0}, "sliding_window = 0; expected a number above 0"),
    ("mistral", {"attention_bias": True}, "attention_bias = True"),
    ("qwen2", {"attention_bias": True}, "attention_bias = True"),
    ("qwen2", {"use_sliding_window": 1}, "use_sliding_window = 1; expected true or false"),
    ("qwen3", {"layer_types": ["full_attention"]}, "of each of 4 layers"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 4}, "layer_types = "),
    ("qwen2", {"layer_types": ALTERNATING}, "sliding_window = None; expected a number"),
    ("qwen3", {"num_experts": 8}, "num_experts = 8"),
    ("phi3", {"attention_bias": True}, "attention_bias = True"),
    ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5; expected at most 1"),
    ("phi3", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "default, longrope, su"),
    ("phi3", {"rope_scaling": {**LLAMA3}}, "default, longrope, su"),
    ("phi4", {"rope_parameters": {**LONGROPE, "short_factor": [1.0]}}, "9 numbers as short_factor"),
    ("phi4", {"rope_parameters": {**LONGROPE, "my_factor": 1.0}}, "my_factor is not served"),
    ("phi3", {"auto_map": {"AutoConfig": "mine.Mine"}}, "auto_map"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar = 0; expected a number"),
    ("gemma2", {"hidden_activation": "mish"}, "hidden_activation = 'mish'"),
    ("gemma2", {"sliding_window": None}, "sliding_window = None; expected a number above 0"),
    ("gemma2", {"rope_local_base_freq": 10000.0}, "rope_local_base_freq = 10000.0"),
    (
        "gemma3",
        {"rope_local_base_freq": -1.0, "rope_parameters": None},
        "rope_local_base_freq = -1.0",
    ),
]


@pytest.mark.parametrize(("case", "changes", "told"), REFUSED)
def test_a_field_that_a_family_does_not_compute_is_refused(tmp_path, case, changes, told):
    """By its name, though another family may compute it."""
    with pytest.raises(ModelError, match=told):
        opened_with(tmp_path / "folder", case, **changes)


REFUSED_GGUF = [
    ("qwen2", {"attention.sliding_window": 24}, "qwen2.attention.sliding_window = 24"),
    ("qwen3", {"expert_count": 8}, "qwen3.expert_count = 8"),
    ("phi4", {"rope.dimension_count": 26}, "rope.dimension_count = 26; expected 24"),
    ("phi4", {"attn_logit_softcapping": 50}, "phi3.attn_logit_softcapping = 50"),
    ("gemma3", {"attn_logit_softcapping": 50}, "gemma3.attn_logit_softcapping = 50"),
    ("gemma2", {"rope.freq_base_swa": 10000}, "gemma2.rope.freq_base_swa = 10000"),
    ("gemma2", {"my_own_scale": 1}, "gemma2.my_own_scale = 1, which this example does not know"),
]


@pytest.mark.parametrize(("case", "said", "told"), REFUSED_GGUF)
def test_metadata_that_an_architecture_does_not_compute_are_refused(tmp_path, case, said, told):
    """By their name, with that of the architecture."""
    write_folder(tmp_path / "folder", case)
    path = convert(tmp_path / "folder", tmp_path / "model.gguf", said)
    with pytest.raises(ModelError, match=told):
        open_checkpoint(path)


def test_the_largest_model_scales_queries_by_its_width(tmp_path):
    """No GGUF file says it: llama.cpp, too, knows Gemma 2 27B by its 46 layers."""
    figures = {"num_hidden_layers": 46, "hidden_size": 192, "query_pre_attn_scalar": 48}
    write_folder(tmp_path / "folder", "gemma2", **figures)
    first = open_checkpoint(tmp_path / "folder").config.traits
    second = open_checkpoint(convert(tmp_path / "folder", tmp_path / "model.gguf")).config.traits
    assert first.attention_scale == second.attention_scale == 48**-0.5
    assert (first.local, first.window) == (second.local, second.window) == (first.local, 24)


def test_fields_that_are_not_there_are_as_in_published_models(tmp_path):
    """Null is another value: it takes a cap away."""
    folder = tmp_path / "folder"
    opened_with(folder, "gemma2")
    (folder / "config.json").write_text(json.dumps({**FIGURES, "model_type": "gemma2"}))
    traits = open_checkpoint(folder).config.traits
    assert (traits.attention_cap, traits.logit_cap) == (50.0, 30.0)
    assert (traits.window, traits.local, traits.attention_scale) == (4096, (0, 2), 256**-0.5)
    changes = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    traits = opened_with(folder, "gemma2", **changes).config.traits
    assert (traits.attention_cap, traits.logit_cap) == (0.0, 0.0)


CODE = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
}
FACTORS = {"short_factor": [1.0] * 9, "long_factor": [1.5] * 9}
PUBLISHED = {
    "Mistral 7B v0.3": ("mistral", {"sliding_window": None, "head_dim": None}, 0, 512),
    "Qwen 2.5": (
        "qwen2",
        {"max_window_layers": 28, "sliding_window": 131072, "use_mrope": False},
        0,
        512,
    ),
    "Qwen 3": (
        "qwen3",
        {"attention_bias": False, "max_window_layers": 28, "sliding_window": None},
        0,
        512,
    ),
    "Phi 3 mini": (
        "phi3",
        {
            "auto_map": CODE,
            "attention_bias": False,
            "embd_pdrop": 0.0,
            "original_max_position_embeddings": 512,
            "resid_pdrop": 0.0,
            "rope_scaling": None,
            "sliding_window": 2047,
        },
        2047,
        512,
    ),
    "Phi 4 mini": (
        "phi3",
        {
            "auto_map": {**CODE, "AutoTokenizer": "Xenova/gpt-4o"},
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "mlp_bias": False,
            "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.75,
            "rope_scaling": {**FACTORS, "type": "longrope"},
            "sliding_window": 262144,
        },
        262144,
        64,
    ),
    "Gemma 2": (
        "gemma2",
        {
            "cache_implementation": "hybrid",
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 4096,
            "sliding_window_size": 4096,
        },
        4096,
        512,
    ),
    "Gemma 3": (
        "gemma3",
        {
            "_sliding_window_pattern": 6,
            "attn_logit_softcapping": None,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": None,
            "rope_local_base_freq": 10000,
            "rope_parameters": None,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "use_bidirectional_attention": False,
        },
        512,
        512,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_fields_of_published_models_are_known(tmp_path, name):
    """All that stand there besides the figures, with the window and context that they come to."""
    case, fields, window, context = PUBLISHED[name]
    config = opened_with(tmp_path / "folder", case, **fields).config
    assert (config.traits.window, config.context) == (window, context)


@pytest.mark.parametrize("case", ["phi3", "gemma2"])
def test_bare_ranks_compute_the_same_shares(tmp_path, case):
    """The yardstick cuts fused tensors, and normalises what all ranks have brought."""
    write_folder(tmp_path / "folder", case, vocab_size=2560)
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES), "OPENBLAS_NUM_THREADS": "1"}
    command = [MPIEXEC, "-n", "3", sys.executable, "-m", "llm.parallel_mpi", "--tokens", "20"]
    run = subprocess.run(
        [*command, "--model", tmp_path / "folder"],
        env=environment,
        capture_output=True,
        timeout=50,
        check=True,
    )
    plain = Plain(open_checkpoint(tmp_path / "folder"))
    expected, _ = plain.continue_greedily(PROMPT, 21, set())
    assert json.loads(run.stdout)["found"] == expected


def test_older_files_say_the_same_of_two_bases(tmp_path):
    """Of Gemma 3, before the scaling of each kind of layers had an object of its own."""
    older = {
        "rope_parameters": None,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "layer_types": None,
    }
    found = opened_with(tmp_path / "older", "gemma3", **older).config
    assert found == opened_with(tmp_path / "newer", "gemma3").config


def test_a_tensor_of_another_family_is_refused(tmp_path):
    """Of a folder by its name there; a head's norm is Qwen 3's."""
    tensors = write_folder(tmp_path / "folder", "qwen2")
    surplus = "model.layers.0.self_attn.q_norm.weight"
    tensors = {
        **load_file(tmp_path / "folder" / "model.safetensors"),
        surplus: tensors["model.norm.weight"],
    }
    save_file(tensors, tmp_path / "folder" / "model.safetensors")
    with pytest.raises(ModelError, match=f"has the tensor '{surplus}'"):
        open_checkpoint(tmp_path / "folder")


@pytest.mark.parametrize("case", ["qwen2", "phi4", "mistral without a window", "gemma2"])
def test_both_forms_of_a_vocabulary_find_the_same_tokens(tmp_path, case):
    """Splits, scores and marks of GGUF files come to what tokenizer.json says."""
    write_folder(tmp_path / "folder", case)
    path = convert(tmp_path / "folder", tmp_path / "model.gguf")
    first, second = (Text(open_checkpoint(each)) for each in (tmp_path / "folder", path))
    assert first.ends == second.ends == {2}
    for said in ("the river of the sea", " two  spaces, Don't", "It's 1234567 aBc\n\n y</s>", ""):
        assert first.encode(said) == second.encode(said)
        assert second.decode(second.encode(said)) == said.replace("</s>", "")
