"""Extension of a pretrained model to a longer context."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from floater.errors import first_line
from floater.flow.autograd import outside_inference_mode
from floater.flow.checks import is_count
from floater.pretrained.extending.dry_run import DryRun, check_extended
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extend_biases import extend_biases
from floater.pretrained.extending.extend_rotary import extend_rotary
from floater.pretrained.extending.extend_tables import extend_image_table, extend_tables
from floater.pretrained.extending.extension import Extension
from floater.pretrained.extending.install import KEY, recorded
from floater.pretrained.extending.methods import choose_method
from floater.pretrained.extending.model_positions import find_positions
from floater.pretrained.extending.transaction import transaction
from floater.pretrained.flows import Flows
from floater.pretrained.host import UNSAVED, check_not_code, inner, rename, warn_of_adapters
from floater.pretrained.plugged import plugged, plugged_around, trained_part
from floater.transformer.base import FloaterPreTrainedModel


@torch.no_grad()
def extend(model: nn.Module, length: int, method: str | None = None, **options: Any) -> Extension:
    """Extend a Hugging Face model to longer inputs.

    **Learned tables** (BERT, RoBERTa, GPT-2, BART, Whisper's decoder and others): "flow", the default, fits a
    linear flow to the table's vectors and continues it (Liu et al. 2020 with h(t, p) = A (p - c)); "repeat",
    "interpolation" and "hierarchical" are known methods without a flow. The first and the last vector are
    special: `special=(1, 1)` gives the numbers of vectors at both ends that are kept and are not continued.
    Tables of sinusoids (Marian, Pegasus, RoFormer, CTRL, GPT-J) are continued by their formula, "sinusoid".
    Except with "interpolation", the outputs of shorter inputs do not change, bit for bit.

    **Images** (ViT, DINOv2, SigLIP): `length` is the side of the larger, square image in pixels;
    "interpolation" is the default. A model that reads texts, too, is extended for these.

    **Rotary positions** (Llama, Mistral, Qwen, Gemma, Phi-3, ModernBERT and others): "yarn", the default, or
    "ntk" if the configuration refuses it, as that of Phi-3 does; "linear", "dynamic", "longrope" and
    "llama3". They are set in the configuration and computed by Transformers; their parameters are options.
    "dynamic" has the base of a text of `length` tokens. "clipped" (CoPE, 2026) fades the frequencies that
    complete no rotation within the old length. "dropped" (DroPE, 2025) drops all rotation; the model must
    then be trained for a short time. Both are configurations of "longrope", whose factors `search_factors`
    finds by a text. ESM-2 stores its frequencies as weights; they take "ntk", the default, "linear",
    "dynamic" and "llama3". Models that rotate in layers with a window alone, as Mistral 7B v0.1, Cohere 2,
    EXAONE 4 and Llama 4 do, take any length, and all methods but "log_n" refuse them. This library adds three
    methods:

    - "clex" (Chen et al. 2024): a flow over the scale of the frequencies, trained with the model, that
      initially equals the scaling `start="yarn"`, "linear", "ntk" or "dynamic" (that of the paper). All texts
      have the scale of the new length.
    - "self_extend" (Jin et al. 2024): for a query that sees more positions than in training, distances from
      `window` on (by default a quarter of the old length) are grouped by `group` (by default the smallest
      size that avoids new distances); `temperature=True` adds "log_n". No parameters are trained. Attention
      modules with random weights show first that a model rotates by its frequencies alone; over 70 classes
      of text models do. Attention with sinks, latent keys or positions in several dimensions is refused.
    - "log_n": logits of a query that sees n keys are multiplied by max(1, log n / log(old length)).

    A model whose rotary positions are scaled already, as those of Llama 3.1, gpt-oss, Phi-3.5 and DeepSeek,
    keeps the kind of its scaling, which is made wider (the default), or gets "self_extend" or "log_n" on top;
    see `floater.pretrained.extending.native.widen`.

    Extended again, also after it was saved or exported, a model by "linear", "yarn" or "llama3" is that of
    one extension from its original length. Models by the other rotary methods and by biases are refused:
    extend the original. Longer tables leave no trace and are continued from their last vector.

    The outputs for a text do not depend on the texts beside it, on padding, or on whether it is read at once
    or with cached keys. The exceptions are "dynamic" and "clex" with `declared=False`, and "longrope" with
    `short_factor` other than `long_factor`: one rotation, that for the longest text of the batch, padding
    included (of "clex" its length in training lengths, rounded up), is used for all, so that the outputs for
    a text depend on the rest of the batch and on later tokens. Cached keys keep their rotation: these forms
    turn off the cache in generation, and a pass with cached keys of another scale is refused.

    **Biases of distances** (T5, UMT5, Switch, BLOOM, MPT, Falcon with ALiBi): "flow", a `floater_relative`
    that is fitted to the trained bias, continues it in texts longer than in training (`trained=` tokens, by
    default the training length in the configuration or the paper). It is trained on such texts.

    Except for the methods that this library computes ("clex", "self_extend", "log_n" and biases), the result
    is an ordinary model: Transformers loads it from the files of `save_pretrained` without this library. The
    other models load after `floater` is imported, and are refused otherwise. Set the same length in the
    tokenizer (`tokenizer.model_max_length`). A `generation_config.max_length` that is the old length becomes
    the new one. Create optimizers after the extension.

    Before the summary is returned, a model without weights is built from the new configuration and run on one
    row of the new length, of which only shapes, indices and masks are computed: seconds and no memory for a
    model of any size. Its parameters and buffers must have the shapes of those of the extended model, so that
    it can be saved and loaded, and the positions that are extended must reach the output. Values are not
    checked.

    Args:
        model: a model of `transformers`, plugged or not; changed in place, as a whole or not at all.
        length: number of tokens to support, more than the model supports now.
        method: name of the method, see above; None means the first that is named for the kind of positions.
        options: options of the method, see above.

    Returns:
        A summary of the extension.

    Raises:
        ExtendError: if the length is not above the present one, the model's positions do not allow the method
            or have no declared length, a flow is baked for fewer, an option is unknown, or one of the checks
            above fails. The model is then unchanged.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...                              intermediate_size=16, vocab_size=8, max_position_embeddings=32))
        >>> print(extend(model, 64))
        table of positions, 32 to 64 by 'flow'; shorter inputs as before
        >>> model(torch.ones(1, 64, dtype=torch.long)).last_hidden_state.shape
        torch.Size([1, 64, 16])
    """
    if not isinstance(model, nn.Module):
        raise ExtendError(f"the model is a {type(model).__name__}; it must be a model of transformers")
    outer, model = model, inner(model)
    check_not_code(model, ExtendError, "extended")
    if not is_count(length):
        raise ExtendError(f"length is {length!r}; it must be a whole number of at least 1")
    name = type(model).__name__
    if isinstance(model, FloaterPreTrainedModel):
        raise ExtendError(
            f"{name} is a model of this library, whose encoding decides which lengths it takes (floater "
            f"models {model.config.position}); extend changes models of transformers"
        )
    if (before := recorded(model)) is not None:
        raise ExtendError(f"{name} is extended by {before!r} already; extend the original model")
    with transaction(model):
        try:
            summary = _extend(model, length, method, options)
            _check_baked(model, summary)
            _lengthen_generation(model, summary)
        except (ExtendError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # any error of the code of any model
            raise ExtendError(
                f"{name} cannot be extended: {type(error).__name__}: {first_line(error)}"
            ) from error
    origin = f"{UNSAVED}; extended from {summary.old} to {summary.new} by {summary.method!r}"
    rename(model, origin)
    model.__dict__["_floater_extended"] = True  # also by its configuration alone
    if (state := plugged(model)) is not None:  # `unplug` restores this name, but the model stays extended
        state.origin = origin
    if hasattr(model, KEY):
        warn_of_adapters(outer, KEY, "extend")
    return summary


def _check_baked(model: nn.Module, summary: Extension) -> None:
    """Refuse an extension beyond the positions for which a flow in the model, or around it, is baked."""
    for part in (plugged_around(model), *model.modules()):
        flows = None if part is None or plugged(part) is None else trained_part(part)
        baked = flows.length if isinstance(flows, Flows) else None
        if baked is not None and (summary.positions == "image" or baked < summary.new):
            raise ExtendError(
                f"this {type(part).__name__} is baked for {baked} positions; extend it before it is baked"
            )


def _lengthen_generation(model: Any, summary: Extension) -> None:
    """Let `generate` end at the new length, if it would end at the old one."""
    generation = getattr(model, "generation_config", None)
    if generation is not None and summary.positions != "image" and generation.max_length == summary.old:
        generation.max_length = summary.new


@outside_inference_mode
def _extend(model: nn.Module, length: int, method: str | None, options: dict[str, Any]) -> Extension:
    """Extend a model as `extend` does; after an error it may be changed in part."""
    dry_run = DryRun(model)
    positions = find_positions(model, dry_run, length, method)
    method = choose_method(positions, method, options, type(model).__name__)
    differing = dry_run.differing(model)
    if positions.kind == "bias":
        summary = extend_biases(model, positions.biased, length, options)
    elif positions.kind == "rotary":
        summary = extend_rotary(model, positions.bodies, dry_run, length, method, options)
    elif positions.kind == "image":
        summary = extend_image_table(positions.tables[0], length, method)
    else:
        summary = extend_tables(model, positions.tables, length, method, options)
    check_extended(model, dry_run, differing, positions.runners, length)
    return summary
