"""Loss curves of our recipes and of the Hugging Face models that they are named after.

Both sides start from their own initialisation, not from copied weights, and train on the same batches of the
built-in corpus, without dropout. A recipe is the published one if the curves cannot be distinguished: the
means of the loss differ by less than twice the standard error of their difference over the seeds. The weights
themselves are compared in `tests/transformer/test_same_weights.py`.

    python benchmarks/initialization.py
    python benchmarks/initialization.py --families bert,t5 --steps 600 --seeds 5
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from floater.lab.tasks.corpora.cldr import sample_pairs
from floater.lab.tasks.corpora.cldr_items import CORE, ITEMS, pools_of
from floater.lab.text.bpe import encode, train_bpe
from floater.transformer import (
    FloaterConfig,
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
)
from stored import add_csv, show

DIM, INNER, HEADS, LAYERS, LENGTH, VOCABULARY = 64, 256, 4, 3, 64, 800
PAD, START, MASK = 0, 1, VOCABULARY  # the mask is one token more than the vocabulary of the text
SIZES = {
    "vocab_size": VOCABULARY + 1,
    "hidden_size": DIM,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
}
POSITIONS = {"max_position_embeddings": LENGTH}
Batch = dict[str, Tensor]


def ours(head: type[nn.Module], position: str, **changes: Any) -> nn.Module:
    """Return a model of ours; `changes` are settings of its configuration."""
    settings = {"decoder_layers": LAYERS, "training_length": LENGTH, "activation_function": "gelu"}
    return head(FloaterConfig(**SIZES | settings | changes, position=position))


@dataclass(frozen=True)
class Family:
    """A recipe of ours, the model it is named after, and their objective: "masked", "causal" or "pairs"."""

    ours: Callable[[], nn.Module]
    theirs: Callable[[], nn.Module]
    objective: str


def deberta() -> nn.Module:
    """Return DeBERTa-v2's masked language model, with buckets of 16 distances."""
    config = transformers.DebertaV2Config(
        **SIZES,
        **POSITIONS,
        type_vocab_size=0,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=16,
        max_relative_positions=LENGTH,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        layer_norm_eps=1e-7,
    )
    return transformers.DebertaV2ForMaskedLM(config)


DEBERTA = {
    "span": 16,
    "buckets": "log",
    "max_distance": LENGTH,
    "direction": "released",
    "norm": True,
    "absolute": False,
    "share": True,
    "bias": False,
}
NEOX_ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
# Hugging Face's GPT-NeoX and BLOOM initialise outputs to the residual stream like the other weights
UNSCALED = {"preset": "gpt", "initialization": "normal"}
GPT_SIZES = {
    "vocab_size": VOCABULARY + 1,
    "n_embd": DIM,
    "n_inner": INNER,
    "n_head": HEADS,
    "n_layer": LAYERS,
    "n_positions": LENGTH,
}
T5_SIZES = {
    "vocab_size": VOCABULARY + 1,
    "d_model": DIM,
    "d_kv": DIM // HEADS,
    "d_ff": INNER,
    "num_heads": HEADS,
    "num_layers": LAYERS,
    "decoder_start_token_id": START,
}
FAMILIES = {
    "bert": Family(
        lambda: ours(FloaterForMaskedLM, "bert_a"),
        lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **POSITIONS)),
        "masked",
    ),
    "roformer": Family(
        lambda: ours(FloaterForMaskedLM, "rotary", recipe="bert"),
        lambda: transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**SIZES, **POSITIONS)),
        "masked",
    ),
    "deberta-v2": Family(
        lambda: ours(
            FloaterForMaskedLM,
            "deberta",
            position_options=DEBERTA,
            recipe={"preset": "bert", "norm_eps": 1e-7},
        ),
        deberta,
        "masked",
    ),
    "gpt2": Family(
        lambda: ours(
            FloaterForCausalLM, "learned", recipe="gpt", norm_first=True, activation_function="gelu_new"
        ),
        lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT_SIZES)),
        "causal",
    ),
    "gpt-neox": Family(
        lambda: ours(
            FloaterForCausalLM,
            "rotary",
            position_options={"pairs": "half", "partial": 0.5},
            recipe=UNSCALED,
            norm_first=True,
            tie_word_embeddings=False,
        ),
        lambda: transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(
                **SIZES, **POSITIONS, use_parallel_residual=False, rope_parameters=NEOX_ROTARY
            )
        ),
        "causal",
    ),
    "bloom": Family(
        lambda: ours(
            FloaterForCausalLM,
            "alibi",
            recipe=UNSCALED | {"embedding_norm": True},
            norm_first=True,
            activation_function="gelu_new",
            intermediate_size=4 * DIM,
        ),
        lambda: transformers.BloomForCausalLM(
            transformers.BloomConfig(vocab_size=VOCABULARY + 1, hidden_size=DIM, n_head=HEADS, n_layer=LAYERS)
        ),
        "causal",
    ),
    "t5": Family(
        lambda: ours(
            FloaterForConditionalGeneration,
            "t5",
            position_options={"start": "transformers"},
            recipe="t5",
            norm_first=True,
            activation_function="relu",
        ),
        lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5_SIZES)),
        "pairs",
    ),
}


