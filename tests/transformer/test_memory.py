"""Segments with a memory against full passes, and against attention to a bounded memory written out."""

import pytest
import torch
from torch.nn import functional as F
from transformer_cases import build_model, tokens
from transformers import DynamicCache

from floater import PositionError, catalogue
from floater.transformer import FloaterForCausalLM, FloaterForMaskedLM
from floater.transformer.memory import Memory

RELATIVE = sorted(
    name
    for name, row in catalogue().items()
    if row.card.point in ("relative", "none") and "cache" not in row.card.exceptions
)
REMEMBERING = [*RELATIVE, "shortformer", "rotary, clock", "floater_relative, clock"]
# angles and sums of single precision
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def model(name, **changes):
    return build_model(FloaterForCausalLM, name, **changes)


def segmented(model, ids, memory, cuts, **options):
    parts, start = [], 0
    for stop in cuts:
        segment = {name: value[:, start:stop] for name, value in options.items()}
        parts.append(model(ids[:, start:stop], memory=memory, **segment).logits)
        start = stop
    return torch.cat(parts, 1)


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_segments_that_remember_everything_are_one_full_pass(name, norm_first):
    lm, ids = model(name, norm_first=norm_first), tokens(2, 12)
    actual = segmented(lm, ids, Memory(12), (4, 5, 9, 12))
    torch.testing.assert_close(actual, lm(ids, use_cache=False).logits, **CLOSE)


@pytest.mark.parametrize("name", ["transformer_xl", "t5", "rotary", "shortformer", "rotary, clock"])
@torch.no_grad()
def test_documents_and_padding_beside_a_memory(name):
    lm, ids = model(name), tokens(2, 12)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 10:] = 0
    documents = torch.tensor([[5] * 6 + [7] * 6, [3] * 12])
    options = {"attention_mask": mask, "document_ids": documents}
    actual = segmented(lm, ids, Memory(12), (4, 8, 12), **options)
    whole = lm(ids, use_cache=False, **options).logits
    torch.testing.assert_close(actual[mask.bool()], whole[mask.bool()], **CLOSE)
    alone = lm(ids[:1, 6:], use_cache=False).logits
    torch.testing.assert_close(actual[:1, 6:], alone, **CLOSE)


@torch.no_grad()
def test_a_memory_that_holds_all_keys_is_a_cache():
    lm, ids = model("transformer_xl"), tokens(2, 9)
    cache, memory = DynamicCache(), Memory(9)
    for start, stop in ((0, 4), (4, 9)):
        cached = lm(ids[:, start:stop], past_key_values=cache).logits
        torch.testing.assert_close(cached, lm(ids[:, start:stop], memory=memory).logits, **CLOSE)


def by_hand(lm, ids, size, length):
    """Logits of Transformer-XL or Shortformer, segment by segment, what blocks read being kept."""
    encoder = lm.model.encoder
    held = [None] * len(encoder.blocks)
    out = []
    for start in range(0, ids.shape[1], length):
        x = lm.model.embedding(ids[:, start : start + length]) * lm.config.hidden_size**0.5
        for layer, block in enumerate(encoder.blocks):
            read = x if held[layer] is None else torch.cat([held[layer], x], 1)
            old = read.shape[1] - x.shape[1]
            x = attended(lm, layer, block, read, old)
            held[layer] = read[:, -size:].detach()
        out.append(lm.lm_head(x))
    return torch.cat(out, 1)


def sinusoids(numbers, dim):
    rate = 10000 ** (-torch.arange(0, dim, 2, dtype=torch.double) / dim)
    angle = torch.tensor(numbers, dtype=torch.double)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


