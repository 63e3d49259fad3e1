"""The directory of a run: what may be there, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from floater.encodings import PositionError
from floater.errors import DataError
from floater.lab.settings import load
from floater.lab.tasks.corpora.text import Pairs
from floater.lab.tasks.translation import Decoding, TranslationSettings
from floater.lab.text.bpe import train_bpe
from floater.lab.training.model import load_weights
from floater.lab.training.run import begin_run, find_run
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration

from .conftest import Files
from .small import TASK, load_run, settings

PAIRS = Pairs(["one two"], ["eins zwei"], 0)


def test_a_run_is_found_again_by_the_same_settings_only(tmp_path: Path, files: Files) -> None:
    new = settings(tmp_path, files, "run")
    assert not find_run(new).exists()
    begin_run(Path(new.run), new, train_bpe(PAIRS.source, 270))
    assert find_run(new) == tmp_path / "run"
    assert TASK.settings_of(tmp_path / "run") == new
    assert new.decoding == Decoding(beam=2)

    other = settings(tmp_path, files, "run", training={"seed": 2}, model={"position_options": {"delta": 0.2}})
    with pytest.raises(DataError) as error:
        find_run(other)
    assert str(error.value) == (
        f"{tmp_path / 'run'} holds a run with other settings: "
        "model.position_options.delta is null there and 0.2 here; training.seed is 1 there and 2 here; "
        "no step of a training is saved there: remove it to begin again"
    )


def test_a_run_named_in_another_way_is_the_same(tmp_path: Path, files: Files) -> None:
    new = settings(tmp_path, files, "run")
    begin_run(Path(new.run), new, train_bpe(PAIRS.source, 270))
    again = load(TranslationSettings, tmp_path / "run.yaml", [f"run={tmp_path}/x/../run"])
    (tmp_path / "x").mkdir()
    assert find_run(again).samefile(new.run)


def test_settings_that_came_later_have_their_defaults(tmp_path: Path, files: Files) -> None:
    new = settings(tmp_path, files, "run", training={"logging_steps": 50})
    begin_run(Path(new.run), new, train_bpe(PAIRS.source, 270))
    config = tmp_path / "run" / "config.yaml"
    config.write_text(
        config.read_text(encoding="utf-8").replace("  logging_steps: 50\n", ""), encoding="utf-8"
    )
    assert find_run(new) == tmp_path / "run"


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path, files: Files) -> None:
    new = settings(tmp_path, files, "run")
    (tmp_path / "run").mkdir()
    assert find_run(new) == tmp_path / "run"  # it is empty
    (tmp_path / "run" / ".config.yaml.unfinished").touch()
    assert find_run(new) == tmp_path / "run"  # the process was killed as it wrote its first file
    (tmp_path / "run" / "thesis.tex").touch()
    with pytest.raises(DataError, match="is not empty and holds no run"):
        find_run(new)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    with pytest.raises(DataError, match="is a file"):
        find_run(new)


def test_the_vocabulary_is_the_runs_own_or_one_given_or_a_new_one(tmp_path: Path, files: Files) -> None:
    lines = files["train"][0].read_text(encoding="utf-8").splitlines()
    corpus, run = Pairs(lines, lines, 0), tmp_path / "run"
    fresh = settings(tmp_path, files, "run")
    new_processor = TASK.processor(fresh, run, corpus)
    assert len(new_processor) == 300
    begin_run(run, fresh, new_processor)
    assert TASK.processor(fresh, run, PAIRS).get_vocab() == new_processor.get_vocab()
    for source in (run, run / "vocabulary", run / "vocabulary" / "tokenizer.json"):
        other = settings(tmp_path, files, "other", data={"vocabulary": str(source)})
        assert TASK.processor(other, tmp_path / "other", PAIRS).get_vocab() == new_processor.get_vocab()


def test_a_finished_run_and_its_model_directory_are_the_same_model(trained: Path) -> None:
    (one, tokenizer), (other, _) = load_run(trained, "cpu"), load_run(trained / "model", "cpu")
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
    assert one.lm_head.weight is one.embedding.weight
    assert not one.training
    assert len(tokenizer) == one.config.vocab_size
    assert TASK.load(trained / "model", "cpu")[2] is None


def test_what_is_no_run_is_refused(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(DataError, match="holds no trained model"):
        load_run(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"tokenizer.json: no tokenizer can be read"):
        load_run(trained / "checkpoint-12")

    broken = Path(shutil.copytree(trained / "model", tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"not these")
    with pytest.raises(DataError, match=r"model\.safetensors has another size than it was written with"):
        load_run(broken)
    (broken / "manifest.json").unlink()
    with pytest.raises(DataError, match="holds no model that can be loaded"):
        load_run(broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(DataError, match="has no weights"):
        load_run(broken)
    for content in ("{", '{"model_type": "floater", "hidden_size": "wide"}'):
        (broken / "config.json").write_text(content)
        with pytest.raises(DataError, match="holds no model that can be loaded"):
            load_run(broken)
    (broken / "config.json").write_text("[]")
    with pytest.raises(DataError, match="holds a model of type None, not 'floater'"):
        load_run(broken)


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("model_type", "bert", DataError, "holds a model of type 'bert', not 'floater'"),
        (
            "architectures",
            ["FloaterForCausalLM"],
            DataError,
            "a FloaterForCausalLM; this task needs a FloaterForConditionalGeneration",
        ),
        ("position", "sinusoidal", DataError, "flows.0.* is .* there and absent here"),
        ("position", "learned", DataError, "does not fit"),
        ("position", "floatr", PositionError, "did you mean 'floater'"),
        ("intermediate_size", 63, DataError, "is .*64.* there and .*63.* here"),
    ],
)
def test_a_model_of_another_kind_is_refused(
    tmp_path: Path, trained: Path, field: str, value: object, error: type[ValueError], message: str
) -> None:
    other = Path(shutil.copytree(trained / "model", tmp_path / "other"))
    (other / "manifest.json").unlink()  # with it, every change is refused
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    config |= {"position_options": {}} if field == "position" else {}
    (other / "config.json").write_text(json.dumps(config | {field: value}), encoding="utf-8")
    with pytest.raises(error, match=message):
        load_run(other)


def test_weights_fill_a_model_whole_or_not_at_all() -> None:
    config = FloaterConfig.preset("tiny", vocab_size=9, tie_word_embeddings=False)
    source, model = FloaterForConditionalGeneration(config), FloaterForConditionalGeneration(config)
    weights = source.state_dict()
    before = model.embedding.weight.clone()
    missing = {name: value for name, value in weights.items() if name != "lm_head.weight"}
    with pytest.raises(DataError, match=r"lm_head.weight is absent there and \(9, 128\) here"):
        load_weights(model, missing, "there")
    assert torch.equal(model.embedding.weight, before)
    load_weights(model, missing, "there", may_lack=lambda name: name.startswith("lm_head"))
    assert torch.equal(model.embedding.weight, source.embedding.weight)
    assert not torch.equal(model.lm_head.weight, source.lm_head.weight)
