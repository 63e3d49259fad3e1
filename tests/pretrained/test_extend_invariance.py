"""A text has the same logits alone, beside others, with padding, packed with others and with cached keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Cache, DynamicCache, ModernBertConfig, ModernBertForMaskedLM, StaticCache

import floater

from . import zoo
from .extended import BIASES, ROTARY, build, noisy
from .test_extend import TABLES
from .tiny import tiny

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")

GROUPED = {"window": 5, "group": 8, "temperature": True}
METHODS: list[tuple[str, dict[str, Any]]] = [("clex", {}), ("self_extend", GROUPED), ("log_n", {})]
CONFIGURED = ("linear", "ntk", "dynamic", "yarn", "longrope", "llama3")
CASES = [(name, *case) for name in ROTARY for case in METHODS]
CASES += [("llama", method, {}) for method in CONFIGURED] + [("bloom", None, {}), ("mpt", None, {})]

LONG, SHORT, MORE = 100, 20, 120

CACHES: dict[str, Callable[[Any], Cache]] = {
    "dynamic": lambda model: DynamicCache(),
    "windows": lambda model: DynamicCache(config=model.config),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=128),
}


def close(actual: Tensor, expected: Tensor) -> None:
    # logits of order one after products of other shapes, and rotations by other angles
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-4)


def padded(text: Tensor, length: int, left: bool) -> tuple[Tensor, Tensor]:
    """A row of ids and its mask."""
    row, mask = torch.full((1, length), zoo.PADDING), torch.zeros(1, length, dtype=torch.long)
    where = slice(length - text.shape[1], None) if left else slice(text.shape[1])
    row[:, where], mask[:, where] = text, 1
    return row, mask


def beside(text: Tensor, other: Tensor, left: bool) -> tuple[Tensor, Tensor]:
    rows = [padded(each, max(text.shape[1], other.shape[1]), left) for each in (text, other)]
    ids, mask = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return ids, mask


def unpadded_positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


def alone(model: Any, text: Tensor) -> Tensor:
    return zoo.output(model, input_ids=text, **({} if encoder(model) else {"use_cache": False}))


def encoder(model: Any) -> bool:
    return model.config.model_type == "modernbert"


def steps(model: Any, cache: Cache, cuts: Sequence[int], ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The logits of a text that is read in parts; a mask shows padding on the left."""
    parts = []
    for begin, end in itertools.pairwise(cuts):
        more = {} if mask is None else {"attention_mask": mask[:, :end]}
        if mask is not None and model.config.model_type not in BIASES:
            more["position_ids"] = unpadded_positions(mask)[:, begin:end]
        parts.append(zoo.output(model, input_ids=ids[:, begin:end], past_key_values=cache, **more))
    return torch.cat(parts, 1)


def extended(name: str, method: str | None, options: dict[str, Any]) -> Any:
    model = build(name)
    if name != "gemma2":
        model.set_attn_implementation("sdpa")
    floater.extend(model, 128, method, **options)
    noisy(model)
    return model


@pytest.mark.parametrize(("name", "method", "options"), CASES)
def test_neighbours_and_padding(name: str, method: str | None, options: dict[str, Any]) -> None:
    model = extended(name, method, options)
    long, short, other = zoo.text(1, LONG), zoo.text(1, SHORT, seed=1), zoo.text(1, MORE, seed=2)
    for text in (long, short):
        expected, count = alone(model, text), text.shape[1]
        for left in (False, True):
            if left and name in ("llama4", "modernbert"):  # their windows or temperature count padding
                continue
            ids, mask = beside(text, other, left)
            actual = zoo.output(model, input_ids=ids, attention_mask=mask)[:1]
            close(actual[:, -count:] if left else actual[:, :count], expected)
            if name not in ("bloom", "mpt", "modernbert"):
                actual = zoo.output(
                    model, input_ids=ids, attention_mask=mask, position_ids=unpadded_positions(mask)
                )[:1]
                close(actual[:, -count:] if left else actual[:, :count], expected)


