"""Plugged and extended models: what must hold for every family, method and option."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

import floater
from floater.pretrained.extending import biases
from pretrained import zoo

from .families import CAUSAL, FAMILIES, IMAGES, Subject, noisy, subjects, texts
from .fuzzing import checked

TEXTS = tuple(name for name in FAMILIES if name not in (*IMAGES, "whisper"))
CLOSE = {"rtol": 1e-3, "atol": 1e-3}  # float32, weights of 0.3, sums of other lengths


@pytest.fixture(autouse=True, scope="module")
def few_steps_for_biases() -> Iterator[None]:
    """The random tables of a toy are no smooth biases; how well they are fitted does not matter."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(biases, "STEPS", 2)
        yield
    transformers.logging.set_verbosity(before)


def run(subject: Subject, model: Any, ids: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
    """Return logits of texts; of images with as many pixels as the model takes."""
    inputs: dict[str, Any] = {"input_ids": ids}
    if mask is not None:
        inputs["attention_mask"] = mask
    if subject.family in zoo.SEQ2SEQ:
        inputs["decoder_input_ids"] = zoo.text(1, 5, seed=2).expand(len(ids), -1)
    if subject.family == "whisper":
        speech = torch.randn(1, 4, 12, generator=torch.Generator().manual_seed(1)).repeat(len(ids), 1, 1)
        inputs = {"input_features": speech, "decoder_input_ids": ids}
    if subject.family in IMAGES:
        side = subject.extension.get("length", 8)
        inputs = {"pixel_values": torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))}
    return zoo.output(model, **inputs, **more)


def lengths_of(subject: Subject, draw: Any, rows: int) -> list[int]:
    """Draw lengths of texts, on both sides of the length that the model took before."""
    return [draw(st.integers(1, min(subject.new, subject.old + 40))) for _ in range(rows)]


@given(subjects(TEXTS), st.data())
@checked("Families: other rows and padding", 12)
def test_a_text_is_what_it_is_alone(subject: Subject, data: Any) -> None:
    """Neither the other texts of a batch nor padding change its numbers."""
    assume(not subject.by_batch)
    lengths = lengths_of(subject, data.draw, 3)
    # positions that count columns shift with padding on the left, in the original model too
    relative = subject.family in ("llama", "qwen2", "qwen3", "phi3", "gemma", "gpt_neox", "modernbert", "t5")
    left = relative and data.draw(st.booleans())
    ids, mask = texts(lengths, left)
    model = subject.build()
    together = run(subject, model, ids, mask)
    # logits of a target text, or of the whole text
    whole = subject.family in (*zoo.SEQ2SEQ, "bert", "deberta-v2")
    for row in range(len(lengths)):
        kept = mask[row].bool()
        alone = run(subject, model, ids[row : row + 1, kept])[0]
        torch.testing.assert_close(together[row] if whole else together[row, kept], alone, **CLOSE)


@given(subjects(CAUSAL), st.data())
@checked("Families: caches in chunks and their rows", 12)
def test_a_cache_in_chunks_is_the_whole(subject: Subject, data: Any) -> None:
    """Texts padded on the left, in chunks, their rows exchanged, chosen, repeated or cut between them."""
    assume(not subject.by_batch)
    rows = data.draw(st.integers(1, 3))
    longest = min(subject.new, subject.old + 30) - 18  # columns, with those of the chunks
    before = [data.draw(st.integers(1, longest)) for _ in range(rows)]
    ids, mask = texts(before, left=True)
    chunks = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    operation = data.draw(st.sampled_from(["none", "reorder", "select", "repeat", "crop"]))
    model = subject.build()
    cache = DynamicCache()
    step(model, ids, mask, 0, ids.shape[1], cache)
    chosen = torch.arange(rows)
    if operation == "reorder":
        chosen = torch.tensor(data.draw(st.permutations(range(rows))))
        cache.reorder_cache(chosen)
    elif operation == "select":
        chosen = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=3)))
        cache.batch_select_indices(chosen)
    elif operation == "repeat":
        cache.batch_repeat_interleave(2)
        chosen = chosen.repeat_interleave(2)
    elif operation == "crop":
        assume(min(before) > 1)
        removed = data.draw(st.integers(1, min(before) - 1))
        cache.crop(-removed)
        kept = ids.shape[1] - removed
        ids, mask = ids[:, :kept], mask[:, :kept]
    start = ids.shape[1]
    new, _ = texts([sum(chunks)] * len(chosen))
    ids = torch.cat((ids[chosen], new), 1)
    mask = torch.cat((mask[chosen], torch.ones_like(new)), 1)
    whole = step(model, ids, mask, 0, ids.shape[1], None)
    for chunk in chunks:
        stop = start + chunk
        part = step(model, ids, mask, start, stop, cache)
        torch.testing.assert_close(part, whole[:, start:stop], **CLOSE)
        start = stop