def corpus() -> tuple[list[Tensor], list[Tensor]]:
    """Return the English and the German sentences of the built-in corpus as ids (length,)."""
    texts = sample_pairs(pools_of("en", "de", 0, ITEMS, CORE), 8_000, "0/pairs", (3, 20), None, set())
    tokenizer = train_bpe([side for pair in texts for side in pair], VOCABULARY)
    english, german = (
        [torch.from_numpy(ids).long() for ids in encode(tokenizer, side)] for side in zip(*texts, strict=True)
    )
    return english, german


def padded(rows: Sequence[Tensor], value: int) -> Tensor:
    """Return rows of ids, cut at LENGTH, as one tensor (rows, length)."""
    return nn.utils.rnn.pad_sequence([row[:LENGTH] for row in rows], batch_first=True, padding_value=value)


def batch(objective: str, texts: tuple[list[Tensor], list[Tensor]], stream: Tensor, step: int) -> Batch:
    """Return the batch of a step, the same for every model and every seed."""
    generator = torch.Generator().manual_seed(step)
    if objective == "pairs":
        chosen = torch.randint(len(texts[0]), (32,), generator=generator).tolist()
        source, labels = (
            padded([texts[0][i] for i in chosen], PAD),
            padded([texts[1][i] for i in chosen], -100),
        )
        decoder_inputs = labels.roll(1, 1).masked_fill(labels.roll(1, 1) == -100, PAD)
        decoder_inputs[:, 0] = START
        mask = (source != PAD).long()
        return {
            "input_ids": source,
            "attention_mask": mask,
            "decoder_input_ids": decoder_inputs,
            "labels": labels,
        }
    starts = torch.randint(len(stream) - LENGTH, (16, 1), generator=generator)
    ids = stream[starts + torch.arange(LENGTH)]
    if objective == "causal":
        return {"input_ids": ids, "labels": ids}
    chosen = torch.rand(ids.shape, generator=generator) < 0.15
    kind = torch.rand(ids.shape, generator=generator)  # Devlin et al. 2019, section 3.1: 80, 10, 10 %
    others = torch.randint(3, VOCABULARY, ids.shape, generator=generator)
    read = torch.where(kind < 0.8, MASK, torch.where(kind < 0.9, others, ids))
    return {"input_ids": torch.where(chosen, read, ids), "labels": ids.masked_fill(~chosen, -100)}


def curve(model: nn.Module, batches: Sequence[Batch]) -> list[float]:
    """Train on the batches and return the loss of each: Adam, warmed up to 1e-3, gradients clipped at 1."""
    for name, parameter in model.named_parameters():
        if "token_type" in name:  # segments, which ours do not have
            nn.init.zeros_(parameter).requires_grad_(False)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    losses = []
    for inputs in batches:
        loss = model.eval()(**inputs).loss  # eval: no dropout on either side
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def windows(losses: Sequence[float], marks: Sequence[int]) -> list[float]:
    """Return the mean loss of the twenty steps before each mark: a single batch is noisy."""
    return [statistics.fmean(losses[max(0, mark - 20) : mark]) for mark in marks]


def main() -> None:
    """Print the table of the page; `--csv docs/compared` stores it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default=",".join(FAMILIES), help="names, with commas between")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    add_csv(parser)
    arguments = parser.parse_args()
    names = arguments.families.split(",")
    if unknown := [name for name in names if name not in FAMILIES]:
        parser.error(f"unknown families {', '.join(unknown)}; valid: {', '.join(FAMILIES)}")
    if arguments.seeds < 2 or arguments.steps < 160:
        parser.error("a spread needs at least 2 seeds, and a curve 160 steps")
    torch.set_num_threads(1)
    marks = [arguments.steps // part for part in (8, 4, 2, 1)]
    columns = ["recipe beside", "objective", "side", *(f"step {mark}" for mark in marks)]
    texts = corpus()
    rows = (row for name in names for row in compared(name, texts, arguments, marks))
    show(columns, rows, arguments.csv, "training", keys=3)


def compared(
    name: str,
    texts: tuple[list[Tensor], list[Tensor]],
    arguments: argparse.Namespace,
    marks: Sequence[int],
) -> Iterator[list[str]]:
    """Yield the losses of both sides of a family, and their difference."""
    stream = torch.cat(texts[0])
    family = FAMILIES[name]
    batches = [batch(family.objective, texts, stream, step) for step in range(arguments.steps)]
    losses: dict[str, list[list[float]]] = {"Hugging Face": [], "ours": []}
    for seed in range(arguments.seeds):
        for side, make in zip(losses, (family.theirs, family.ours), strict=True):
            torch.manual_seed(seed)
            losses[side].append(windows(curve(make(), batches), marks))
    for side, rows in losses.items():
        cells = [f"{statistics.fmean(x):.3f} ± {statistics.stdev(x):.3f}" for x in zip(*rows, strict=True)]
        yield [name, family.objective, side, *cells]
    errors = []
    for theirs, ours in zip(*(zip(*rows, strict=True) for rows in losses.values()), strict=True):
        spread = math.sqrt((statistics.variance(theirs) + statistics.variance(ours)) / arguments.seeds)
        errors.append((statistics.fmean(ours) - statistics.fmean(theirs)) / spread)
    yield [name, family.objective, "difference / its standard error", *(f"{e:+.1f}" for e in errors)]


if __name__ == "__main__":
    main()