@pytest.mark.parametrize(
    ("name", "method", "options"), [case for case in CASES if case[0] not in ("bloom", "mpt", "modernbert")]
)
def test_packed_documents(name: str, method: str, options: dict[str, Any]) -> None:
    """Transformers tells documents apart by their position_ids."""
    if name == "llama4":
        pytest.skip(
            "its chunks of local attention count from the begin of the row, also without an extension"
        )
    model, lengths = extended(name, method, options), (LONG, 24, 70)
    texts = [zoo.text(1, length, seed=seed) for seed, length in enumerate(lengths)]
    at = torch.cat([torch.arange(length) for length in lengths])[None]
    actual = zoo.output(model, input_ids=torch.cat(texts, 1), position_ids=at, use_cache=False)
    for part, text in zip(actual.split(lengths, 1), texts, strict=True):
        close(part, alone(model, text))


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize(("name", "method", "options"), [case for case in CASES if case[0] != "modernbert"])
def test_parts_with_cached_keys(name: str, method: str | None, options: dict[str, Any], kind: str) -> None:
    """Chunks and single tokens, within the old length and across it; also of rows with padding."""
    model, text, other = extended(name, method, options), zoo.text(1, LONG), zoo.text(1, MORE, seed=2)
    expected = alone(model, text)
    cuts = (0, 20, 21, 28, 50, 61, *range(62, 68), LONG)
    close(steps(model, CACHES[kind](model), cuts, text), expected)
    if name == "llama4" or (name, kind) == ("bloom", "static"):
        return  # as above; BLOOM takes no mask with a static cache, also without an extension
    ids, mask = beside(text, other, left=True)
    close(steps(model, CACHES[kind](model), (0, 28, 29, 70, 90, 91, MORE), ids, mask)[:1, -LONG:], expected)


@settings(max_examples=25)
@given(
    st.sampled_from([("llama", "self_extend"), ("gemma3", "self_extend"), ("gpt_neox", "log_n")]),
    st.lists(st.integers(1, MORE), min_size=2, max_size=3),
    st.booleans(),
    st.lists(st.integers(1, MORE), max_size=4),
    st.integers(0, 99),
)
def test_any_rows_in_any_parts(
    case: tuple[str, str], lengths: list[int], named: bool, cuts: list[int], seed: int
) -> None:
    """With or without position_ids, which are then counted with padding, as the model does."""
    model = CACHE.setdefault(case, extended(*case, GROUPED if case[1] == "self_extend" else {}))
    longest = max(lengths)
    texts = [zoo.text(1, length, seed=seed + i) for i, length in enumerate(lengths)]
    rows = [padded(text, longest, left=True) for text in texts]
    ids, mask = (torch.cat(parts) for parts in zip(*rows, strict=True))
    cache, actual = DynamicCache(config=model.config), []
    ends = sorted({end for end in cuts if end < longest} | {longest})
    for begin, end in itertools.pairwise([0, *ends]):
        at = {"position_ids": unpadded_positions(mask)[:, begin:end]} if named else {}
        more = {"attention_mask": mask[:, :end], "past_key_values": cache, **at}
        actual.append(zoo.output(model, input_ids=ids[:, begin:end], **more))
    for row, text in zip(torch.cat(actual, 1), texts, strict=True):
        close(row[None, -text.shape[1] :], alone(model, text))


CACHE: dict[tuple[str, str], Any] = {}


