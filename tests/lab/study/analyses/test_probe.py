"""The linear probe and the detection of moved words, on what is known beforehand."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.study.analyses import (
    Options,
    curves,
    detect,
    draw,
    linear_probe,
    load_subject,
    probe,
)
from floater.lab.study.analyses.reordering import move
from floater.lab.study.analyses.subject import Subject, run_tokens
from floater.lab.text.bpe import train_bpe
from floater.positions import Positions
from floater.transformer import (
    FloaterConfig,
    FloaterForConditionalGeneration,
    FloaterModel,
)
from floater.transformer.attention import SharedInputs
from floater.transformer.events import EventsConfig, FloaterForEvents
from floater.transformer.uncast import Uncast

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}


def build_model(position: str, kind: Any = FloaterModel, **more: Any) -> Any:
    torch.manual_seed(0)
    config = FloaterConfig(**SMALL | {"vocab_size": 50, "training_length": 32} | more, position=position)
    return kind(config).eval()


def test_a_probe_finds_what_is_linear_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(40, 16, 8, generator=generator)
    position = torch.arange(16.0).view(1, 16, 1)
    assert linear_probe((noise + position)[10:], (noise + position)[:10]).r2 > 0.9
    assert linear_probe(noise[10:], noise[:10]).r2 < 0.05
    # a value that tells odd from even positions is no line through them
    parity = torch.where(position % 2 == 0, 1.0, -1.0).expand(40, 16, 1)
    assert linear_probe(parity[10:], parity[:10]).r2 < 0.05
    # half a token off, everywhere: R2 from the variance of 0..15, (16^2 - 1) / 12
    actual = linear_probe(position.expand(9, 16, 1), (position + 0.5).expand(9, 16, 1))
    assert actual.error == pytest.approx(0.5, abs=0.02)
    assert actual.r2 == pytest.approx(1 - 0.25 / (255 / 12), abs=1e-3)


def test_positions_are_read_where_they_are_put_in() -> None:
    actual = probe(build_model("sinusoidal"), rows=120)
    assert list(actual.fits) == ["input", "block 1", "block 2"]
    assert actual.fits["input"].r2 > 0.6
    nothing = probe(build_model("none"), rows=120)
    assert all(fit.r2 < 0.05 for fit in nothing.fits.values())
    assert (nothing.rows, nothing.held_out, nothing.positions) == (90, 30, 32)


def test_states_are_those_of_the_blocks() -> None:
    model = build_model("rotary", FloaterForConditionalGeneration, decoder_layers=1)
    ids = torch.arange(10)[None]
    states = run_tokens(model, ids)
    assert torch.equal(states[-1], model.encode(ids).last_hidden_state)
    assert torch.equal(states[0], model.embedding(ids) * 32**0.5)
    assert len(states) == 3


@torch.no_grad()
def test_states_of_a_shared_block_are_those_of_its_steps() -> None:
    model, ids = build_model("none", share_layers=True), torch.arange(10)[None]
    assert list(probe(model, 8, rows=8).fits) == ["input", "block 1", "block 2"]
    entered, first, second = run_tokens(model, ids)
    state = model.encoder.position.prepare(Positions.arange(10))
    for before, after in ((entered, first), (first, second)):
        torch.testing.assert_close(
            model.encoder.blocks[0](before, SharedInputs(model.encoder.position, Uncast(state))), after
        )
    torch.testing.assert_close(second, model(ids).last_hidden_state)


def test_a_tokenizer_that_takes_a_line_for_a_word_finds_no_sentence(tmp_path: Path) -> None:
    whole = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=whole).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"0 of the \d+ lines have 6 to 49 words"):
        detect(Subject("mine", build_model("sinusoidal"), str(tmp_path)), LINES)


def test_sentences_beyond_the_models_positions_are_left_out(tmp_path: Path) -> None:
    """One sentence has more tokens than there are positions; without a bound it stays."""
    lines = [*LINES, *(f"{line} w{i}" for i, line in enumerate(LINES)), " ".join(["quizzical"] * 20)]
    of = with_tokenizer(tmp_path, build_model("learned", vocab_size=300), LINES)
    tokens = len(of.tokenizer()(lines[-1])["input_ids"])
    assert tokens > 32 > max(len(ids) for ids in of.tokenizer()(lines[:-1])["input_ids"])
    actual = detect(of, lines, epochs=1)
    assert (actual.too_long, actual.sentences + actual.held_out) == (1, len(set(lines)) - 1)
    said = draw(of, "reordering", Options(text=lines)).text
    assert said.endswith("; sentences excluded because they exceed the model's positions: 1")
    unbounded = detect(
        Subject("mine", build_model("sinusoidal", vocab_size=300), str(tmp_path)), lines, epochs=1
    )
    assert (unbounded.too_long, unbounded.sentences + unbounded.held_out) == (0, len(set(lines)))
    config = BertConfig(**SMALL, vocab_size=300, max_position_embeddings=40)
    assert detect(Subject("bert", BertModel(config), str(tmp_path)), lines, epochs=1).too_long == 1
    few = Subject("mine", build_model("learned", vocab_size=300, training_length=4), str(tmp_path))
    with pytest.raises(
        DataError, match=r"0 of the \d+ lines have 6 to 49 words of no more than 4 tokens and"
    ):
        detect(few, lines)


@torch.no_grad()
def test_a_model_of_events_shows_its_positions_and_reads_no_text(tmp_path: Path) -> None:
    config = EventsConfig.preset("tiny", types=["a", "b"], training_length=16)
    FloaterForEvents(config).save_pretrained(tmp_path / "model")
    of = load_subject(tmp_path)
    assert isinstance(of.model, FloaterForEvents)
    assert curves(of, points=3)["block 1 query"].positions.tolist() == [0, 16, 32]
    with pytest.raises(DataError, match="reads types, not text"):
        probe(of, 8, rows=8)


def test_text_that_is_too_short_is_told(tmp_path: Path) -> None:
    of = with_tokenizer(tmp_path, build_model("learned", vocab_size=300), LINES)
    with pytest.raises(DataError, match=r"the text has \d+ tokens; a probe over 32 positions needs 256"):
        probe(of, text=["w1 w2 w3"])
    assert probe(of, 8, LINES, rows=20).text == "text"


def test_text_that_the_tokenizer_does_not_know_is_refused(tmp_path: Path) -> None:
    of = with_tokenizer(tmp_path, build_model("learned", vocab_size=300), LINES)
    other = ["w w w w w w w w"] * 100
    with pytest.raises(DataError, match=r"tokens are the same, number \d+: mine does not know"):
        probe(of, 8, other)
    with pytest.raises(DataError, match=r"the text has 0 tokens"):
        probe(of, 8, ["", " "])


@given(st.integers(3, 60), st.integers(0, 2**32 - 1))
def test_a_move_takes_one_word_elsewhere(words: int, seed: int) -> None:
    order, inserted, original = move(words, np.random.default_rng(seed))
    assert sorted(order) == list(range(words))
    word = order[inserted]
    assert word != inserted
    # without the word all others are in order; it stood right before the word that `original` points at
    rest = [other for other in order if other != word]
    assert rest == sorted(rest)
    assert order[original] == word + 1


LINES = [" ".join(f"w{(start + i) % 40}" for i in range(9 + start % 3)) for start in range(40)]


def with_tokenizer(folder: Path, model: Any, lines: list[str]) -> Subject:
    train_bpe(lines, 300).save_pretrained(folder)
    return Subject("mine", model, str(folder))


def test_too_few_sentences_are_told(tmp_path: Path) -> None:
    lines = ["a b c d e f", "a b c d e", "a b c d e f", "a b c d e g"]
    of = with_tokenizer(tmp_path, build_model("sinusoidal", vocab_size=300), lines)
    with pytest.raises(DataError, match="2 of the 4 lines have 6 to 49 words and are no repetition"):
        detect(of, lines)


def test_pointers_find_what_the_states_tell_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words are numbered in the order of the line: a search finds which one was moved, and from where."""
    draw, words = random.Random(0), 8
    lines = [" ".join(f"{chr(97 + i)}{draw.choice('xyz')}" for i in range(words)) for _ in range(300)]
    of = with_tokenizer(tmp_path, build_model("none", vocab_size=300), lines)
    tokenizer = of.tokenizer()

    def telling(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        states = torch.zeros(*ids.shape, 1 + 2 * words)
        for row, tokens in zip(states, ids.tolist(), strict=True):
            text = tokenizer.convert_ids_to_tokens(tokens)
            starts = [i for i, token in enumerate(text) if token.startswith("Ġ") or (i == 0)]
            order = [ord(word[0]) - 97 for word in tokenizer.decode(tokens, skip_special_tokens=True).split()]
            # of two neighbours that changed places each may have been moved: the states tell both
            for slot in range(words):
                rest = order[:slot] + order[slot + 1 :]
                if rest == sorted(rest) and order[slot] + 1 < words:
                    row[starts[slot], 0] += 1
                    row[starts[slot], 1 + order.index(order[slot] + 1)] = 1
            for slot in range(words):
                row[starts[slot], 1 + words + slot] = 1
        return [states]

    monkeypatch.setattr("floater.lab.study.analyses.reordering.run_tokens", telling)
    actual = detect(of, lines, epochs=60)
    # of 56 moves 12 exchange neighbours, and half of those can be taken for the other one
    assert actual.inserted > 0.8
    assert actual.both > 0.7
    assert actual.chance == pytest.approx(1 / (words - 1))  # the last one never moves

    monkeypatch.setattr(
        "floater.lab.study.analyses.reordering.run_tokens",
        lambda model, ids, mask: [torch.zeros(*ids.shape, 4)],
    )
    nothing = detect(of, lines, epochs=3)
    # of 60 sentences: the most frequent place, and three standard deviations
    assert nothing.inserted < 1 / 7 + 3 * (6 / 49 / 60) ** 0.5


def test_a_folder_without_a_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="holds no trained model"):
        load_subject(tmp_path)
    with pytest.raises(DataError, match="there is no such directory"):
        load_subject(tmp_path / "none")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="is neither a directory nor a checkpoint in the cache"):
        load_subject("no/such-checkpoint-anywhere")
