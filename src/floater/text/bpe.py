"""Joint byte-level BPE: one vocabulary for source and target, with no unknown token."""

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError

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

    Byte pair encoding is of Sennrich, Haddow and Birch (2016, section 3.2); over bytes instead of
    characters (Radford et al. 2019, section 2.2) every string has an encoding. Text is first put in
    Unicode form NFC. A word at the start of a sentence gets the token it has after a space. `</s>` is
    appended to every encoding. `<pad>`, `<s>` and `</s>` have ids 0, 1 and 2; written out in a text they
    are text. Decoding, with `skip_special_tokens=True`, gives the text back up to NFC and the whitespace
    around it.

    Args:
        texts: the sentences of all languages together.
        vocab_size: tokens wanted, bytes and special tokens included; at least 259. A small corpus may have
            too few pairs to merge: `len` of the result is the number reached.
        min_frequency: a pair seen less often than this is not merged.
        pretokenized: the texts are tokens with spaces between them, as Moses makes them; words are then what
            is between spaces, as in the code of Sennrich et al., instead of runs of letters, digits or signs.
        lowercase: encode texts in lower case, those of later tasks, too.

    Returns:
        A tokenizer with `save_pretrained`; `load_bpe` reads it back.

    Raises:
        ValueError: `vocab_size` does not hold the bytes and the special tokens.
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
    # The pre-tokenizer puts a space before the first word; Strip takes it off again.
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
    """Load a tokenizer that `train_bpe` made.

    Args:
        path: the directory it was saved in, or the `tokenizer.json` file itself.

    Returns:
        The tokenizer, equal to the one saved.

    Raises:
        DataError: there is no such file, it is not a tokenizer, or `<pad>`, `<s>` and `</s>` do not have
            the ids 0, 1 and 2 in it.

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
    made = wrapped(bpe)
    if MASK in made.get_added_vocab():
        made.mask_token = MASK
    return made


def encode(tokenizer: PreTrainedTokenizerFast, lines: Sequence[str], **options: Any) -> list[np.ndarray]:
    """Return the token ids of each line, with the end token, as int32.

    Millions of lines fit into memory: lists of Python numbers would take ten times as much.

    Args:
        tokenizer: of any vocabulary.
        lines: texts.
        **options: of the tokenizer's call.
    """
    options["return_attention_mask"] = False
    rows: list[np.ndarray] = []
    for start in range(0, len(lines), ENCODED_AT_ONCE):
        ids = tokenizer(list(lines[start : start + ENCODED_AT_ONCE]), **options)["input_ids"]
        flat = np.fromiter(chain.from_iterable(ids), dtype=np.int32)
        rows += np.split(flat, np.cumsum([len(row) for row in ids])[:-1])
    return rows


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer with `SPECIALS` as Hugging Face's Transformers have it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        # A corpus may hold "<s>" as text (HTML does); it must not become the special token.
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
    )
