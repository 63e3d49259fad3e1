"""Perplexity against plain passes of the model, token by token."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floater import FloaterConfig
from floater.lab.tasks.language_modeling.data import Rows, masked, masked_batch, with_mask
from floater.lab.tasks.language_modeling.score import (
    causal_score,
    remembering_score,
    rows_score,
    windows,
)
from floater.lab.tasks.language_modeling.settings import Masking
from floater.lab.text.bpe import train_bpe
from floater.transformer import FloaterForCausalLM, FloaterForMaskedLM
from floater.transformer.memory import Memory

BEGIN = 1


def build_model(cls, position="sinusoidal", vocabulary=60):
    torch.manual_seed(0)
    config = FloaterConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        num_hidden_layers=2,
        training_length=64,
        position=position,
    )
    return cls(config).double()


def texts(*lengths):
    draw = np.random.default_rng(0)
    return [[draw.integers(3, 60, size=n) for n in row] for row in lengths]


def log_probability(model, ids, at):
    """log p of the token `at`, given those before it in `ids`."""
    with torch.no_grad():
        logits = model.eval()(torch.tensor(ids)[None, :at], use_cache=False).logits
    return float(logits[0, -1].log_softmax(-1)[ids[at]])


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(2, 12), st.data())
def test_windows_predict_each_token_once(length, window, data):
    stride = data.draw(st.integers(1, window - 1))
    seen = list(windows(length, window, stride))
    predicted = [token for start, end, first in seen for token in range(first, end)]
    assert predicted == list(range(1, length))
    for start, end, first in seen:
        assert end - start == min(window, length)
        assert start < first, "each predicted token has one before it in the window"
    assert all(b[1] - a[1] == stride for a, b in pairwise(seen[:-1]))


@pytest.mark.parametrize("position", ["sinusoidal", "floater", "rotary", "t5", "transformer_xl"])
def test_a_window_over_the_whole_text_is_a_plain_full_pass(position):
    model, documents = build_model(FloaterForCausalLM, position), texts((4, 9, 3), (7,), (2, 2))
    actual = causal_score(model, documents, window=64, stride=1, begin=BEGIN, max_tokens=40)
    nats = 0.0
    for document in documents:
        ids = torch.tensor(np.concatenate([[BEGIN], *document]))[None]
        with torch.no_grad():
            loss = model.eval()(ids, labels=ids).loss
        nats += float(loss) * (ids.shape[1] - 1)
    assert actual.tokens == 27
    # angles are of single precision
    assert actual.nats == pytest.approx(nats, rel=1e-5)
    assert actual.perplexity == pytest.approx(math.exp(nats / 27), rel=1e-5)


@pytest.mark.parametrize(("window", "stride"), [(8, 1), (8, 3), (8, 7), (17, 8)])
def test_a_sliding_window_gives_each_token_its_own_context(window, stride):
    model, documents = build_model(FloaterForCausalLM), texts((20, 11), (5,))
    actual = causal_score(model, documents, window=window, stride=stride, begin=BEGIN, max_tokens=50)
    nats = 0.0
    for document in documents:
        ids = np.concatenate([[BEGIN], *document])
        end = min(window, len(ids))
        nats -= sum(log_probability(model, ids[:end], at) for at in range(1, end))
        while end < len(ids):
            old, end = end, min(end + stride, len(ids))
            start = end - window
            nats -= sum(log_probability(model, ids[start:end], at - start) for at in range(old, end))
    assert actual.nats == pytest.approx(nats, rel=1e-6)
    assert actual.tokens == 36


def test_a_masked_score_is_the_loss_of_the_masked_tokens_of_a_fixed_seed():
    tokenizer = with_mask(train_bpe(["low lower lowest newest widest"], 270))
    model = build_model(FloaterForMaskedLM, vocabulary=len(tokenizer))
    rows = Rows.of(texts((4, 9, 3), (7,), (2, 2)), 16, begin=BEGIN, pack=False)

    def masks(seed):
        return partial(masked_batch, masking=Masking(), tokenizer=tokenizer, seed=[seed])

    nats, tokens = 0.0, 0
    for i, row in enumerate(rows):
        read, labels = masked(row["input_ids"], Masking(), tokenizer, 5, i)
        with torch.no_grad():
            logits = model.eval()(torch.tensor(read)[None]).logits[0].log_softmax(-1)
        for at in np.flatnonzero(labels != -100):
            nats, tokens = nats - float(logits[at, labels[at]]), tokens + 1
    for batch in (16, 1000):
        actual = rows_score(model, rows, masks(5), batch)
        assert (actual.nats, actual.tokens) == (pytest.approx(nats, rel=1e-6), tokens)
    other = rows_score(model, rows, masks(6))
    assert other.nats != pytest.approx(nats)


def test_measuring_leaves_mode_and_random_numbers_alone():
    model = build_model(FloaterForCausalLM, "floater").train()
    state = torch.get_rng_state()
    first, second = (causal_score(model, texts((9, 4)), window=8, stride=4, begin=BEGIN) for _ in range(2))
    assert first.nats == second.nats
    assert model.training
    assert torch.equal(state, torch.get_rng_state())


def test_a_hopeless_model_has_an_infinite_perplexity():
    from floater.lab.tasks.language_modeling import Score

    assert Score(nats=1e6, tokens=10, seconds=0.0).scores["perplexity"] == math.inf
    assert math.isnan(Score(nats=math.nan, tokens=10, seconds=0.0).perplexity)


@pytest.mark.parametrize("position", ["transformer_xl", "shortformer", "rotary", "none"])
@pytest.mark.parametrize("window", [3, 8])
def test_a_memory_of_the_whole_text_is_a_plain_full_pass(position, window):
    model, documents = build_model(FloaterForCausalLM, position), texts((4, 9, 3), (7,), (2, 2))
    whole = causal_score(model, documents, window=64, stride=1, begin=BEGIN)
    actual = remembering_score(model, documents, window=window, memory=32, begin=BEGIN, max_tokens=80)
    assert actual.tokens == whole.tokens == 27
    # angles are of single precision
    assert actual.nats == pytest.approx(whole.nats, rel=1e-5)


@pytest.mark.parametrize("memory", [2, 5])
def test_a_shorter_memory_is_that_of_segments_one_by_one(memory):
    model, documents = build_model(FloaterForCausalLM, "transformer_xl").train(), texts((12, 6), (1,))
    actual = remembering_score(model, documents, window=5, memory=memory, begin=BEGIN)
    assert model.training
    nats = 0.0
    for document in documents:
        ids, held = np.concatenate([[BEGIN], *document]), Memory(memory)
        for start in range(0, len(ids) - 1, 5):
            part = torch.tensor(ids[start : start + 5])[None]
            with torch.no_grad():
                logits = model.eval()(part, memory=held).logits[0].log_softmax(-1)
            nats -= sum(float(logits[i, ids[start + i + 1]]) for i in range(min(5, len(ids) - 1 - start)))
    assert actual.nats == pytest.approx(nats, rel=1e-6)
    assert actual.tokens == 19
