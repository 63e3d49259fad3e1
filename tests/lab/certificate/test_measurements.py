"""Losses, answers and needles of a certificate against passes without chunks, caches and parts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import floater
from floater.errors import DataError
from floater.lab.certificate import loss
from floater.lab.certificate.answers import answer
from floater.lab.certificate.needles import KINDS, TooShort, haystack
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer
from floater.lab.tasks.finetuning.text import special
from floater.lab.text.bpe import train_bpe

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = (
    *("stone", "river", "cloud", "meadow", "harbor", "window", "silver"),
    *("timber", "copper", "valley", "bridge", "garden", "engine", "shadow"),
)


def llama(**changes):
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES | {"intermediate_size": 48, "max_position_embeddings": 64} | changes)
    return LlamaForCausalLM(config).eval()


MODELS = {
    "llama": llama,
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=2)).eval(),
    "bloom": lambda: BloomForCausalLM(BloomConfig(vocab_size=60, hidden_size=32, n_layer=2, n_head=2)).eval(),
    "gemma2, whose logits have a cap": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SIZES, intermediate_size=48, head_dim=16, num_key_value_heads=1, final_logit_softcapping=0.1
        )
    ).eval(),
}


def ids(length, seed=0):
    return np.random.default_rng(seed).integers(5, 60, length)


def cross_entropy(model, row):
    """Return the loss of each token but the first, from the logits of all at once."""
    tokens = torch.from_numpy(row)[None]
    with torch.no_grad():
        logits = model(tokens).logits[0, :-1]
    return F.cross_entropy(logits, tokens[0, 1:], reduction="none").numpy()


@pytest.mark.parametrize("name", MODELS)
def test_chunks_of_the_head_have_the_losses_of_the_whole(name, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", 7)
    torch.manual_seed(0)
    model, row = MODELS[name](), ids(30)
    body = model.base_model
    read = loss.causal_read(model, row)
    assert np.isnan(read.nats[0])
    np.testing.assert_allclose(read.nats[1:], cross_entropy(model, row), atol=1e-5)
    assert model.base_model is body


def test_tokens_beyond_the_trained_length_are_read_in_windows_of_it():
    model, row, old = llama(), ids(50), 16
    row[0] = 1
    nats = loss.causal_windows(model, row, 1, old).nats
    assert np.isnan(nats[:old]).all()
    for position in range(old, 50):
        stop = min(old + (position - old) // 8 * 8 + 8, 50)
        window = np.concatenate([row[:1], row[stop - old + 1 : stop]])
        expected = cross_entropy(model, window)[position - stop]
        assert nats[position] == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of the words of the generated texts, with a mask and without special tokens around."""
    folder = tmp_path_factory.mktemp("tokenizer")
    sentences = (
        "Question: Which special number is the pass key of the box? Answer: One of the variables is hidden."
    )
    tokenizer = train_bpe([text(0), *[sentences] * 50], vocab_size=900)
    tokenizer.save_pretrained(folder)
    llama(vocab_size=len(tokenizer)).save_pretrained(folder)
    return load_tokenizer(str(folder))


def test_parts_of_a_masked_text_have_the_same_masked_tokens(tokenizer):
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    torch.manual_seed(0)
    config = BertConfig(
        **SIZES | {"vocab_size": len(tokenizer)}, intermediate_size=48, max_position_embeddings=32
    )
    model = BertForMaskedLM(config).eval()
    row = np.random.default_rng(0).integers(10, 60, 30)
    whole = loss.masked_read(model, tokenizer, row, 32, 3).nats
    parts = loss.masked_read(model, tokenizer, row, 12, 3).nats
    assert np.isfinite(whole).sum() == round(0.15 * 30)
    np.testing.assert_array_equal(np.isfinite(whole), np.isfinite(parts))
    # the first part is a text of its own
    before, after = special(tokenizer)
    room = 12 - len(before) - len(after)
    first = np.flatnonzero(np.isfinite(parts[:room]))
    inputs = row.copy()
    inputs[np.isfinite(whole)] = tokenizer.mask_token_id
    tokens = [*before, *inputs[:room].tolist(), *after]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, len(before) :][:room]
    expected = F.cross_entropy(logits, torch.from_numpy(row[:room]), reduction="none").numpy()
    np.testing.assert_allclose(parts[first], expected[first], atol=1e-5)


