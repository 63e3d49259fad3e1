"""Documents packed into one row are what they are in rows of their own."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, DynamicCache

from floater import PositionError, Positions, catalogue
from floater.transformer import FloaterForCausalLM, FloaterForMaskedLM
from small_models import small_config

LENGTHS = [[3, 1, 4], [2, 4], [7]]
# each reads over the tokens of a row outside of attention
REFUSING = ("rnn_transformer", "rr_transformer", "convolution", "cape", "pnat")
OPTIONS = {"cape": {"normalize": False}}
STRUCTURES = {name for name, row in catalogue().items() if row.__module__.split(".")[2] == "structural"}
NEEDING = {"ldpe", "lrpe", "noisy_length", "language_specific", "xl", "xl_heads"}
SERVING = [*sorted(catalogue().keys() - {*REFUSING} - STRUCTURES - NEEDING), "cape"]


def build_model(cls, name, **options):
    torch.manual_seed(0)
    model = cls(small_config(name, vocab_size=37, position_options=options)).double().eval()
    with torch.no_grad():
        for parameter in model.model.encoder.position.parameters():
            parameter.normal_(std=0.5)
    return model


def batch():
    """Token ids padded on the right, their mask, and ids of their documents."""
    longest = max(map(sum, LENGTHS))
    tokens = torch.randint(3, 37, (len(LENGTHS), longest), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * sum(row) + [0] * (longest - sum(row)) for row in LENGTHS])
    ids = [[i for i, n in enumerate(row) for _ in range(n)] for row in LENGTHS]
    return tokens, mask, torch.tensor([row + [99] * (longest - len(row)) for row in ids])


def separate(model, tokens):
    """The logits of each document alone, by its row and where it starts."""
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for n in lengths:
            yield row, start, model(tokens[row : row + 1, start : start + n], use_cache=False).logits[0]
            start += n


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        *((FloaterForCausalLM, name) for name in SERVING),
        *((FloaterForMaskedLM, name) for name in ("cape", "floater", "rotary", "t5")),
    ],
)
@torch.no_grad()
def test_packed_documents_are_what_they_are_alone(cls, name):
    model = build_model(cls, name, **OPTIONS.get(name, {}))
    tokens, mask, ids = batch()
    packed = model(tokens, attention_mask=mask, document_ids=ids).logits
    together = model(tokens, attention_mask=mask).logits
    for row, start, alone in separate(model, tokens):
        torch.testing.assert_close(packed[row, start : start + len(alone)], alone)
    assert not torch.allclose(packed[0, 3:8], together[0, 3:8])


@pytest.mark.parametrize("name", REFUSING)
def test_models_that_read_over_the_tokens_of_a_row_refuse_documents(name):
    model = build_model(FloaterForMaskedLM, name)
    tokens, mask, ids = batch()
    with pytest.raises(PositionError, match="packed documents"):
        model(tokens, attention_mask=mask, document_ids=ids)


def test_positions_are_not_shuffled_among_documents():
    model = build_model(FloaterForMaskedLM, "shuffled").train()
    tokens, mask, ids = batch()
    with pytest.raises(PositionError, match="packed documents"):
        model(tokens, attention_mask=mask, document_ids=ids)


@torch.no_grad()
def test_the_embeddings_of_one_document_do_not_reach_another():
    model = build_model(FloaterForMaskedLM, "rotary")
    tokens, mask, ids = batch()
    before = model(tokens, attention_mask=mask, document_ids=ids).logits
    tokens[0, 3] = (tokens[0, 3] + 1) % 37
    after = model(tokens, attention_mask=mask, document_ids=ids).logits
    assert torch.equal(before[0, :3], after[0, :3])
    assert torch.equal(before[0, 4:], after[0, 4:])
    assert not torch.equal(before[0, 3], after[0, 3])


@pytest.mark.parametrize("name", ["sinusoidal", "rotary", "t5", "shaw", "floater"])
@torch.no_grad()
def test_decoding_of_packed_documents_with_a_cache_is_the_whole(name):
    model = build_model(FloaterForCausalLM, name)
    tokens, mask, ids = batch()
    whole = model(tokens, attention_mask=mask, document_ids=ids).logits
    cache, parts = DynamicCache(), []
    for start, stop in ((0, 2), (2, 4), (4, 5), (5, 8)):
        options = {"attention_mask": mask[:, :stop], "document_ids": ids[:, :stop]}
        parts.append(model(tokens[:, start:stop], past_key_values=cache, **options).logits)
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()])


def test_positions_restart_in_each_document():
    _, mask, ids = batch()
    positions = Positions.from_documents(ids, mask=mask)
    for row, lengths in enumerate(LENGTHS):
        wanted = [slot for n in lengths for slot in range(n)]
        assert positions.key[row, : len(wanted)].tolist() == wanted
    assert int(positions.key.max()) < 7  # padding too: tables end there
    built = Positions.packed(LENGTHS)
    for one, other in ((built.key, positions.key), (built.visible, positions.visible)):
        assert torch.equal(one[mask.bool()], other[mask.bool()])
    last = Positions.from_documents(ids, mask=mask, queries=2)
    assert torch.equal(last.visible, positions.visible[:, -2:])


@pytest.mark.parametrize("name", ["rotary", "floater", "alibi"])
def test_cumulative_lengths_pack_a_row(name):
    """FlashAttention's cu_seqlens: logits and loss are those of the texts alone."""
    model = build_model(FloaterForCausalLM, name)
    texts = [[5, 6, 7], [8, 9], [7, 7, 5, 6]]
    batch = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=True)(
        [{"input_ids": text} for text in texts]
    )
    positions = Positions.from_cu_seqlens(batch["cu_seq_lens_q"])
    row = batch["input_ids"]
    packed = model(row, positions=positions, labels=row)
    alone = [model(torch.tensor([text]), labels=torch.tensor([text])) for text in texts]
    torch.testing.assert_close(packed.logits, torch.cat([each.logits for each in alone], 1))
    counts = torch.tensor([2, 1, 3])
    torch.testing.assert_close(
        packed.loss, sum(n * each.loss for n, each in zip(counts, alone, strict=True)) / 6
    )
    with pytest.raises(TypeError, match=r"pass positions=Positions.from_cu_seqlens\(cu_seq_lens_q\)$"):
        model(**batch)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([0, 2, 2]), r"cu_seqlens are \[0, 2, 2\]; they must begin at 0 and rise"),
        (torch.tensor([2, 3]), r"cu_seqlens are \[2, 3\]"),
        (torch.tensor([0.0, 3.0]), r"cu_seqlens is \(2,\) of torch.float32"),
        (torch.tensor([[0, 3]]), r"cu_seqlens is \(1, 2\) of torch.int64; it must be \(documents \+ 1,\)"),
        (torch.tensor([0]), r"cu_seqlens is \(1,\)"),
    ],
)
def test_what_are_no_cumulative_lengths_is_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        Positions.from_cu_seqlens(lengths)