def attended(lm, layer, block, read, old):
    """A post-norm block at the tokens after `old` ones, one query at a time."""
    position, a, width = lm.model.encoder.position, block.attention, lm.config.hidden_size
    heads, slots = a.heads, read.shape[1]
    infused = read + sinusoids(range(slots), width) if lm.config.position == "shortformer" else read

    def split(y):
        return y.view(len(y), -1, heads, width // heads).transpose(1, 2)

    q, k, v = split(a.query(infused)), split(a.key(infused)), split(a.value(read))
    rows = []
    for t in range(old, slots):
        query, keys = q[:, :, t], k[:, :, : t + 1]
        if lm.config.position == "transformer_xl":
            u, w = position.u[0], position.v[0]
            r = split(position.project[layer](sinusoids(range(t, -1, -1), width))[None])
            logits = ((query + u)[:, :, None] * keys).sum(-1) + ((query + w)[:, :, None] * r).sum(-1)
        else:
            logits = (query[:, :, None] * keys).sum(-1)
        weights = (logits / (width // heads) ** 0.5).softmax(-1)
        rows.append((weights[..., None] * v[:, :, : t + 1]).sum(2).flatten(1))
    x = read[:, old:]
    x = block.attention_residual.norm(x + a.output(torch.stack(rows, 1)))
    f = block.feed_forward
    return block.feed_forward_residual.norm(x + f.outer(F.relu(f.inner(x))))


@pytest.mark.parametrize("name", ["transformer_xl", "shortformer"])
@pytest.mark.parametrize(("size", "length"), [(3, 4), (4, 4), (7, 2)])
def test_a_bounded_memory_is_the_loop_and_no_gradient_goes_back_into_it(name, size, length):
    lm, ids, memory = model(name), tokens(2, 8), Memory(size)
    actual = segmented(lm, ids, memory, range(length, 9, length))
    wanted = by_hand(lm, ids, size, length)
    torch.testing.assert_close(actual, wanted, **CLOSE)
    assert memory.length == size
    assert not any(hidden.requires_grad for hidden in memory.hidden)
    pull = torch.randn(actual.shape, generator=torch.Generator().manual_seed(3))
    names, parameters = zip(*lm.named_parameters(), strict=True)
    for key, a, b in zip(
        names,
        *(torch.autograd.grad((y * pull).sum(), parameters, allow_unused=True) for y in (actual, wanted)),
        strict=True,
    ):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=key)


def test_forgetting_begins_anew():
    lm, ids, memory = model("rotary"), tokens(1, 4), Memory(3)
    first = lm(ids, memory=memory).logits
    assert not torch.allclose(lm(ids, memory=memory).logits, first)
    memory.forget()
    assert torch.equal(lm(ids, memory=memory).logits, first)


@pytest.mark.parametrize(
    "name", ["sinusoidal", "floater", "learned", "tupe_r", "rnn_transformer", "universal"]
)
def test_models_that_put_places_into_what_blocks_read_are_refused(name):
    with pytest.raises(PositionError, match=r"adds positions to the inputs of blocks, .*'shortformer' can"):
        model(name)(tokens(1, 4), memory=Memory(4))


def test_what_does_not_fit_a_memory_is_refused():
    lm, memory = model("rotary"), Memory(4)
    lm(tokens(2, 4), memory=memory)
    with pytest.raises(ValueError, match=r"the memory is of 2 texts; the segment is of 1"):
        lm(tokens(1, 4), memory=memory)
    with pytest.raises(ValueError, match="document ids for every segment or for none"):
        lm(tokens(2, 4), memory=memory, document_ids=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"mask is \(2, 8\); with a memory it must be \(2, 4\)"):
        lm(tokens(2, 4), memory=memory, attention_mask=torch.ones(2, 8))
    with pytest.raises(ValueError, match="neither a cache nor given positions"):
        lm(tokens(2, 4), memory=memory, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="the memory has 0 tokens"):
        Memory(0)
    for size in (2.5, "4", True, None):
        with pytest.raises(ValueError, match=f"the memory has {size!r} tokens; it must have a whole number"):
            Memory(size)
    with pytest.raises(TypeError, match="memory is 4; it must be a Memory"):
        lm(tokens(2, 4), memory=4)
    with pytest.raises(ValueError, match=r"the attention mask is a list; it must be a tensor \(2, 4\)"):
        lm(tokens(2, 4), memory=memory, attention_mask=[[1] * 4] * 2)
    with pytest.raises(PositionError, match="a memory needs a causal stack"):
        build_model(FloaterForMaskedLM, "rotary").model(tokens(1, 4), memory=Memory(4))
