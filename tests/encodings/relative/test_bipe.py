"""Abacus and BiPE: places within numbers and sentences."""

import re

import pytest
import torch
from relative_cases import DIM, HEADS, SIZES, WIDTH

from floater import PositionError, Positions, build
from floater.encodings import AttentionContext

DIGITS = "0123456789"
TEXT = "17+305=4.22 1"


def text_positions(text, **options):
    at = torch.arange(len(text))[None]
    token = torch.tensor([[DIGITS.find(c) if c in DIGITS else 10 + (c == ".") for c in text]])
    return Positions(at, at, token=token, **options)


def test_abacus_counts_the_digits_of_each_number():
    model = build("abacus", **SIZES).eval()
    wanted = [0] * len(TEXT)
    for number in re.finditer(r"\d+", TEXT):
        wanted[number.start() : number.end()] = range(1, number.end() - number.start() + 1)
    state = model.prepare(text_positions(TEXT))
    assert state.tolist() == [wanted]
    x = model.embed(torch.zeros(1, len(TEXT), DIM), state)
    torch.testing.assert_close(x[0], model.table[torch.tensor(wanted)])


def test_abacus_shifts_all_numbers_of_a_batch_alike_in_training():
    torch.manual_seed(0)
    model, plain = (
        build("abacus", **SIZES, max_offset=3),
        build("abacus", **SIZES).eval().prepare(text_positions(TEXT)),
    )
    seen = set()
    for _ in range(40):
        shift = model.train().prepare(text_positions(TEXT)) - plain
        assert not bool(shift[plain == 0].any())
        (offset,) = shift[plain > 0].unique().tolist()
        seen.add(offset)
    assert seen == {0, 1, 2, 3}


def test_a_number_ends_with_its_document():
    document = torch.tensor([[0, 0, 1, 1]])
    model = build("abacus", **SIZES).eval()
    assert model.prepare(text_positions("1234", document=document)).tolist() == [[1, 2, 1, 2]]


@pytest.mark.parametrize("name", ["abacus", "bipe"])
def test_token_ids_are_needed(name):
    options = {"delimiters": [3]} if name == "bipe" else {}
    with pytest.raises(PositionError, match=f"'{name}' reads token ids; the positions have none"):
        build(name, **SIZES, **options).prepare(Positions.arange(3))


def test_a_number_that_is_too_long_is_refused():
    with pytest.raises(PositionError, match=r"a number reaches place 4; 'abacus' has 3 \(size 4\)"):
        build("abacus", **SIZES, size=4, max_offset=0).eval().prepare(text_positions("1234"))


SENTENCES = "ab.cde..f"
WORD, NUMBER = [0, 1, 2, 0, 1, 2, 3, 0, 0], [0, 0, 0, 1, 1, 1, 1, 2, 3]


@torch.no_grad()
def test_bipe_embeds_places_and_turns_by_the_number_of_the_segment():
    model, rotary = build("bipe", **SIZES, delimiters=[11]), build("rotary", **SIZES, pairs="half")
    state = model.prepare(text_positions(SENTENCES))
    torch.testing.assert_close(model.embed(torch.zeros(1, 9, DIM), state)[0], model.table[torch.tensor(WORD)])
    x, number = torch.randn(1, 9, HEADS, WIDTH), torch.tensor([NUMBER])
    wanted = rotary.qkv(x, x, x, AttentionContext(rotary.prepare(Positions(number, number)), 0))
    torch.testing.assert_close(model.qkv(x, x, x, AttentionContext(state, 0)), wanted)
    assert model.bias(x, x, AttentionContext(state, 0)) is None


@torch.no_grad()
def test_bipe_alibi_has_steep_slopes_between_segments():
    model = build("bipe", **SIZES, delimiters=[11], between="alibi")
    bias = model.bias(None, None, AttentionContext(model.prepare(text_positions(SENTENCES)), 0))
    for head in range(HEADS):
        for t, s in ((8, 0), (4, 5), (2, 7)):
            wanted = -96 * 2.0 ** (-4 * (head + 1)) * abs(NUMBER[t] - NUMBER[s])
            assert bias[0, head, t, s].item() == pytest.approx(wanted)


@torch.no_grad()
def test_places_past_the_table_have_its_last_vector():
    model = build("bipe", **(SIZES | {"max_length": 2}))
    x = model.embed(torch.zeros(1, 4, DIM), model.prepare(Positions.arange(4)))
    torch.testing.assert_close(x[0], model.table[torch.tensor([0, 1, 1, 1])])
