"""Joint byte-level BPE: one vocabulary for source and target, with no unknown token."""

import os
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.text.ragged import Ragged

PAD, BOS, EOS = SPECIALS = ("<pad>", "<s>", "</s>")
MASK = "<mask>"
BYTES = 256
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
    # The pre-tokenizer puts a space before the first word; Strip removes it.
    bpe.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}",
        pair=f"$A {EOS} $B:1 {EOS}:1",
        special_tokens=[(EOS, SPECIALS.index(EOS))],
    )
    return wrapped(bpe)


def load_bpe(path: str | os.PathLike[str]) -> PreTrainedTokenizerFast:
    """Load a tokenizer of `train_bpe`.

    Args:
        path: directory in which it was saved, or the `tokenizer.json` file itself.

    Returns:
        The tokenizer, equal to the saved one.

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
    tokenizer = wrapped(bpe)
    if MASK in tokenizer.get_added_vocab():
        tokenizer.mask_token = MASK
    return tokenizer


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