@pytest.mark.parametrize(("method", "options"), METHODS[1:])
def test_documents_that_a_mask_tells_apart(method: str, options: dict[str, Any]) -> None:
    """In a model that reads both ways, one document is longer than in training and one is not."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = ModernBertConfig(
        **sizes, intermediate_size=20, vocab_size=40, pad_token_id=1, max_position_embeddings=64,
        global_attn_every_n_layers=1, cls_token_id=0, sep_token_id=2,
    )  # fmt: skip
    model: Any = ModernBertForMaskedLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    floater.extend(model, 128, method, **options)
    lengths = (LONG, 24)
    texts = [zoo.text(1, length, seed=seed) for seed, length in enumerate(lengths)]
    document = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))
    mask = (document[:, None] == document)[None, None]
    at = torch.cat([torch.arange(length) for length in lengths])[None]
    actual = zoo.output(model, input_ids=torch.cat(texts, 1), attention_mask=mask, position_ids=at)
    for part, text in zip(actual.split(lengths, 1), texts, strict=True):
        close(part, alone(model, text))


def test_log_n_counts_the_keys_of_a_window() -> None:
    """A query in a layer with a window sees no more keys than in training."""
    model, ids = zoo.build("mistral"), zoo.text(1, LONG)
    expected = zoo.output(model, input_ids=ids)
    floater.extend(model, 128, "log_n")
    assert torch.equal(zoo.output(model, input_ids=ids), expected)


def test_grouped_distances_do_not_change_the_first_tokens_of_a_long_text() -> None:
    model, ids = build("llama"), zoo.text(1, LONG)
    expected = zoo.output(model, input_ids=ids)
    floater.extend(model, 128, "self_extend")
    actual = zoo.output(model, input_ids=ids)
    old = 64
    close(actual[:, :old], expected[:, :old])
    assert (actual[:, old:] - expected[:, old:]).abs().max() > 1e-2


def test_t5_beside_others_and_with_cached_keys() -> None:
    model = build("t5")
    floater.extend(model, 128, trained=32)
    noisy(model)
    text, other, target = zoo.text(1, 60), zoo.text(1, 90, seed=1), zoo.text(1, 70, seed=2)
    expected = zoo.output(model, input_ids=text, decoder_input_ids=target)
    ids, mask = beside(text, other, left=False)
    targets = beside(target, zoo.text(1, 90, seed=3), left=False)[0]
    actual = zoo.output(model, input_ids=ids, attention_mask=mask, decoder_input_ids=targets)
    close(actual[:1, :70], expected)
    cache, parts = None, []
    for begin, end in ((0, 20), (20, 21), (21, 60), (60, 90)):
        with torch.no_grad():
            result = model(
                input_ids=ids, attention_mask=mask, decoder_input_ids=targets[:, begin:end],
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
        cache = result.past_key_values
        parts.append(result.logits)
    close(torch.cat(parts, 1)[:1, :70], expected)


@pytest.mark.parametrize("name", ["distilbert", "gpt2", "bart", "whisper", "siglip-text"])
def test_learned_tables_beside_others(name: str) -> None:
    model, old = zoo.build(name), TABLES[name]
    floater.extend(model, old + 16, "repeat")
    text, other = zoo.text(1, old + 2), zoo.text(1, old + 14, seed=1)
    ids, mask = beside(text, other, left=False)
    inputs: list[dict[str, Any]] = [{"input_ids": text}, {"input_ids": ids, "attention_mask": mask}]
    if name == "whisper":
        sound = zoo.inputs(name)["input_features"]
        inputs = [
            {"input_features": sound[:1], "decoder_input_ids": text},
            {"input_features": sound[:2], "decoder_input_ids": ids},
        ]
    elif name in zoo.SEQ2SEQ:
        inputs[0]["decoder_input_ids"], inputs[1]["decoder_input_ids"] = text, ids
    single, both = (zoo.output(model, **each)[:1] for each in inputs)
    close(both[:, : text.shape[1]], single)


@pytest.mark.parametrize("name", zoo.IMAGES)
def test_larger_images_beside_others(name: str) -> None:
    model, images = zoo.build(name), torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    floater.extend(model, 16)
    close(zoo.output(model, pixel_values=images)[:1], zoo.output(model, pixel_values=images[:1]))


def test_one_rotation_for_a_batch_says_so() -> None:
    """The forms that are not declared depend on the longest text, as Transformers computes them."""
    factors = {"short_factor": [1.0] * 3, "long_factor": [1.0, 2.0, 4.0]}
    for method, options in (
        ("clex", {"declared": False}),
        ("dynamic", {"declared": False}),
        ("longrope", factors),
    ):
        model = build("llama")
        report = floater.extend(model, 128, method, **options)
        noisy(model)
        assert report.by_longest
        assert "the longest text of a batch sets the rotation of all" in str(report)
        short = zoo.text(1, SHORT)
        ids, mask = beside(short, zoo.text(1, MORE, seed=1), left=False)
        change = zoo.output(model, input_ids=ids, attention_mask=mask)[:1, :SHORT] - alone(model, short)
        assert change.abs().max() > 2e-3
    assert not floater.extend(build("llama"), 128, "clex").by_longest


def test_log_n_counts_the_keys_of_the_source_with_and_without_padding() -> None:
    """Cross-attention without a mask counted the tokens of the decoder."""
    model = tiny("t5gemma")
    floater.extend(model, 128, "log_n")
    text, other = zoo.text(1, 90), zoo.text(1, 110, seed=1)
    ids, mask = beside(text, other, left=True)
    target = {"decoder_input_ids": zoo.text(1, 6, seed=2), "use_cache": False}
    single = zoo.output(model, input_ids=text, **target)
    target["decoder_input_ids"] = zoo.text(1, 6, seed=2).expand(2, -1)
    close(zoo.output(model, input_ids=ids, attention_mask=mask, **target)[:1], single)