@pytest.mark.parametrize("method", [None, "self_extend", "yarn", "log_n"])
def test_answers_from_cached_keys_are_those_of_whole_texts(method):
    model = llama()
    torch.nn.init.normal_(model.lm_head.weight)
    if method is not None:
        floater.extend(model, 128, method)
    text, questions = ids(90).tolist(), [ids(4, seed).tolist() for seed in range(3)]
    result = answer(model, text, questions, [6, 3, 6])
    for question, count, generated in zip(questions, (6, 3, 6), result.ids, strict=True):
        row = [*text, *question]
        for _ in range(count):
            with torch.no_grad():
                row.append(int(model(torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
        expected = row[len(text) + len(question) :]
        end = model.config.eos_token_id
        stop = expected.index(end) + 1 if end in expected else count
        assert generated == expected[:stop]
    per_token = 2 * 2 * 32 * 4  # keys and values, layers, width, bytes
    assert result.cache == pytest.approx(90 * per_token / 2**20, abs=0.06)


def text(seed, sentences=400):
    rng = np.random.default_rng(seed)
    words = [*WORDS, *(f"{a}{b}" for a in WORDS for b in WORDS if len(a + b) <= 10)]
    rows = (" ".join(rng.choice(words, 16)) for _ in range(sentences))
    letters = (f"w{chr(97 + i // 10)}{chr(97 + i % 10)}xyz" for i in range(100))
    return ". ".join([" ".join(letters), *rows]) + "."


@settings(max_examples=3)
@given(length=st.integers(1200, 1800), seed=st.integers(0, 2**31), kind=st.sampled_from([*KINDS]))
def test_every_needle_is_in_a_text_of_at_most_the_length(tokenizer, length, seed, kind):
    hay = haystack(kind, tokenizer, text(seed), length, [seed])
    read = tokenizer.decode(hay.ids)
    assert {question.task for question in hay.questions} == {*KINDS[kind]}
    for question in hay.questions:
        assert len(hay.ids) + len(question.ids) + question.tokens <= length
        assert all(each in read for each in question.expected)
        assert question.hits(", ".join(question.expected)) == len(question.expected)
        assert question.hits("nothing of this") == 0
        if question.task == "common words":
            counts = {word: read.count(f". {word} ") for word in {*read.split()} if word.isalpha()}
            least = min(counts[word] for word in question.expected)
            assert all(count < least for word, count in counts.items() if word not in question.expected)
        if question.task == "tracking":  # each variable is defined before it is used
            slots = [read.index(f"VAR {name} =") for name in question.expected]
            assert slots == sorted(slots)
        if question.task == "multi-value":
            assert all(read.count(value) == 1 for value in question.expected)


def test_a_text_that_would_be_truncated_is_refused(tokenizer):
    with pytest.raises(DataError, match="has too few tokens"):
        haystack("text", tokenizer, text(0, 10), 4000, [0])
    with pytest.raises(DataError, match="different words"):
        haystack("words", tokenizer, "one word. " * 500, 2000, [0])


@pytest.mark.parametrize("length", [0, 16, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_a_length_without_room_for_the_needles_names_the_least_one(tokenizer, kind, length):
    with pytest.raises(
        TooShort, match=rf"the needles of '{kind}' need \d+ tokens, more than {length}$"
    ) as error:
        haystack(kind, tokenizer, text(0), length, [0])
    least = error.value.least
    hay = haystack(kind, tokenizer, text(0), least, [0])
    assert least - len(hay.ids) == max(96, *(len(each.ids) + each.tokens for each in hay.questions))
    with pytest.raises(TooShort):
        haystack(kind, tokenizer, text(0), least - 1, [0])


def test_a_tokenizer_that_cuts_texts_is_noticed(tokenizer, monkeypatch):
    whole = type(tokenizer).__call__

    def cut(self, words, **options):
        encoded = whole(self, words, **options)
        encoded["input_ids"] = encoded["input_ids"][:300]
        return encoded

    monkeypatch.setattr(type(tokenizer), "__call__", cut)
    with pytest.raises(
        DataError, match=r"does not give back .*, a needle of 'filler': it cuts texts, or has no tokens"
    ):
        haystack("filler", tokenizer, "", 1500, [0])
