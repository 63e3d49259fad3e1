"""Languages and orders of the sources, from columns of tables, and lengths of the targets."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import SettingsError
from floater.lab.tasks.translation import Decoding, configuration
from floater.lab.tasks.translation.data import read_test_pairs
from floater.lab.tasks.translation.decode import translate
from floater.lab.tasks.translation.fields import token_order
from floater.lab.tasks.translation.validation import token_losses
from floater.lab.text.bpe import train_bpe
from floater.lab.text.ragged import Ragged
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration

from .small import TASK, evaluate, load_run, settings

TOKENIZER = train_bpe(["low lower lowest newest été, widest"], 280)
COLUMNS = {"language": "lang", "reordered": "order"}
BOTH = [{"name": "language_specific", "languages": 2}, "xl"]


def rows(count: int) -> list[dict[str, Any]]:
    """Sentences of one to three words, whose order is that of the other language."""
    words = ["low", "lower", "newest"]
    return [
        {
            "source": " ".join(words[: 1 + i % 3]),
            "target": " ".join(words[: 1 + i % 3][::-1]),
            "lang": ("en", "de")[i % 2],
            "order": list(range(1 + i % 3))[::-1],
        }
        for i in range(count)
    ]


def write(path: Path, table: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    return str(path)


def data(folder: Path, **changes: Any) -> dict[str, Any]:
    train, valid = (write(folder / f"{name}.jsonl", rows(n)) for name, n in (("train", 30), ("valid", 6)))
    files = dict.fromkeys(("train_source", "train_target", "valid_source", "valid_target"))
    tables = {"train": train, "valid": valid, "columns": COLUMNS, "languages": ["en", "de"]}
    return {**files, **tables, **changes}


FILES = {"train": (Path("a"), Path("b")), "valid": (Path("c"), Path("d"))}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fields")
    model = {"position": BOTH, "decoder_position": "sinusoidal"}
    return TASK.train(settings(folder, FILES, "run", data=data(folder), model=model))


def test_tokens_stand_where_those_of_the_reordered_text_do() -> None:
    draw = random.Random(0)
    for _ in range(30):
        words = draw.choices(
            ["low", "lowest,", "e\u0301te\u0301", "«x»", "12.5", "zz-top"], k=draw.randint(1, 9)
        )
        order = draw.sample(range(len(words)), len(words))
        line, moved = " ".join(words), " ".join(words[i] for i in np.argsort(order))
        positions = token_order(TOKENIZER, line, order)
        tokens = TOKENIZER(line).tokens()
        assert [tokens[i] for i in np.argsort(positions)] == TOKENIZER(moved).tokens()


def test_spaces_belong_to_the_word_after_them() -> None:
    assert TOKENIZER("low  low").tokens() == ["Ġlow", "Ġ", "Ġlow", "</s>"]
    assert token_order(TOKENIZER, "low  low", [1, 0]) == [2, 0, 1, 3]


def test_fields_follow_their_sentences(trained: Path) -> None:
    model, tokenizer = load_run(trained)
    config = TASK.settings_of(trained)
    pairs = read_test_pairs(config.data.valid, None, config.data)
    assert pairs.fields.language.tolist() == [0, 1, 0, 1, 0, 1]
    assert [row.tolist() for row in pairs.fields.reordered] == [row["order"] for row in rows(6)]
    nats = token_losses(model, tokenizer, pairs)
    back = [5, 3, 4, 0, 2, 1]
    moved = replace(
        pairs,
        source=[pairs.source[i] for i in back],
        target=[pairs.target[i] for i in back],
        fields=pairs.fields.take(back),
    )
    for row, i in zip(token_losses(model, tokenizer, moved), back, strict=True):
        np.testing.assert_allclose(row, nats[i], rtol=1e-5)
    orders = Ragged.of(row[::-1] for row in pairs.fields.reordered)
    for change in ({"language": 1 - pairs.fields.language}, {"reordered": orders}):
        changed = token_losses(model, tokenizer, replace(pairs, fields=replace(pairs.fields, **change)))
        rows_changed = [abs(a - b).max() > 1e-6 for a, b in zip(nats, changed, strict=True)]
        # the order of one word is one
        assert rows_changed == [("language" in change or len(row) > 1) for row in pairs.fields.reordered]


def test_the_command_line_reads_them(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = TASK.settings_of(trained).data.valid
    expected = evaluate(trained, table)
    out = tmp_path / "out"
    assert main(["translate", str(trained), "--source", table, "--output", str(out)]) == 0
    assert out.read_text(encoding="utf-8").splitlines() == expected.lines
    text = tmp_path / "text"
    text.write_text("low\n")
    assert main(["translate", str(trained), "--source", str(text)]) == 2
    message = "text is plain text, but the run reads data.columns.language and data.columns.reordered: give"
    assert message in capsys.readouterr().err
    assert main(["translate", str(trained), "--source", table, "--target-ratio", "1"]) == 2
    assert "position model 'sinusoidal' reads no target length" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lang": "fr"}, r"line 2, column 'lang': 'fr' is not one of data\.languages; .*en"),
        ({"order": [0, 0]}, "line 2, column 'order': it must have a position for each of the 2 words"),
        ({"order": "1 x"}, "line 2, column 'order': it must have a position for each of the 2 words"),
        ({"order": [1]}, "the numbers 0 to 1 in some order"),
    ],
)
def test_cells_that_are_wrong(trained: Path, tmp_path: Path, change: Any, message: str) -> None:
    first, second = rows(2)
    path = write(tmp_path / "bad.jsonl", [first | {"order": "0"}, second | change])
    with pytest.raises(DataError, match=message):
        read_test_pairs(path, None, TASK.settings_of(trained).data)


@pytest.mark.parametrize(
    ("changes", "model", "message"),
    [
        ({"languages": []}, {"position": "xl"}, "languages and columns.language belong together"),
        ({"languages": ["en", "en"]}, {"position": BOTH}, "languages has a code twice"),
        ({"moses": True}, {"position": BOTH}, "columns.reordered counts words as they stand"),
        ({}, {"position": "language_specific"}, "'language_specific' does not read; leave them out"),
        (
            {"columns": {}, "languages": []},
            {"position": "xl"},
            r"'xl' reads the field 'reordered' of positions; set data\.columns\.reordered",
        ),
        (
            {"columns": {"reordered": "order"}, "languages": []},
            {"position": BOTH},
            r"reads the field 'language' of positions; set data\.columns\.language",
        ),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, changes: Any, model: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(tmp_path, FILES, "run", data=data(tmp_path, **changes), model=model)


def test_the_tables_are_as_many_as_languages(tmp_path: Path) -> None:
    changes = {"columns": {"language": "lang"}, "languages": ["en", "de", "fr"]}
    model = {"position": "language_specific"}
    config = configuration(settings(tmp_path, FILES, "run", data=data(tmp_path, **changes), model=model), 300)
    assert FloaterForConditionalGeneration(config).encoder.position.table.shape[0] == 3


def test_the_target_length_is_a_multiple_of_the_source() -> None:
    """Against `generate` with the lengths themselves."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = FloaterConfig.preset("tiny", vocab_size=len(TOKENIZER), position="ldpe", **sizes)
    model = FloaterForConditionalGeneration(config).eval()
    lines = ["low", "lowest newest"]
    written = {}
    for ratio in (0.5, 3.0):
        with pytest.warns(UserWarning, match="reached the longest output"):
            written[ratio] = translate(model, TOKENIZER, lines, Decoding(beam=1, target_ratio=ratio))
        for line, text in zip(lines, written[ratio], strict=True):
            ids = torch.tensor([TOKENIZER(line).input_ids])
            length = torch.tensor([max(1, round(ids.shape[1] * ratio))])
            limit = 2 * ids.shape[1] + 50
            expected = model.generate(
                ids, target_length=length, max_new_tokens=limit, num_beams=1, do_sample=False
            )
            assert TOKENIZER.decode(expected[0], skip_special_tokens=True).strip() == text
    assert written[0.5] != written[3.0]


def test_a_target_ratio_without_a_target_length(tmp_path: Path) -> None:
    files = {**FILES}
    with pytest.raises(
        SettingsError, match=r"decoding.target_ratio is 2, but position model 'floater' reads"
    ):
        settings(tmp_path, files, "run", decoding={"target_ratio": 2})
    with pytest.raises(SettingsError, match="target_ratio"):
        settings(tmp_path, files, "run", model={"position": "ldpe"}, decoding={"target_ratio": 0})
    config = settings(tmp_path, files, "run", model={"position": "ldpe"}, decoding={"target_ratio": 2})
    assert config.decoding.target_ratio == 2
