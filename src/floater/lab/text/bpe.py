"""Joint byte-level BPE: one vocabulary for source and target, with no unknown token."""

import copy
import os
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.text.ragged import Ragged

PAD, BOS, EOS = SPECIALS = ("<pad>", "<s>", "</s>")
MASK = "<mask>"
BYTES = 256
TEXTS = f"$A {EOS}", f"$A {EOS} $B:1 {EOS}:1"
"""Templates of a text and of a pair of texts."""
TOKENIZER_FILE = "tokenizer.json"
ENCODED_AT_ONCE = 100_000


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 2,
    pretokenized: bool = False,
    lowercase: bool = False,
) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE vocabulary from text.

    Byte pair encoding is that of Sennrich, Haddow and Birch (2016, section 3.2), over bytes instead of
    characters (Radford et al. 2019, section 2.2), so that every string has an encoding. Text is first
    normalised to Unicode form NFC. A word at the start of a sentence gets the same token as after a space.
    `</s>` is appended to every encoding. `<pad>`, `<s>` and `</s>` have ids 0, 1 and 2; where a text
    contains these strings, they are encoded as text. Decoding with `skip_special_tokens=True` returns the
    text, up to NFC and the whitespace around it.

    Args:
        texts: sentences of all languages together.
        vocab_size: number of tokens, bytes and special tokens included; at least 259. A small corpus may
            have too few pairs to merge, so the result may have fewer tokens; `len` of it is their number.
        min_frequency: minimum count of a pair that is merged.
        pretokenized: True if the texts are tokens separated by spaces, as Moses writes them. Words are then
            separated by spaces, as in the code of Sennrich et al., instead of being runs of letters, digits
            or signs.
        lowercase: True to encode texts in lower case, also those of later tasks.

    Returns:
        A tokenizer with `save_pretrained`; `load_bpe` reads it back.

    Raises:
        ValueError: `vocab_size` is too small for the bytes and the special tokens.
        TypeError: `texts` is one string.

    Example:
        >>> tokenizer = train_bpe(["low low low lower", "newest newest widest widest"], vocab_size=265)
        >>> ids = tokenizer("lowest").input_ids
        >>> tokenizer.convert_ids_to_tokens(ids)
        ['Ġlow', 'est', '</s>']
        >>> tokenizer.decode(ids, skip_special_tokens=True)
        'lowest'
    """
    if vocab_size < BYTES + len(SPECIALS):
        raise ValueError(
            f"vocab_size must be at least {BYTES + len(SPECIALS)} ({BYTES} bytes and {len(SPECIALS)} "
            f"special tokens), got {vocab_size}"
        )
    if isinstance(texts, str):
        raise TypeError("texts must be an iterable of sentences, got one str")
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.Sequence([normalizers.NFC(), *[normalizers.Lowercase()] * lowercase])
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if pretokenized:
        words = pre_tokenizers.Split(" ", "merged_with_next")
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
        )
    bpe.decoder = text_decoder()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = template(*TEXTS)
    return wrapped(bpe)


def load_bpe(path: str | os.PathLike[str]) -> PreTrainedTokenizerFast:
    """Load a tokenizer of `train_bpe`, also from what `for_prompts` returned.

    Args:
        path: directory in which it was saved, or the `tokenizer.json` file itself.

    Returns:
        The tokenizer, which encodes texts as the trained one.

    Raises:
        DataError: there is no such file, it is not a tokenizer, or the ids of `<pad>`, `<s>` and `</s>` in
            it are not 0, 1 and 2.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     _ = train_bpe(["low lower lowest"], vocab_size=262).save_pretrained(run)
        ...     len(load_bpe(run))
        262
    """
    file = Path(path) / TOKENIZER_FILE if Path(path).is_dir() else Path(path)
    try:
        bpe = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file}: no tokenizer can be read ({error.strerror or error})") from error
    except Exception as error:  # tokenizers raises a bare Exception for a file it cannot parse
        raise DataError(f"{file}: not a tokenizer ({' '.join(str(error).split())})") from error
    ids = [bpe.token_to_id(token) for token in SPECIALS]
    if ids != list(range(len(SPECIALS))):
        raise DataError(f"{file}: not a tokenizer of this task: {', '.join(SPECIALS)} have the ids {ids}")
    bpe.post_processor = template(*TEXTS)
    if isinstance(bpe.model, models.BPE):
        bpe.decoder = text_decoder()
    tokenizer = wrapped(bpe)
    if MASK in tokenizer.get_added_vocab():
        tokenizer.mask_token = MASK
    return tokenizer


def for_prompts(tokenizer: PreTrainedTokenizerFast, *, causal: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer as it is saved with a language model, for the pipelines of Transformers.

    A text begins with `<s>`, as a training row does. No `</s>` follows the prompt of a causal model, which is
    to continue it; decoding keeps the space before the first word, as the tokens may be a continuation. In
    the text of a masked model, `<mask>` and the other special tokens are recognised.

    Args:
        tokenizer: tokenizer of the training text; it is not changed.
        causal: True for a causal model, False for a masked one.

    Example:
        >>> tokenizer = train_bpe(["low low low lower", "newest newest widest widest"], vocab_size=265)
        >>> for_prompts(tokenizer, causal=True)("lowest").tokens()
        ['<s>', 'Ġlow', 'est']
    """
    prompts = copy.deepcopy(tokenizer)
    inner, end = prompts.backend_tokenizer, "" if causal else f" {EOS}"
    inner.post_processor = template(f"{BOS} $A{end}", f"{BOS} $A{end} $B{end}")
    if causal:
        spaced = decoders.Sequence([decoders.Replace(Regex("^"), " "), decoders.Fuse()])  # between words
        inner.decoder = decoders.ByteLevel() if isinstance(inner.model, models.BPE) else spaced
    else:
        prompts.split_special_tokens = False
        # the space before a special token is no token, as in training rows
        special = {"eos_token": EOS, "mask_token": MASK}
        prompts.add_special_tokens(
            {name: AddedToken(token, lstrip=True, special=True) for name, token in special.items()}
        )
        if isinstance(inner.pre_tokenizer, pre_tokenizers.ByteLevel):
            # a space is put before the text, not before each part after a special token
            first = pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False)
            words = pre_tokenizers.ByteLevel(add_prefix_space=False)
            inner.pre_tokenizer = pre_tokenizers.Sequence([first, words])
    return prompts


