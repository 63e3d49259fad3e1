import copy
import socket
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.text.bpe import for_prompts, load_bpe, train_bpe

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "der schnelle braune Fuchs springt über den faulen Hund",
    "the dog sleeps, the fox runs: don't wake the dog",
    "der Hund schläft, der Fuchs läuft; weck den Hund nicht",
]
PAD, BOS, EOS = 0, 1, 2
AWKWARD = "<s>a</s> <pad> e\u0301 \u2028 \x00 👩\u200d💻 Ġ don't ."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(CORPUS, 285)


@given(text=st.text())
@example(text="")
@example(text="  two before, two after  ")
@example(text="\n\ttab\r\n")
@example(text="a , b .  c !  n't")
@example(text=AWKWARD)
@settings(deadline=None)
def test_decoding_gives_the_text_back_up_to_nfc_and_surrounding_space(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert ids[-1] == EOS
    assert not {PAD, BOS, EOS} & set(ids[:-1])
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    assert decoded.strip() == unicodedata.normalize("NFC", text).strip()


def test_decoding_adds_no_space_of_its_own(tokenizer):
    assert tokenizer.decode(tokenizer("the dog .").input_ids, skip_special_tokens=True) == "the dog ."


def test_composed_and_decomposed_text_have_one_encoding(tokenizer):
    text = "über Ångström Çedille 각"
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert tokenizer(composed).input_ids == tokenizer(decomposed).input_ids


def test_a_word_has_one_encoding_wherever_it_stands(tokenizer):
    dog = tokenizer("dog", add_special_tokens=False).input_ids
    assert tokenizer("dog dog").input_ids == [*dog, *dog, EOS]


def test_special_tokens_and_their_ids(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD, BOS, EOS)
    assert tokenizer.convert_ids_to_tokens([PAD, BOS, EOS]) == ["<pad>", "<s>", "</s>"]
    assert tokenizer.unk_token is None


def test_merges_of_a_hand_made_corpus():
    # "Ġab" three times and "Ġac" once: first Ġ+a (4 times), then Ġa+b (3 times), then Ġa+c (once).
    corpus = ["ab ab", "ab ac"]
    assert len(train_bpe(corpus, 259)) == 259
    assert train_bpe(corpus, 260).convert_ids_to_tokens([259]) == ["Ġa"]
    assert train_bpe(corpus, 1000).convert_ids_to_tokens([259, 260]) == ["Ġa", "Ġab"]
    assert len(train_bpe(corpus, 1000)) == 261
    assert train_bpe(corpus, 1000, min_frequency=1).convert_ids_to_tokens([261]) == ["Ġac"]


def test_training_is_deterministic_and_takes_any_iterable(tokenizer):
    again = train_bpe((line for line in CORPUS), 285)
    assert len(again) == 285
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_no_length_limit(tokenizer):
    assert len(tokenizer("dog " * 5000).input_ids) > 5000
    assert tokenizer.model_max_length > 10**9


def test_batches_are_padded_and_masked(tokenizer):
    batch = tokenizer(["dog", "the quick brown fox"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    short, mask = batch.input_ids[0], batch.attention_mask[0]
    assert short == [token * keep for token, keep in zip(short, mask, strict=True)]
    assert short[sum(mask) - 1] == EOS


@pytest.mark.parametrize("size", [0, 256, 258])
def test_vocabulary_smaller_than_the_bytes_is_refused(size):
    with pytest.raises(ValueError, match=f"at least 259 .* got {size}"):
        train_bpe(CORPUS, size)


def test_one_string_is_not_a_corpus():
    with pytest.raises(TypeError, match="one str"):
        train_bpe("a sentence", 300)


def test_saved_tokenizer_loads_by_auto_tokenizer_without_network(tokenizer, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("no network is needed")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*CORPUS, AWKWARD, ""]:
        assert loaded(text).data == tokenizer(text).data
        ids = tokenizer(text).input_ids
        assert loaded.decode(ids) == tokenizer.decode(ids)
    assert len(loaded) == len(tokenizer)
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.model_max_length == tokenizer.model_max_length


def masked_text(tokenizer, text, word):
    """The tokens of a text in a training row, with <mask> in place of a word."""
    return ["<s>", *("<mask>" if token == f"Ġ{word}" else token for token in tokenizer(text).tokens())]


@pytest.mark.parametrize(
    "text", ["the dog sleeps", "dog, the fox", "the fox: dog", "the quick dog.", "wake the dog </s> the dog"]
)
def test_a_masked_text_has_the_tokens_of_a_training_row(tokenizer, tmp_path, text):
    whole = copy.deepcopy(tokenizer)
    whole.add_special_tokens({"mask_token": "<mask>"})
    for_prompts(whole, causal=False).save_pretrained(tmp_path)
    prompts = AutoTokenizer.from_pretrained(tmp_path)
    rows = [masked_text(tokenizer, line.strip(), "dog") for line in text.split("</s>")]
    expected = rows[0] + [token for row in rows[1:] for token in row[1:]]
    asked = text.replace("dog", "<mask>")
    assert [token.strip() for token in prompts(asked).tokens()] == expected
    assert len(prompts) == len(whole)
    assert load_bpe(tmp_path)(asked).data == whole(asked).data


def test_a_prompt_has_the_tokens_of_a_training_row_and_can_be_continued(tokenizer, tmp_path):
    for_prompts(tokenizer, causal=True).save_pretrained(tmp_path)
    prompts, loaded = AutoTokenizer.from_pretrained(tmp_path), load_bpe(tmp_path)
    whole = tokenizer("the dog <s> sleeps").input_ids
    begun = prompts("the dog").input_ids
    assert begun == [BOS, *whole[: len(begun) - 1]]
    continued = prompts.decode(whole[len(begun) - 1 :], skip_special_tokens=True)
    assert continued == " <s> sleeps", "the text <s> is no special token"
    assert loaded(AWKWARD).data == tokenizer(AWKWARD).data
    assert loaded.decode(whole) == tokenizer.decode(whole)


def test_load_takes_the_directory_or_the_file(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for path in (tmp_path, str(tmp_path), tmp_path / "tokenizer.json"):
        loaded = load_bpe(path)
        assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
        assert loaded(AWKWARD).data == tokenizer(AWKWARD).data


def test_load_refuses_what_is_no_tokenizer_of_this_task(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer\.json: no tokenizer can be read \(No such file"):
        load_bpe(tmp_path)
    with pytest.raises(DataError, match=r"absent: no tokenizer can be read \(No such file"):
        load_bpe(tmp_path / "absent")
    file = tmp_path / "tokenizer.json"
    for content in (b"", b"{}", b"\xff", b"[1,\n 2]"):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer \(") as caught:
            load_bpe(tmp_path)
        assert len(str(caught.value).splitlines()) == 1
    Tokenizer(models.BPE({"</s>": 0, "<pad>": 1}, [])).save(str(file))
    with pytest.raises(DataError, match=r"have the ids \[1, None, 0\]"):
        load_bpe(file)