def step(model: Any, ids: Tensor, mask: Tensor, start: int, stop: int, cache: Any) -> Tensor:
    """Return logits of columns, at positions that count unpadded tokens where the model takes positions."""
    more: dict[str, Any] = {}
    if model.config.model_type not in ("bloom", "mpt"):
        more["position_ids"] = (mask[:, :stop].cumsum(1) - 1).clamp(min=0)[:, start:]
    inputs = {"input_ids": ids[:, start:stop], "attention_mask": mask[:, :stop]}
    return zoo.output(model, **inputs, past_key_values=cache, use_cache=cache is not None, **more)


@given(subjects(), st.data())
@checked("Families: short inputs, saved and loaded, new length", 12)
def test_changed_models_are_saved_whole_and_run_up_to_their_new_length(subject: Subject, data: Any) -> None:
    """Short inputs as before where this is said; the new length runs; a loaded copy has the same numbers."""
    model, summaries = subject.original(), []
    short, long = (texts([n, n])[0] for n in (min(9, subject.old), subject.new))
    plain = None
    for name, options in subject.changes:
        plain = run_images_alone(subject, model, short)
        summaries.append(getattr(floater, name)(model, **options))
        unchanged = options.get("start", "zero") == "zero" if name == "plug" else summaries[-1].unchanged
        if unchanged and plain is not None:
            after = run_images_alone(subject, model, short)
            assert torch.equal(after, plain), f"{name} changes short inputs"
    noisy(model)
    expected = run(subject, model, long)
    assert bool(expected.isfinite().all())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        chosen = {"attn_implementation": subject.attention} if subject.kernels else {}
        again = type(model).from_pretrained(folder, **chosen).eval()
    torch.testing.assert_close(run(subject, again, long), expected, rtol=1e-5, atol=1e-5)


def run_images_alone(subject: Subject, model: Any, ids: Tensor) -> Tensor | None:
    """Return what a model computes of short texts; None for images, whose old size is another model's."""
    return None if subject.family in IMAGES else run(subject, model, ids)


@given(subjects(), st.data())
@checked("Families: unplugged, kernels", 12)
def test_unplugging_leaves_nothing_and_kernels_agree(subject: Subject, data: Any) -> None:
    """A model that is unplugged is the one that it was, bit for bit; both kernels compute the same."""
    changes = tuple(change for change in subject.changes if change[0] == "plug")
    assume(changes)
    kept = Subject(subject.family, subject.attention, tuple(c for c in subject.changes if c[0] == "extend"))
    model, plain, ids = subject.build(), kept.build(), texts([subject.old // 2, 3])
    if subject.kernels and subject.family not in zoo.SEQ2SEQ:
        numbers = []
        for kernel in ("eager", "sdpa"):
            model.set_attn_implementation(kernel)
            numbers.append(run(subject, model, *ids))
        valid = ids[1].bool() if numbers[0].ndim == 3 and subject.family not in IMAGES else ...
        torch.testing.assert_close(numbers[0][valid], numbers[1][valid], **CLOSE)
        model.set_attn_implementation(subject.attention)
    floater.unplug(model)
    assert torch.equal(run(subject, model, *ids), run(subject, plain, *ids))
