"""Sentences as the code of Ke et al. 2021 prepares them."""

import pytest

from floater.lab.tasks import task
from floater.lab.tasks.corpora.glue import Examples
from floater.lab.tasks.glue import Data, GlueSettings
from floater.lab.text.tupe import tokens

# By the functions of guolinke/TUPE@4c64ff7 with the normaliser and the tokenizer of sacremoses 0.2.
GOLDEN = {
    "PCCW's officer, Mike Butcher, said: “well-known U.S. figures rose 2.5% (to $1.23 billion)...”": (
        "pccw 's officer , mike butcher , said : \" well - known u.s . figures rose 2.5 % "
        '( to $ 1.23 billion ) . . . "'
    ),
    "She's  never,, been to Saint-Étienne's *best café — don't you know?!": (
        "she 's never , been to saint - étienne 's best café - don 't you know ? !"
    ),
    r"x\y << quoted >> ....... 'tis": 'x y " quoted " . . . \' tis',
    'The "Rocky-Horror" e-mail,. was sent at 5 p.m. on Jan. 3.': (
        'the " rocky - horror " e - mail . was sent at 5 p.m . on jan . 3 .'
    ),
}


@pytest.mark.parametrize("text", GOLDEN)
def test_tokens_are_those_of_the_authors(text: str) -> None:
    assert tokens(text) == GOLDEN[text]


@pytest.mark.parametrize("second", [[], [[*GOLDEN][:2]]])
def test_both_texts_of_glue_are_prepared_on_request(second: list[list[str]]) -> None:
    texts: list[list[str]] = []

    def tokenizer(first: list[str], other: list[str] | None, **_: object) -> object:
        texts.append(first)
        texts.extend([other] if other else [])
        raise InterruptedError

    examples = Examples(texts=([*GOLDEN][2:], *second), labels=None, indices=["0", "1"])
    for prepare, expected in ((None, str), ("tupe", GOLDEN.__getitem__)):
        texts.clear()
        settings = GlueSettings(run="run", data=Data("RTE", folder="glue", prepare=prepare), model=None)
        with pytest.raises(InterruptedError):
            task("glue").encode(settings, tokenizer, examples)
        assert texts == [[*map(expected, each)] for each in examples.texts]
