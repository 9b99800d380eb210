"""All families beside transformers and llama.cpp: the same logits, and the same greedy text."""

from __future__ import annotations

import functools
import itertools
import json
import urllib.request

import numpy as np
import pytest
from gguf_conversion import convert
from synthetic_models import (
    CASES,
    FIGURES,
    SAID_BESIDE,
    UNSAID,
    VOCABULARY,
    draw_weight,
    write_tokenizer,
)

import disco_client
from llm.config import open_checkpoint
from llm.model import Model, Piece
from llm.text import Text

torch = pytest.importorskip("torch", reason="torch is in the environment of `make models`")
transformers = pytest.importorskip("transformers", reason="likewise")
pytestmark = pytest.mark.filterwarnings("ignore")

PROMPT, COUNT = 48, 32
WITHIN = 1e-3
"""Of the standard deviation of the logits."""
FORMS = [
    (case, form)
    for case, form in itertools.product(CASES, ("folder", "gguf"))
    if form == "folder" or case not in UNSAID
]
SAID = ("the river of the sea", " two  spaces, Don't", "It's 1234567 x\n\n y", "the")


class Written:
    """A case as transformers writes and computes it.

    Attributes:
        paths: Of both forms.
        ids: The prompt, and behind it the likeliest tokens.
        logits: [tokens, vocabulary], float32, behind each of them.
    """

    def __init__(self, root, case):
        said = {**FIGURES, **CASES[case]}
        kind = said.pop("model_type")
        config = transformers.AutoConfig.for_model(kind, **said)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        model = model.float().eval()
        rng = np.random.default_rng([*CASES].index(case))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                drawn = draw_weight(name, tuple(weight.shape), kind, rng)
                weight.copy_(torch.from_numpy(drawn))
        folder = root / case.replace(" ", "_")
        model.save_pretrained(folder)
        write_tokenizer(folder, case)
        self.paths = {"folder": folder}
        if case not in UNSAID:
            self.paths["gguf"] = convert(folder, folder.with_suffix(".gguf"), SAID_BESIDE.get(case))
        self.ids = [int(token) for token in rng.integers(3, VOCABULARY, PROMPT)]
        with torch.no_grad():
            for _ in range(COUNT):
                # All of it anew, so that nothing depends on how a cache is kept.
                logits = model(torch.tensor([self.ids]), use_cache=False).logits[0].numpy()
                self.ids.append(int(logits[-1].argmax()))
        self.logits = logits


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return functools.cache(lambda case: Written(root, case))


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def session(request):
    with disco_client.ProcessSession(request.param) as opened:
        yield opened


@pytest.mark.parametrize(("case", "form"), FORMS)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    written, session, record_property, case, form
):
    """In chunks and token by token, on workers with unequal shares, within 1e-3 of the spread."""
    model = Model(session, open_checkpoint(written(case).paths[form]), blocks=8, slots=2)
    ids, expected = written(case).ids, written(case).logits
    blocks = [5, 2, 3, 7, 0, 1]
    known = ids[:-1]
    parts = [
        model.logits([Piece(1, start, known[start : start + 20], blocks)]).numpy()
        for start in range(0, len(known), 20)
    ]
    difference = np.abs(np.concatenate(parts) - expected).max() / expected.std()
    token = model.step([Piece(0, 0, ids[:PROMPT], blocks)])
    found = []
    for _ in range(COUNT):
        found.append(int(token.numpy()[0]))
        token = model.next_step()
    same = found == ids[PROMPT:]
    told = "equal" if same else "other"
    row = f"{case:26} {form:7} {session.num_workers} workers  {difference:.1e}  tokens {told}"
    record_property("families", row)
    assert difference < WITHIN
    assert same


@pytest.mark.parametrize(("case", "form"), FORMS)
def test_texts_become_the_tokens_that_transformers_finds(written, case, form):
    """From the tokenizer of a folder, and from the vocabulary of a GGUF file."""
    read = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(written(case).paths["folder"] / "tokenizer.json")
    )
    text = Text(open_checkpoint(written(case).paths[form]))
    for said in SAID:
        expected = read.encode(said, add_special_tokens=False)
        assert text.encode(said) == expected
        assert text.decode(expected) == said


class Peer:
    """llama.cpp, which serves a GGUF file in this process.

    Args:
        library: The package ``xllamacpp``.
        path: The file.
        context: How many positions there are.
    """

    def __init__(self, library, path, context):
        params = library.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.warmup, params.verbosity = context, 1, False, -1
        params.cache_type_k = params.cache_type_v = library.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cpuparams.n_threads = 1
        self._server = library.Server(params)

    def post(self, path, body):
        request = urllib.request.Request(
            self._server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


WINDOWS = ("mistral", "phi3")
"""The cases whose window llama.cpp leaves out, which are compared within it."""


@pytest.mark.parametrize("case", [case for case, form in FORMS if form == "gguf"])
def test_llama_cpp_finds_the_same_in_the_gguf_files(written, case):
    """The same greedy tokens behind a prompt, and the same tokens of texts."""
    library = pytest.importorskip("xllamacpp", reason="llama.cpp has no wheel for this machine")
    path = written(case).paths["gguf"]
    short = case in WINDOWS
    prompt = written(case).ids[: 6 if short else PROMPT]
    count = 18 if short else COUNT
    text = Text(open_checkpoint(path))
    # It rounds a context up to 256, the most for which the short divisors of LongRoPE are.
    peer = Peer(library, path, 256)
    body = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True}
    theirs = peer.post("/completion", {**body, "return_tokens": True})["tokens"]
    for said in SAID:
        assert peer.post("/tokenize", {"content": said})["tokens"] == text.encode(said)
    with disco_client.ProcessSession(2) as session:
        model = Model(session, open_checkpoint(path), blocks=8, slots=1)
        token = model.step([Piece(0, 0, prompt, list(range(8)))])
        found = []
        for _ in range(count):
            found.append(int(token.numpy()[0]))
            token = model.next_step()
    assert found == theirs
