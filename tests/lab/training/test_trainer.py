import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    TrainingArguments,
)
from transformers.trainer_callback import ProgressCallback

from floater.lab.training import (
    FloaterTrainer,
    TokenBatchSampler,
    checkpoints,
    smoothed_cross_entropy,
    throughput,
)
from floater.transformer import FloaterConfig, FloaterForCausalLM
from processes import in_two_processes

from .toy import VOCABULARY, Toy, collate, examples, sgd, trainer


def losses(log_history: list[dict[str, float]]) -> list[float]:
    return [log["loss"] for log in log_history if "loss" in log]


def test_parts_of_a_batch_are_as_the_whole(tmp_path: Path) -> None:
    """A step over four batches moves the weights by the gradient of the mean over all their tokens."""
    run = trainer(
        tmp_path,
        dropout=0.0,
        update_every=1,
        optimizer=sgd,
        learning_rate=1.0,
        max_grad_norm=0.0,
        gradient_accumulation_steps=4,
        max_steps=2,
    )
    by_hand = Toy(0.0)
    by_hand.load_state_dict(run.model.state_dict())
    batches = list(run.train_batch_sampler)
    expected = []
    for step, rate in enumerate([1e-7, 1e-7 + (1 - 1e-7) / 4]):  # of a warm-up of four updates
        members = [index for batch in batches[4 * step : 4 * step + 4] for index in batch]
        batch = collate([{"input_ids": examples()[index]} for index in members])
        loss = smoothed_cross_entropy(by_hand(batch["input_ids"])["logits"], batch["labels"], 0.0)
        expected.append(loss.item())
        by_hand.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, parameter in by_hand.named_parameters():
                parameter -= (0.5 if name.startswith("flow.") else 1) * rate * parameter.grad
    run.train()
    assert losses(run.state.log_history) == pytest.approx(expected, rel=1e-5)  # float32
    for name, parameter in run.model.named_parameters():
        torch.testing.assert_close(parameter, by_hand.get_parameter(name), rtol=1e-5, atol=1e-6)


PLAIN = {"dropout": 0.0, "optimizer": sgd, "learning_rate": 1.0, "count": 40}


def train_and_resume(run: Path) -> None:
    trainer(run, max_steps=4, **PLAIN).train()
    trainer(run, max_steps=6, **PLAIN).train(resume_from_checkpoint=True)


@pytest.mark.slow
def test_two_processes_are_as_one(tmp_path: Path) -> None:
    """Two processes with two batches each take the steps of one process with four."""
    two = tmp_path / "two"
    in_two_processes(train_and_resume, two, folder=tmp_path)
    assert [path.name for path in checkpoints(two)] == ["checkpoint-4", "checkpoint-6"]
    last = two / "checkpoint-6"
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in last.iterdir()}
    one = trainer(tmp_path / "one", gradient_accumulation_steps=4, max_steps=6, **PLAIN)
    one.train()
    state = json.loads((last / "trainer_state.json").read_text())
    assert len(losses(state["log_history"])) == 6
    assert losses(state["log_history"]) == pytest.approx(losses(one.state.log_history), rel=1e-5)  # float32
    for name, weight in load_file(last / "model.safetensors").items():
        torch.testing.assert_close(weight, one.model.get_parameter(name).detach(), rtol=1e-5, atol=1e-6)


class Clocked(FloaterTrainer):
    """A clock of its own, that a step moves by 1 s and an evaluation by 1000 s."""

    now = 0.0

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        Clocked.now += 1
        return super().training_step(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        Clocked.now += 1000
        return {}


def test_counts_label_tokens_per_second_of_training_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that an update moves by 2 s and an evaluation by 1000 s."""
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: Clocked.now)
    run = trainer(tmp_path, cls=Clocked, max_steps=6, logging_steps=3, save_strategy="no")
    run.eval_dataset = run.train_dataset
    run.args.eval_strategy, run.args.eval_steps = "steps", 3
    run.train()
    rates = [log["tokens_per_second"] for log in run.state.log_history if "loss" in log]
    total = sum(len(row) for row in examples())  # six updates are an epoch of eleven batches
    assert len(rates) == 2
    assert rates[0] * 6 + rates[1] * 5 == pytest.approx(total)
    run = trainer(tmp_path / "apart", cls=Clocked, max_steps=6, logging_steps=4, save_strategy="no")
    run.eval_dataset = run.train_dataset
    run.args.eval_strategy, run.args.eval_steps = "steps", 3
    run.train()
    (rate,) = [log["tokens_per_second"] for log in run.state.log_history if "loss" in log]
    assert 8 * rate > total / 2  # eight batches of eleven, and no evaluation


def test_counts_the_tokens_that_an_encoder_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its labels, of which a classifier has one for a text; the clock moves by 1 s in a step."""

    def texts(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        ids = collate(batch)["input_ids"]
        lengths = torch.tensor([len(row["input_ids"]) for row in batch])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(len(batch), dtype=torch.long)}

    monkeypatch.setattr(throughput.time, "perf_counter", lambda: Clocked.now)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    arguments = {"max_steps": 4, "logging_steps": 4, "save_strategy": "no", "disable_tqdm": True}
    run = Clocked(
        model=BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **sizes)),
        args=TrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=10, **arguments),
        train_dataset=[{"input_ids": row} for row in examples()],
        data_collator=texts,
    )
    run.train()
    (rate,) = [log["tokens_per_second"] for log in run.state.log_history if "loss" in log]
    assert rate * 4 == pytest.approx(sum(len(row) for row in examples()))


