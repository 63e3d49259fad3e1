"""Which components of a head the attention of a model rotates together, found by running it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from floater.errors import first_line
from floater.pretrained.extending import attention, native, rotary
from floater.pretrained.extending.dry_run import DryRun
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.watch import PASS
from floater.pretrained.families import PlugError
from floater.pretrained.find import find_bodies

_RECORDER, _CALL = "floater_recorder", "floater_call"
_COMPUTED = {"dropout", "scaling", "softcap"}
_ELSEWHERE = {
    PASS, "cache_position", "deterministic", "is_causal", "output_attentions", "position_ids",
    "sliding_window", "use_cache",
}  # fmt: skip
"""Arguments of an attention function that `attention.attend` computes, and those that are in the mask, in the
rotation or in nothing that it returns."""
_NEAR, _FAR = 3, 10
"""Positions of a token whose rotations are compared."""
_TOLERANCE = 1e-3


def attention_modules(body: nn.Module) -> dict[str, Any]:
    """Return the attention modules of a rotary body by name.

    Raises:
        ExtendError: if their projections are not known.
    """
    try:
        specs = find_bodies(body, None)
    except PlugError as error:
        raise ExtendError(
            f"the projections of queries and keys of {type(body).__name__} are not known; use a method of "
            "the configuration"
        ) from error
    paths = [f"{spec.path}.{each.path}".strip(".") for spec in specs for each in spec.projections]
    modules = {path: body.get_submodule(path) for path in dict.fromkeys(p.rpartition(".")[0] for p in paths)}
    return {path: module for path, module in modules.items() if hasattr(module, "config")}  # no recurrence


def check_calls(body: PreTrainedModel, path: str, dry_run: DryRun, method: str) -> None:
    """Refuse a body whose attention does more than `attention.attend` computes.

    Args:
        body: rotary body.
        path: name of the body in the model.
        dry_run: dry run of the model, in which the body is run.
        method: name of the method.

    Raises:
        ExtendError: if an attention module does not call an attention function of Transformers with the
            arguments that `attend` needs, or by "self_extend" with others than it computes.
    """
    name, part = type(body).__name__, dry_run.parts[path]
    modules = attention_modules(part)
    handle = part.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, PASS: True}), with_kwargs=True
    )
    try:
        with _recording(part, modules.values()):
            dry_run.runner(path, _FAR, image=False)
        for each, module in modules.items():
            call = module.__dict__.pop(_CALL, None)
            if call is None or PASS not in call[1] or not hasattr(module, "is_causal"):
                raise ExtendError(
                    f"{method!r} computes attention, and '{each}' of {name} has another than Transformers' "
                    "attention functions"
                )
            others = {key for key, value in call[1].items() if value is not None}
            others -= _COMPUTED | _ELSEWHERE
            if others and method == "self_extend":
                raise ExtendError(
                    f"'{each}' of {name} has attention with {', '.join(sorted(others))}, which "
                    f"{method!r} does not compute"
                )
        for each, module in part.named_modules():
            if module.__dict__.pop(_CALL, None) is not None:
                raise ExtendError(
                    f"'{each}' of {name} reads the keys of another block, which {method!r} does not do"
                )
    finally:
        handle.remove()


def rotates_halves(body: PreTrainedModel, path: str, dry_run: DryRun, trained: int) -> bool:
    """Return whether a body rotates component i with i + dim / 2; else it is with its neighbour.

    Attention modules with random weights read a token at two positions. The rotation between them must be
    that of the frequencies of the body.

    Args:
        body: rotary body.
        path: name of the body in the model.
        dry_run: dry run of the model, from whose modules random ones are made.
        trained: training length.

    Raises:
        ExtendError: if a module that attends over more than the training length rotates in another way, or
            there is none.
    """
    name, kind = type(body).__name__, native.layer_kind(body.config)
    holder, _, frequencies = rotary.frequencies(body)[0].rpartition(".")
    rotation: Any = copy.deepcopy(body.get_submodule(holder)).cpu()
    if any(key.endswith("_section") for key in (*native.parameters(body.config), *vars(rotation))):
        raise ExtendError(f"{name} rotates by several positions of a token; 'self_extend' groups one")
    hidden = torch.randn(1, 1, body.config.hidden_size, generator=torch.Generator().manual_seed(0))
    weights: dict[Any, Tensor] = {}
    pairs: dict[bool, str] = {}
    for each, module in attention_modules(dry_run.parts[path]).items():
        if not attention.grouped_layer(module, body.config, trained):
            continue
        twin, calls = _with_random_weights(module, weights), []
        try:
            with torch.no_grad(), _recording(twin, [twin]):
                for at in (_NEAR, _FAR):
                    angles = rotation(hidden, torch.tensor([[at]]), *([] if kind is None else [kind]))
                    twin(hidden_states=hidden, position_embeddings=angles, attention_mask=None)
                    calls.append(twin.__dict__.pop(_CALL)[0])
        except Exception as error:  # any error of any model
            raise ExtendError(
                f"how '{each}' of {name} rotates cannot be seen ({first_line(error)}); use a method of the "
                "configuration"
            ) from error
        right = [
            halves
            for halves in (True, False)
            if _agree(attention.Rule(None, trained, False, rotation, frequencies, halves), *calls)
        ]
        if not right:
            raise ExtendError(
                f"'{each}' of {name} does not rotate its queries and keys by the frequencies alone, so that "
                "'self_extend' cannot rotate them further; use a method of the configuration"
            )
        pairs.setdefault(right[0], each)  # two components are halves and neighbours
    if len(pairs) != 1:
        raise ExtendError(
            f"'{pairs[True]}' and '{pairs[False]}' of {name} rotate other components together"
            if pairs
            else f"{name} rotates in no layer that attends beyond the training length: nothing is to group"
        )
    return next(iter(pairs))


def _agree(rule: attention.Rule, near: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor]) -> bool:
    """Return whether the rule turns queries and keys at one position into those at another."""
    shift = torch.tensor([[_FAR - _NEAR]])
    return all(
        before.shape == after.shape
        and not torch.allclose(before, after, rtol=0, atol=_TOLERANCE)
        and torch.allclose(attention.rotated(rule, before, shift), after, rtol=0, atol=_TOLERANCE)
        for before, after in zip(near, far, strict=True)
    )


def _with_random_weights(module: nn.Module, weights: dict[Any, Tensor]) -> Any:
    """Return a copy of a module without weights that has random ones, shared by modules of equal shapes."""
    twin = copy.deepcopy(module).to_empty(device="cpu").float().eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in twin.named_parameters():
        if (key := (name, parameter.shape)) not in weights:
            sample = torch.randn(parameter.shape, generator=generator)
            weights[key] = sample / parameter.shape[-1] ** 0.5 if sample.ndim > 1 else 1 + sample / 4
        parameter.data = weights[key]
    for buffer in twin.buffers():
        buffer.zero_()
    return twin


def _record(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> Any:
    """Record the arguments of an attention function, and return zeros."""
    module.__dict__[_CALL] = (query, key), kwargs
    return query.new_zeros(len(query), query.shape[2], query.shape[1], value.shape[-1]), None


@contextmanager
def _recording(part: Any, modules: Iterable[Any]) -> Iterator[None]:
    """Let attention modules of a part record their calls until the end of the block."""
    configs = {id(each.config): each.config for each in (part, *modules)}.values()
    before = [(config, config._attn_implementation) for config in configs]
    for config, _ in before:
        config._attn_implementation = _RECORDER
    try:
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation


ALL_ATTENTION_FUNCTIONS.register(_RECORDER, _record)
ALL_MASK_ATTENTION_FUNCTIONS.register(_RECORDER, eager_mask)
