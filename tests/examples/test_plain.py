"""The plain forward against the model's published implementation."""

from __future__ import annotations

import numpy as np

from embedding.plain import PlainModel
from embedding.tokens import tokenize


def test_plain_forward_equals_the_published_implementation(settings, reference):
    """In many languages, without words and with 400 of them, to float32's last digits."""
    model = PlainModel(settings)
    embeddings = [model.embed(ids) for ids in tokenize(settings, reference.sentences)]
    cosines = np.sum(np.array(embeddings) * reference.embeddings, axis=1)
    assert cosines.min() > 0.999999
    np.testing.assert_allclose(embeddings, reference.embeddings, atol=2e-6)
