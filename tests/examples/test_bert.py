"""The split forward against the plain one, all shares running in this process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from embedding.bert import BertSlice
from embedding.plain import PlainModel
from embedding.settings import ModelError, read_settings
from embedding.tokens import in_order, make_batches, tokenize


class Summation:
    """Adds up arrays over threads, in place, as an allreduce does over ranks."""

    def __init__(self, ranks):
        self.calls = 0
        self._parts = [None] * ranks
        self._meeting = threading.Barrier(ranks, timeout=30)

    def of(self, rank):
        def add_up(summand):
            self._parts[rank] = summand
            self._meeting.wait()
            total = np.sum(self._parts, axis=0, dtype=np.float32)
            if self._meeting.wait() == 0:
                self.calls += 1
            summand[...] = total

        return add_up


def run_split(settings, ranks, batches):
    """Embeds with so many shares; returns each rank's result, the shares and the summation."""
    shares = [BertSlice(settings, rank, ranks) for rank in range(ranks)]
    summation = Summation(ranks)

    def work(rank):
        add_up = summation.of(rank)
        return in_order(
            (batch, shares[rank].forward(batch.ids, batch.lengths, add_up)) for batch in batches
        )

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(work, range(ranks))), shares, summation


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_split_forward_equals_the_published_implementation(settings, reference, ranks):
    """Any number of shares gives the published embeddings, the same on every rank."""
    batches = list(make_batches(tokenize(settings, reference.sentences), 6))
    results, shares, summation = run_split(settings, ranks, batches)
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        np.testing.assert_allclose(result, reference.embeddings, atol=2e-6)
    # Two reductions a layer, and none where there is nobody to reduce with.
    assert summation.calls == (0 if ranks == 1 else 2 * settings.layers * len(batches))
    for share in shares:
        compute, collectives = share.times()
        assert compute > 0
        assert (collectives > 0) == (ranks > 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_split_forward_equals_the_plain_one_on_another_model(make_model, ranks, pooling):
    """Another width, another pooling, a prefix and old names: shares and whole agree."""
    folder = make_model(prefix="bert.", old_names=True, pooling={"pooling_mode": pooling})
    settings = read_settings(folder)
    rng = np.random.default_rng(5)
    tokens = [rng.integers(0, 30522, length).tolist() for length in (1, 2, 2, 2, 9, 40, 40, 17)]
    (result, *_), *_ = run_split(settings, ranks, list(make_batches(tokens, 5)))
    plain = PlainModel(settings)
    np.testing.assert_allclose(result, [plain.embed(ids) for ids in tokens], atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_weights_of_other_widths_are_converted(make_model, dtype):
    """Weights stored narrower or wider are computed with in float32."""
    settings = read_settings(make_model(dtype=np.dtype(dtype)))
    (result, *_), *_ = run_split(settings, 2, list(make_batches([[101, 2000, 102]])))
    assert result.dtype == np.float32
    plain = PlainModel(settings).embed([101, 2000, 102])
    np.testing.assert_allclose(result[0], plain, atol=2e-6)


def test_a_result_does_not_depend_on_its_batch(settings):
    """A sentence embeds to the same vector alone and among others."""
    tokens = tokenize(settings, ["A short one.", "word " * 200, "Ein Satz.", "漢字" * 30])
    model = BertSlice(settings, 0, 1)

    def embed(size):
        return in_order(
            (batch, model.forward(batch.ids, batch.lengths, lambda _: None))
            for batch in make_batches(tokens, size)
        )

    np.testing.assert_allclose(embed(1), embed(4), atol=1e-6)


def test_each_rank_holds_only_its_own_share(make_model):
    """The matrices of the layers are divided; a third of the ranks holds a third of them."""
    settings = read_settings(make_model())
    whole, third = (BertSlice(settings, ranks - 1, ranks)._weights for ranks in (1, 3))
    for full, part in zip(whole.layers, third.layers, strict=True):
        for name in ("qkv_weight", "qkv_bias", "attention_weight", "up_weight", "down_weight"):
            assert getattr(full, name).size == 3 * getattr(part, name).size
    assert (whole.heads, third.heads) == (6, 2)


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        ([1, 2, 3], [1, 1], "sum up to 2"),
        ([], [], "one sentence or more"),
        ([1, 2], [2, 0], "1 to 40 tokens"),
        ([1] * 41, [41], "1 to 40 tokens"),
        ([30522], [1], "0 to 30521"),
        ([-1], [1], "0 to 30521"),
        ([[1, 2]], [2], "in a row"),
    ],
)
def test_unsound_batches_are_refused(make_model, ids, lengths, message):
    """What does not fit the model is refused before any rank waits for another."""
    model = BertSlice(read_settings(make_model()), 0, 2)
    with pytest.raises(ValueError, match=message):
        model.forward(np.array(ids, np.int32), np.array(lengths, np.int32), pytest.fail)


def test_too_many_ranks_are_refused(settings):
    """A rank refuses a share that does not exist, whatever the client has checked."""
    with pytest.raises(ModelError, match="5 workers cannot share"):
        BertSlice(settings, 0, 5)


def test_files_that_do_not_fit_are_refused(make_model):
    """Missing and misshapen tensors, and files of something else, are named."""
    lost = "encoder.layer.1.output.dense.bias"
    folder = make_model(drop=[lost])
    with pytest.raises(ModelError, match=lost):
        BertSlice(read_settings(folder), 0, 1)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"intermediate_size": 48', '"intermediate_size": 60')
    )
    with pytest.raises(
        ModelError, match=r"has shape \[48, 24\] and config\.json asks for \[60, 24\]"
    ):
        BertSlice(read_settings(folder), 0, 1)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="cannot be opened"):
        BertSlice(read_settings(folder), 0, 1)


def test_a_file_of_another_kind_of_model_is_refused(make_model):
    """A file without word embeddings is no encoder."""
    folder = make_model(drop=["embeddings.word_embeddings.weight"])
    with pytest.raises(ModelError, match="holds no tensor named"):
        BertSlice(read_settings(folder), 0, 1)
