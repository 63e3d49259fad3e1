"""Causal checkpoints get a longer context, and are measured over it."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

import floater
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.causal_lm import CausalLMSettings, long_rows, rows_of
from floater.lab.tasks.causal_lm.score import DIGITS, causal_batch, passkeys, prompt
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer
from floater.lab.tasks.finetuning.extension import Extend, first_position, merge, pose, training_positions
from floater.lab.tasks.finetuning.settings import Checkpoint
from floater.lab.tasks.language_modeling.far import ranges
from floater.lab.tasks.language_modeling.score import rows_score
from floater.lab.tasks.masked_lm import MaskedLMSettings
from floater.lab.tasks.squad import SquadSettings
from helpers import write_run_config

TASK = task("causal_lm")
SMALL: dict[str, Any] = {
    "vocab_size": 9,
    "hidden_size": 4,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
WORDS = ["<pad>", "<unk>", *"0123456789", *(f"w{i}" for i in range(30))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 16 tokens, its tokenizer of words, and text of a fixed order."""
    directory = tmp_path_factory.mktemp("causal")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=16, pad_token_id=0, bos_token_id=None,
        eos_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory / "llama")
    half = {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"}
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    same = {name: getattr(config, name) for name in (*sizes, "max_position_embeddings", "initializer_range")}
    GPTNeoXForCausalLM(
        GPTNeoXConfig(**same, rope_parameters=half, pad_token_id=0, bos_token_id=None, eos_token_id=None)
    ).save_pretrained(directory / "gpt_neox")
    for name in ("llama", "gpt_neox"):
        fast.save_pretrained(directory / name)
    lines = [" ".join(f"w{(i * step) % 30}" for i in range(12)) for step in range(1, 25)]
    (directory / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return directory


def write_config(folder: Path, name: str, **parts: Any) -> Path:
    config = {
        "task": "causal_lm",
        "data": {
            "train": str(folder / "text.txt"),
            "valid": str(folder / "text.txt"),
            "documents": "file",
            "block": 16,
        },
        "model": {"path": str(folder / "llama")},
        "extend": {"length": 64, "method": "clex"},
        "training": {
            "learning_rate": 1e-2,
            "max_tokens": 128,
            "max_steps": 4,
            "save_steps": 2,
        },
    }
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def train(config: Path) -> tuple[Path, dict[str, Any]]:
    run = TASK.train(load(CausalLMSettings, config))
    return run, json.loads((run / "result.json").read_text())


def test_a_flow_over_scale_has_its_learning_rate(folder: Path) -> None:
    """Adam's first step is the learning rate, whatever the gradient."""
    moved = []
    for multiplier in (1.0, 0.25):
        training = {"max_steps": 1, "save_steps": 1, "flow": {"lr_multiplier": multiplier}}
        config = write_config(
            folder,
            f"rate{multiplier}",
            training=training,
            extend={"positions": "pose", "options": {"declared": True}},
        )
        after: Any = AutoModelForCausalLM.from_pretrained(train(config)[0] / "model")
        moved.append(after.floater_extension.scale_0.field.outer.weight.detach())
    assert bool(moved[0].all())
    torch.testing.assert_close(moved[1], 0.25 * moved[0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("what", ["all", "lora", "positions"])
def test_what_learns(folder: Path, what: str) -> None:
    """The checkpoint's matrices change or not, positions in any case; the result is the final model's."""
    extend = {"positions": "pose", "options": {"declared": False}}
    run, result = train(write_config(folder, what, train=what, extend=extend))
    after: Any = AutoModelForCausalLM.from_pretrained(run / "model")
    before = LlamaForCausalLM.from_pretrained(folder / "llama").state_dict()
    assert after.config.floater_extension["method"] == "clex"
    assert not any("lora" in name for name in after.state_dict())
    changed = {name for name, value in before.items() if not torch.equal(value, after.state_dict()[name])}
    expected = {"all": len(before), "lora": 4, "positions": 0}[
        what
    ]  # of a Llama peft adapts queries and values
    assert len(changed) == expected
    assert bool(after.floater_extension.scale_0.field.outer.weight.any())
    assert result["loss_before"] == result["loss_original"]  # short rows are as they were
    assert result["long_loss"] != result["long_loss_before"]
    scores = TASK.evaluate(run, str(folder / "text.txt")).scores
    assert (scores["loss"], scores["long_loss"]) == (result["loss"], result["long_loss"])


def test_the_adapter_beside_the_model_is_what_is_merged_in_it(folder: Path, caplog) -> None:
    from peft import PeftModel

    extend = {"method": "yarn", "positions": "consecutive"}
    run, _ = train(write_config(folder, "adapter", train="lora", extend=extend))
    base = LlamaForCausalLM.from_pretrained(folder / "llama").eval()
    length = load(CausalLMSettings, run / "config.yaml").extend.length
    floater.extend(base, length, "yarn")
    tokens = torch.arange(12)[None] % 30
    merged, before = AutoModelForCausalLM.from_pretrained(run / "model")(tokens).logits, base(tokens).logits
    torch.testing.assert_close(PeftModel.from_pretrained(base, run / "adapter").eval()(tokens).logits, merged)
    assert not torch.allclose(before, merged)
    assert "adapters in 4 layers: 2 q_proj, 2 v_proj" in caplog.text


@pytest.mark.parametrize(("name", "what"), [("llama", "lora"), ("gpt_neox", "all")])
def test_a_resumed_run_ends_with_the_weights_of_a_whole_one(folder: Path, name: str, what: str) -> None:
    """Also where files have other names of the weights, as those of GPT-NeoX."""
    parts: dict[str, Any] = {"train": what, "extend": {"positions": "pose"}}
    parts["model"] = {"path": str(folder / name)}
    whole, _ = train(write_config(folder, f"whole_{name}", **parts))
    path = write_config(folder, f"halves_{name}", **parts)

    class Stopped(Exception):
        pass

    settings = load(CausalLMSettings, path)
    original = TASK.validate
    calls = []

    def stop(prepared: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:  # the second of the training
            raise Stopped
        return original(prepared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TASK, "validate", stop)
        with pytest.raises(Stopped):
            TASK.train(settings)
    halves, _ = train(path)
    one, two = (AutoModelForCausalLM.from_pretrained(run / "model").state_dict() for run in (whole, halves))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_merged_adapters_compute_what_they_did(folder: Path) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    model = LlamaForCausalLM.from_pretrained(folder / "llama").eval()
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj", "o_proj"]), model)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.arange(2, 14)[None]
    expected = model(ids).logits
    merge(model)
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=1e-4)
    plain = LlamaForCausalLM.from_pretrained(folder / "llama")
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_random_positions() -> None:
    """At most one jump; every long distance occurs, up to the last position."""
    rows = [pose(16, 64, np.random.default_rng(seed)) for seed in range(400)]
    for row in rows:
        assert row[0] == 0
        assert row[-1] < 64
        jumps = np.diff(row)
        assert (jumps >= 1).all()
        assert (jumps > 1).sum() <= 1
    starts = {int(np.argmax(np.diff(row) > 1)) + 1 for row in rows if (np.diff(row) > 1).any()}
    assert starts == set(range(1, 9))
    assert {int(row[-1]) for row in rows} == set(range(15, 64))
    assert pose(1, 64, np.random.default_rng(0)).tolist() == [0]
    assert pose(16, 16, np.random.default_rng(0)).tolist() == list(range(16))


def test_random_positions_need_rows_below_the_length(folder: Path) -> None:
    config = write_config(folder, "long", extend={"positions": "pose", "length": 16})
    with pytest.raises(DataError, match="shifts rows within 16 positions"):
        load(CausalLMSettings, config)


def test_random_positions_keep_a_row_together(folder: Path) -> None:
    """Transformers takes a jump for the begin of another document where there is no mask."""
    trainer = _trainer(folder, write_config(folder, "pose", extend={"positions": "pose"}))
    rows = [trainer.train_dataset[i] for i in range(4)]
    batch = trainer.data_collator(rows)
    again = trainer.data_collator(rows)
    assert torch.equal(batch["position_ids"], again["position_ids"])
    assert bool((batch["position_ids"].diff() > 1).any())
    model = trainer.model.eval()
    arguments = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    changed = arguments | {"input_ids": arguments["input_ids"].clone()}
    changed["input_ids"][:, 0] = 5
    last = [model(**inputs).logits[:, -1] for inputs in (arguments, changed)]
    assert (last[0] - last[1]).abs().amax(-1).min() > 1e-5


@pytest.mark.parametrize(
    ("method", "options", "scales"),
    [("clex", {"declared": False}, {1, 2, 3, 4}), ("clex", {}, {4}), ("yarn", {}, {4})],
)
def test_every_scale_is_trained(folder: Path, method: str, options: dict[str, Any], scales: set[int]) -> None:
    """A batch reaches as far as it drew, where its longest text sets the scale of all."""
    extend = {"length": 64, "method": method, "options": options, "positions": "pose"}
    trainer = _trainer(folder, write_config(folder, f"scales_{method}{len(options)}", extend=extend))
    row = trainer.train_dataset[0]
    batches = [[{**row, "index": 64 * step + i} for i in range(64)] for step in range(40)]
    last = [int(trainer.data_collator(batch)["position_ids"].max()) for batch in batches]
    assert {-(-(most + 1) // 16) for most in last} == scales


def _bloom() -> Any:
    return BloomForCausalLM(BloomConfig(vocab_size=9, hidden_size=4, n_layer=1, n_head=1))


def _mpt() -> Any:
    return MptForCausalLM(MptConfig(vocab_size=9, d_model=4, n_layers=1, n_heads=1))


@pytest.mark.parametrize("build", [_bloom, _mpt])
def test_random_positions_of_models_that_take_none(build: Any) -> None:
    model = build()
    trainer: Any = SimpleNamespace(
        model=model, accelerator=SimpleNamespace(unwrap_model=lambda wrapped: wrapped)
    )
    settings = SimpleNamespace(extend=Extend(length=64, positions="pose"))
    with pytest.raises(DataError, match=f"{type(model).__name__} forwards no position_ids.*'consecutive'"):
        training_positions(trainer, settings)


def _trainer(folder: Path, config: Path) -> Any:
    settings = load(CausalLMSettings, config)
    prepared = TASK.prepare(settings, Path(settings.run), TASK.read(settings))
    Path(settings.run).mkdir()
    return TASK.trainer(prepared, Path(settings.run))


def test_losses_are_those_of_the_logits(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder / "llama").eval()
    tokenizer = load_tokenizer(str(folder / "llama"))
    rows = rows_of(tokenizer, [["w1 w2 w3 w4 w5"], ["w6 w7"], ["w8"]], 4)
    assert rows.lengths == [4, 2]  # of one token nothing is predicted
    actual = rows_score(model, rows, functools.partial(causal_batch, tokenizer=tokenizer), 100, later=True)
    for number, row in enumerate(rows):
        nats = actual.losses.nats[actual.losses.rows == number]
        ids = torch.from_numpy(row["input_ids"]).long()
        whole = model(ids[None]).logits[0].log_softmax(-1)
        expected = [-whole[i, ids[i + 1]].item() for i in range(len(ids) - 1)]
        np.testing.assert_allclose(nats, expected, rtol=1e-5)
    assert [part.tokens for part in ranges(actual.losses, None, [2, 4], 4)] == [2, 2]


def test_rows_end_where_documents_do(folder: Path) -> None:
    """An end token that the tokenizer adds to a text is not put at the end of a row."""
    tokenizer = load_tokenizer(str(folder / "llama"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="w0 $A w29", special_tokens=[("w0", WORDS.index("w0")), ("w29", WORDS.index("w29"))]
    )
    tokenizer.add_special_tokens({"bos_token": "w0", "eos_token": "w29"})
    rows = rows_of(tokenizer, [["w1 w2 w3", "w4 w5"], ["w6"]], 4)
    said = [str(tokenizer.decode(row["input_ids"])) for row in rows]
    assert said == ["w0 w1 w2 w3", "w0 w4 w5 w29", "w0 w6 w29"]
    assert [row["index"] for row in rows] == [0, 1, 2]


def test_hidden_numbers(folder: Path) -> None:
    """A model that copies what it has read finds all; one that says the same always, none."""
    tokenizer = load_tokenizer(str(folder / "llama"))
    text, digits = prompt(tokenizer, 80, 0.5, np.random.default_rng(3))
    assert len(text) == 80
    assert digits == DIGITS
    words = str(tokenizer.decode(text)).split()
    number = words[-DIGITS:]
    at = next(i for i in range(len(words)) if words[i : i + DIGITS] == number)
    assert 30 < at < 60

    class Oracle(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
            ahead = input_ids.roll(-1, 1) if self.right else torch.zeros_like(input_ids)
            return type("Output", (), {"logits": torch.nn.functional.one_hot(ahead, len(WORDS)).float()})

    model: Any = Oracle()
    for model.right, expected in ((True, 1.0), (False, 0.0)):
        actual = passkeys(model, tokenizer, 80, 3, 2, 200)
        assert actual == [expected] * 3


def test_evaluation_by_position_and_by_hidden_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(
        folder, "far", extend={"method": "yarn"}, evaluation={"trials": 2, "depths": 2, "rows": 2}
    )
    assert main(["train", str(config)]) == 0
    capsys.readouterr()
    asked = ["evaluate", str(folder / "far"), "--window", "96", "--bins", "16,80"]
    assert main([*asked, "--source", str(folder / "text.txt")]) == 2
    assert "a passkey needs a text of at least" in capsys.readouterr().err
    assert main(["evaluate", str(folder / "far"), "--window", "96", "--bins", "80"]) == 0
    report = capsys.readouterr().out
    assert "perplexity of validation rows: as it was " in report
    assert "rows of up to 96 tokens" in report
    assert "\n1-79 " in report
    assert "\n80-95 " in report
    assert "passkey in 96 tokens: 0 % (by depth: 0, 0)" in report
    tokenizer = load_tokenizer(str(folder / "llama"))
    evaluation = functools.partial(load(CausalLMSettings, config).evaluation.__class__)
    rows = long_rows(tokenizer, [["w1 w2"] * 60], 50, evaluation(rows=2))
    assert rows.lengths == [50, 50]


def test_what_a_person_gets_wrong(folder: Path, said: Callable[..., str]) -> None:
    config = str(write_config(folder, "new"))

    assert "extend: length is 8; the model takes 16 tokens already" in said(
        "train", config, "extend.length=8"
    )
    assert "extend: method is 'flow'; " in said("train", config, "extend.method=flow")
    assert "has no positions that could be trained" in said(
        "train", config, "extend.method=yarn", "train=positions"
    )
    assert "method and options of extend need length" in said("train", config, "extend.length=null")
    assert "give one of them" in said("train", config, "train=lora", "plug.options={}", "plug.train=flow")
    assert "lora: Target modules" in said("train", config, "train=lora", "lora.target_modules=[nothing]")
    assert "more than a batch" in said("train", config, "data.block=300")


@pytest.mark.parametrize("what", ["all", "lora", "positions"])
def test_masked_models_are_extended_and_read_random_positions(folder: Path, bert: Path, what: str) -> None:
    """The table of a BERT is continued; its new vectors learn from rows of a few tokens, alone or not."""
    (folder / "films.txt").write_text("the film was good in rome\n\n" * 30, encoding="utf-8")
    config = {
        "run": str(folder / f"masked-{what}"),
        "task": "masked_lm",
        "train": what,
        "data": {name: str(folder / "films.txt") for name in ("train", "valid")} | {"block": 8},
        "model": {"path": str(bert)},
        "extend": {"length": 128, "positions": "pose"},
        "training": {"max_tokens": 64, "max_steps": 2, "eval_steps": 2, "save_steps": 2},
    }
    (folder / "masked.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = load(MaskedLMSettings, folder / "masked.yaml")
    run = task("masked_lm").train(settings)
    model, tokenizer, _ = task("masked_lm").load(run)
    assert tokenizer.model_max_length == 128
    assert model.config.max_position_embeddings == 128
    ids = torch.arange(5, 105)[None] % model.config.vocab_size
    assert model(ids).logits.isfinite().all()
    extended: Any = BertForMaskedLM.from_pretrained(bert)
    floater.extend(extended, 128)
    weights = model.state_dict()
    assert not any("lora" in name for name in weights)
    changed = {n for n, value in extended.state_dict().items() if not torch.equal(value, weights[n])}
    tables = {name for name in changed if "position_embeddings" in name}
    assert len(tables) == 1
    assert {"all": len(changed) > 5, "lora": len(changed) == 5, "positions": changed == tables}[what]


def test_random_positions_begin_where_the_model_counts_from() -> None:
    assert first_position(RobertaForMaskedLM(RobertaConfig(pad_token_id=1, **SMALL))) == 2
    assert first_position(BertForMaskedLM(BertConfig(**SMALL))) == 0


def test_a_task_without_random_positions_says_so() -> None:
    with pytest.raises(ValueError, match="'pose', which task 'squad' does not train with"):
        SquadSettings(
            run="x",
            model=Checkpoint("x"),
            data=None,  # type: ignore[arg-type]
            extend=Extend(length=8, positions="pose"),
        )


def test_the_command_that_extends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*inputs: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["extend", str(folder / "llama"), *inputs])
        said = capsys.readouterr()
        return code, said.out, said.err

    to = str(folder / "long")
    code, out, _ = run("64", "--method", "self_extend", "--option", "window=8", "--to", to)
    assert code == 0
    assert out == "rotary positions, 16 to 64 by 'self_extend'; shorter inputs as before\n"
    model = AutoModelForCausalLM.from_pretrained(to)
    assert model.config.floater_extension["group"] == [8, 7]
    assert load_tokenizer(to).model_max_length == 64
    for wrong, message in (
        (("64", "--to", to), "exists already"),
        (("8", "--to", to + "2"), "length is 8; the model takes 16 tokens already"),
        (("64", "--method", "clex", "--option", "start", "--to", to + "2"), "not of the form name=value"),
        (
            ("64", "--method", "clex", "--option", "start=2026-13-01", "--to", to + "2"),
            "start is '2026-13-01'; it must be",
        ),
        (
            ("64", "--method", "self_extend", "--option", "window=1e1", "--to", to + "2"),
            "is 10.0; it must be",
        ),
        (
            ("64", "--method", "clex", "--option", "start=flow", "--to", to + "2"),
            "start is 'flow'; it must be",
        ),
        (("64", "--option", "special=[1", "--to", to + "2"), "option 'special' is '[1', which is not YAML"),
        (("64", *2 * ("--option", "start=yarn"), "--to", to + "2"), "option 'start' is given twice"),
    ):
        code, _, err = run(*wrong)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1