def test_padding_on_the_left_or_inside_of_a_document_counts_for_nothing():
    ids = torch.tensor([[5, 5, 5, 5, 2, 2, 2]])
    mask = torch.tensor([[0, 1, 0, 1, 1, 0, 1]])
    assert Positions.from_documents(ids, mask=mask).key[mask.bool()].tolist() == [0, 1, 0, 1]


def test_what_is_no_packing_is_refused():
    with pytest.raises(ValueError, match="must be at least 1"):
        Positions.packed([[2, 0]])
    with pytest.raises(ValueError, match=r"ids are \(1, 3\), the mask \(1, 2\)"):
        Positions.from_documents(torch.zeros(1, 3).long(), mask=torch.ones(1, 2))
    with pytest.raises(ValueError, match="there are 4 queries; the ids have 3 columns"):
        Positions.from_documents(torch.zeros(1, 3).long(), queries=4)
    with pytest.raises(ValueError, match=r"document is torch.float32; it must be integers"):
        Positions(torch.zeros(1, 2), torch.zeros(1, 2), document=torch.zeros(1, 2))
    with pytest.raises(ValueError, match="document covers 3 keys; there are 2"):
        Positions(torch.zeros(1, 2), torch.zeros(1, 2), document=torch.zeros(1, 3).long())
    model = build_model(FloaterForMaskedLM, "none")
    with pytest.raises(ValueError, match=r"the document ids are \(1, 2\); it must be \(batch, 3\)"):
        model(torch.tensor([[5, 6, 7]]), document_ids=torch.zeros(1, 2).long())


@torch.no_grad()
def test_the_causal_loss_of_packed_documents_is_the_mean_over_them_alone():
    model = build_model(FloaterForCausalLM, "sinusoidal")
    tokens, mask, ids = batch()
    labels = tokens.masked_fill(mask == 0, -100)
    packed = model(tokens, attention_mask=mask, document_ids=ids, labels=labels).loss
    losses = []
    for row, start, logits in separate(model, tokens):
        wanted = tokens[row, start + 1 : start + len(logits)]
        losses += torch.nn.functional.cross_entropy(logits[:-1], wanted, reduction="none").tolist()
    assert float(packed) == pytest.approx(sum(losses) / len(losses), rel=1e-6)


@torch.no_grad()
def test_the_masked_loss_of_packed_documents_is_the_mean_over_every_token():
    model = build_model(FloaterForMaskedLM, "sinusoidal")
    tokens, mask, ids = batch()
    labels = tokens.masked_fill(mask == 0, -100)
    packed = model(tokens, attention_mask=mask, document_ids=ids, labels=labels)
    wanted = torch.nn.functional.cross_entropy(packed.logits.flatten(0, 1), labels.flatten())
    assert float(packed.loss) == pytest.approx(float(wanted), rel=1e-6)


@pytest.mark.parametrize("given_as", ["document_ids", "positions"])
@torch.no_grad()
def test_the_loss_of_a_continuation_is_that_of_its_tokens(given_as):
    model = build_model(FloaterForCausalLM, "rotary")
    tokens, _, ids = batch()
    tokens, ids = tokens[:2, :6], ids[:2, :6]

    def documents(start, stop):
        if given_as == "document_ids":
            return {given_as: ids[:, :stop]}
        whole = Positions.from_documents(ids[:, :stop])
        return {given_as: Positions.from_documents(ids[:, :stop], queries=stop - start) if start else whole}

    cache = DynamicCache()
    model(tokens[:, :2], past_key_values=cache, use_cache=True, **documents(0, 2))
    continued = model(tokens[:, 2:], past_key_values=cache, labels=tokens[:, 2:], **documents(2, 6))
    logits = model(tokens, use_cache=False, **documents(0, 6)).logits[:, 2:-1]
    follows = ids[:, 3:] == ids[:, 2:-1]
    wanted = torch.nn.functional.cross_entropy(logits[follows], tokens[:, 3:][follows])
    assert 0 < follows.sum() < follows.numel()
    torch.testing.assert_close(continued.loss.double(), wanted, rtol=1e-5, atol=1e-5)