def test_the_bar_starts_where_a_resumed_run_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)  # no bar elsewhere
    trainer(tmp_path, max_steps=8).train()
    capsys.readouterr()
    run = trainer(tmp_path, disable_tqdm=False)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    bar = capsys.readouterr().err
    assert " 4/12 " in bar
    assert " 12/12 " in bar
    assert " tokens/s" in bar
    assert " 0/12 " not in bar
    assert sum(isinstance(each, ProgressCallback) for each in run.callback_handler.callbacks) == 1


class Scores(FloaterTrainer):
    """Give the evaluation at each step a score set beforehand."""

    scores: dict[int, float]

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = {"eval_score": self.scores[self.state.global_step]}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


@pytest.mark.parametrize(
    ("limit", "scores", "best", "left"),
    [
        (2, [0.1, 0.9, 0.2, 0.3], 4, [4, 8]),
        (1, [0.1, 0.9, 0.2, 0.3], 4, [4]),
        (2, [0.0, 0.0, 0.0, 0.0], 8, [6, 8]),  # of equals the last
        (1, [0.9, 0.1, 0.9, 0.3], 6, [6]),
    ],
)
def test_keeps_the_best_checkpoint_and_says_where_it_is(
    tmp_path: Path, limit: int, scores: list[float], best: int, left: list[int]
) -> None:
    run = trainer(
        tmp_path,
        cls=Scores,
        max_steps=8,
        save_steps=2,
        save_total_limit=limit,
        metric_for_best_model="score",
        greater_is_better=True,
        load_best_model_at_end=False,
    )
    run.scores = dict(zip((2, 4, 6, 8), scores, strict=True))
    run.eval_dataset = run.train_dataset
    run.args.eval_strategy, run.args.eval_steps = "steps", 2
    run.train()
    path = str(tmp_path / f"checkpoint-{best}")
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in left]
    assert run.state.best_model_checkpoint == path
    # a checkpoint that was written before the best one does not know it
    for checkpoint in checkpoints(tmp_path):
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        step = int(checkpoint.name.partition("-")[2])
        assert step < best or state["best_model_checkpoint"] == path


@pytest.mark.parametrize(("limit", "left"), [(1, [2, 6, 10]), (2, [2, 6, 8, 10]), (3, [2, 4, 6, 8, 10])])
def test_named_checkpoints_stay_beside_the_last_ones(tmp_path: Path, limit: int, left: list[int]) -> None:
    run = trainer(tmp_path, max_steps=10, save_steps=2, save_total_limit=limit)
    run.keep_steps = [2, 6]
    run.train()
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in left]


def test_a_named_checkpoint_stays_beside_the_best_one(tmp_path: Path) -> None:
    scored: dict[str, Any] = {"cls": Scores, "metric_for_best_model": "score", "greater_is_better": True}
    run = trainer(tmp_path, max_steps=8, save_steps=2, save_total_limit=1, **scored)
    run.scores, run.keep_steps = {2: 0.1, 4: 0.9, 6: 0.2, 8: 0.3}, [2]
    run.eval_dataset = run.train_dataset
    run.args.eval_strategy, run.args.eval_steps = "steps", 2
    run.train()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-4"]


def test_a_causal_model_of_the_library_needs_a_loss_of_its_own(tmp_path: Path) -> None:
    class Subclass(FloaterForCausalLM):
        pass

    config = FloaterConfig.preset("tiny", vocab_size=16)
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    adapters = LoraConfig(target_modules=["query"], task_type="CAUSAL_LM")
    for model in (FloaterForCausalLM(config), Subclass(config), get_peft_model(Subclass(config), adapters)):
        with pytest.raises(ValueError, match=f"labels of {type(model).__name__} are not aligned"):
            FloaterTrainer(model=model, args=args, train_dataset=[{}])


def test_trains_a_library_model_with_label_smoothing(tmp_path: Path) -> None:
    """Its labels are not in the model's inputs, and its loss is that of the smoothed distribution."""
    torch.manual_seed(0)
    size = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = BartConfig(vocab_size=16, d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, dropout=0.0, **size)
    model = BartForConditionalGeneration(config)

    def with_decoder(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        tensors = collate(batch)
        return tensors | {"decoder_input_ids": tensors["input_ids"]}

    data = [{"input_ids": row} for row in examples()]
    sampler = TokenBatchSampler([len(row) for row in examples()], 20, seed=0, shuffle=True)
    args = TrainingArguments(
        str(tmp_path),
        max_steps=2,
        label_smoothing_factor=0.1,
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
    )
    run = FloaterTrainer(
        model=model, args=args, train_dataset=data, data_collator=with_decoder, train_batch_sampler=sampler
    )
    batch = with_decoder([data[index] for index in next(iter(sampler))])
    labels = batch.pop("labels")
    with torch.no_grad():
        expected = smoothed_cross_entropy(model(**batch).logits, labels, 0.1).item()
    run.train()
    assert losses(run.state.log_history)[0] == pytest.approx(expected, rel=1e-5)  # float32


def test_refuses_what_would_break_its_promises(tmp_path: Path) -> None:
    def build(
        sampler: TokenBatchSampler | None, model: torch.nn.Module | None = None, **arguments: Any
    ) -> None:
        args = TrainingArguments(str(tmp_path), use_cpu=True, **arguments)
        FloaterTrainer(model=model or Toy(0.0), args=args, train_dataset=[{}], train_batch_sampler=sampler)

    with pytest.raises(ValueError, match="for 2 examples, but train_dataset has 1"):
        build(TokenBatchSampler([1, 1], 4, seed=0, shuffle=True))
    with pytest.raises(ValueError, match="for process 1 of 2, but this is process 0 of 1"):
        build(TokenBatchSampler([1], 4, seed=0, shuffle=True, world_size=2, rank=1))
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="labels of GPT2LMHeadModel are not aligned"):
        build(None, gpt)