def text_decoder() -> decoders.Sequence:
    """Return the decoder of a whole text, without the space that the pre-tokenizer puts before it."""
    return decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])


def template(single: str, pair: str) -> processors.TemplateProcessing:
    """Return the step of a tokenizer that adds special tokens to a text, $A, or to a pair of texts."""
    ids = [(token, number) for number, token in enumerate(SPECIALS) if token in single]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def encode(tokenizer: PreTrainedTokenizerFast, lines: Iterable[str], **options: Any) -> Ragged:
    """Return the token ids of each line, with the end token, as int32.

    Args:
        tokenizer: tokenizer with any vocabulary.
        lines: texts.
        **options: arguments of the tokenizer's call.
    """
    options["return_attention_mask"] = False
    lines, flat, lengths = iter(lines), bytearray(), [np.zeros(0, dtype=np.int64)]
    while part := list(islice(lines, ENCODED_AT_ONCE)):
        ids = tokenizer(part, **options)["input_ids"]
        flat += np.fromiter(chain.from_iterable(ids), dtype=np.int32).tobytes()
        lengths.append(np.array([len(row) for row in ids], dtype=np.int64))
    return Ragged(np.frombuffer(flat, dtype=np.int32), np.cumsum(np.concatenate(lengths)))


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer with `SPECIALS` as a tokenizer of Hugging Face's Transformers."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        # A corpus may contain "<s>" as text, as in HTML; it must not become the special token.
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
    )
