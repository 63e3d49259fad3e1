"""A tiny model and a run of it, the same in every process that trains it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from floater.lab.training import (
    FloaterTrainer,
    FlowSchedule,
    TokenBatchSampler,
    adam,
    inverse_sqrt,
    parameter_groups,
)

VOCABULARY = 16


class Toy(nn.Module):
    """Predict each token from itself, through a part named as a flow."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.flow = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.dropout(torch.tanh(self.flow(self.embedding(input_ids)))))}


def is_flow(name: str) -> bool:
    return name.startswith("flow.")


def sgd(model: nn.Module, args: TrainingArguments) -> torch.optim.Optimizer:
    """Return an optimizer whose updates are the gradients, so that they can be compared."""
    groups = parameter_groups(
        model, lr=args.learning_rate, weight_decay=0.0, flow_lr_multiplier=0.5, is_flow=is_flow
    )
    return torch.optim.SGD(groups)


def examples(count: int = 38) -> list[list[int]]:
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (count,), generator=random).tolist()
    return [torch.randint(VOCABULARY, (length,), generator=random).tolist() for length in lengths]


def collate(batch: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    rows = [torch.tensor(example["input_ids"]) for example in batch]
    return {
        "input_ids": nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "labels": nn.utils.rnn.pad_sequence(
            [row.flip(0) for row in rows], batch_first=True, padding_value=-100
        ),
    }


def trainer(
    run: Path,
    *,
    dropout: float = 0.2,
    update_every: int = 2,
    callbacks: tuple[TrainerCallback, ...] = (),
    optimizer: Callable[[nn.Module, TrainingArguments], torch.optim.Optimizer] | None = None,
    count: int = 38,
    cls: type[FloaterTrainer] = FloaterTrainer,
    **arguments: Any,
) -> FloaterTrainer:
    """Return a trainer of the toy on batches of 20 tokens, by default with a step of two batches."""
    settings: dict[str, Any] = {
        "max_steps": 12,
        "save_steps": 4,
        "save_total_limit": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    args = TrainingArguments(str(run), **(settings | arguments))
    torch.manual_seed(1)
    model = Toy(dropout)
    adam_ = (
        optimizer(model, args) if optimizer else adam(model, args, is_flow=is_flow, flow_lr_multiplier=0.5)
    )
    data = [{"input_ids": row} for row in examples(count)]
    return cls(
        model=model,
        args=args,
        train_dataset=data,
        data_collator=collate,
        train_batch_sampler=TokenBatchSampler(
            [len(row["input_ids"]) for row in data],
            20,
            seed=3,
            shuffle=True,
            world_size=args.world_size,
            rank=args.process_index,
        ),
        callbacks=[FlowSchedule(update_every), *callbacks],
        optimizers=(adam_, inverse_sqrt(adam_, warmup=4)),
    )
