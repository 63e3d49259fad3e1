"""Extension of a pretrained model to a longer context."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel

from floater.errors import first_line
from floater.pretrained.extending import attention, biases, clex, continuation, native, rotary
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.installed import KEY, PLAIN, follows_length, install, own_configs
from floater.pretrained.extending.tables import Table, find_tables, lengthen
from floater.pretrained.extending.trial import Trial
from floater.pretrained.flows import is_count, refresh
from floater.pretrained.forward import observers, unobserve
from floater.pretrained.plug import UNSAVED, inner, plugged, rename, warn_of_adapters

_OPTIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(continuation.METHODS, frozenset({"special"})),
    "sinusoid": frozenset(),
    "linear": frozenset(),
    "ntk": frozenset(),
    "dynamic": frozenset({"declared"}),
    "yarn": frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    "longrope": frozenset({"short_factor", "long_factor", "attention_factor"}),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
    "clex": frozenset({"start", "declared"}),
    "self_extend": frozenset({"window", "group", "temperature"}),
    "log_n": frozenset(),
}
_OWN = ("clex", "self_extend", "log_n")
"""Methods for rotary positions that Transformers alone does not compute."""

_TOKENS = {"input_ids", "inputs_embeds", "hidden_states"}
"""Arguments of bodies that read texts."""

_KINDS = {
    "table": "a learned table of positions",
    "image": "a grid of patches",
    "rotary": "rotary positions",
    "bias": "biases of distances",
}
_METHODS = {
    "table": (*continuation.METHODS, "sinusoid"),
    "image": tuple(continuation.METHODS),
    "rotary": (*rotary.METHODS, *_OWN),
    "bias": ("flow",),
}
_DEFAULTS = {"table": "flow", "image": "interpolation", "rotary": "yarn", "bias": "flow"}


@dataclass(frozen=True)
class Extension:
    """Summary of an extension: the method, the kind of positions, and the lengths before and after.

    Args:
        method: name of the method.
        positions: kind of positions: "table", "image", "rotary" or "bias".
        old: previous maximum number of tokens, or side of the images in pixels.
        new: new maximum number of tokens, or side of the images in pixels.
        unchanged: True if inputs of the old lengths have the same outputs as before, bit for bit.
        error: root mean squared error of the flow that is fitted to trained biases, in logits.
        by_longest: True if the longest text of a batch, padding included, determines the rotation of all: the
            outputs for a text depend on the texts beside it and on what follows.

    Example:
        >>> print(Extension("flow", "table", 512, 2048, True))
        table of positions, 512 to 2048 by 'flow'; shorter inputs as before
    """

    method: str
    positions: str
    old: int
    new: int
    unchanged: bool
    error: float | None = None
    by_longest: bool = False

    def __str__(self) -> str:
        kind = _KINDS[self.positions].removeprefix("a ").removeprefix("learned ")
        shorter = "as before" if self.unchanged else "changed, too"
        more = "" if self.error is None else f"; the flow misses the trained bias by {self.error:.2g}"
        if self.by_longest:
            more += "; the longest text of a batch sets the rotation of all"
        return f"{kind}, {self.old} to {self.new} by {self.method!r}; shorter inputs {shorter}{more}"


@torch.no_grad()
def extend(model: nn.Module, length: int, method: str | None = None, **options: Any) -> Extension:
    """Extend a Hugging Face model to longer inputs.

    **Learned tables** (BERT, RoBERTa, GPT-2, BART, Whisper's decoder and others): "flow", the default, fits a
    linear flow to the table's vectors and continues it (Liu et al. 2020 with h(t, p) = A (p - c)); "repeat",
    "interpolation" and "hierarchical" are known methods without a flow. The first and the last vector are
    special: `special=(1, 1)` gives the numbers of vectors at both ends that are kept and are not continued.
    Tables of sinusoids (Marian, Pegasus, RoFormer) are continued by their formula, "sinusoid".
    Except with "interpolation", the outputs of shorter inputs do not change, bit for bit.

    **Images** (ViT, DINOv2, SigLIP): `length` is the side of the larger, square image in pixels;
    "interpolation" is the default.

    **Rotary positions** (Llama, Mistral, Qwen, Gemma, Phi-3, ModernBERT and others): "yarn", the default, or
    "ntk" if the configuration refuses it, as that of Phi-3 does; "linear", "dynamic", "longrope" and
    "llama3". They are set in the configuration and computed by Transformers; their parameters are options.
    "dynamic" has the base of a text of `length` tokens. This library adds three methods:

    - "clex" (Chen et al. 2024): a flow over the scale of the frequencies, trained with the model, that
      initially equals the scaling `start="yarn"`, "linear", "ntk" or "dynamic" (that of the paper). All texts
      have the scale of the new length.
    - "self_extend" (Jin et al. 2024): for a query that sees more positions than in training, distances from
      `window` on (by default a quarter of the old length) are grouped by `group` (by default the smallest
      size that avoids new distances); `temperature=True` adds "log_n". No parameters are trained.
    - "log_n": logits of a query that sees n keys are multiplied by max(1, log n / log(old length)).

    A model whose rotary positions are scaled already, as those of Llama 3.1, gpt-oss, Phi-3.5 and DeepSeek,
    keeps the kind of its scaling, which is made wider (the default), or gets "self_extend" or "log_n" on top;
    see `floater.pretrained.extending.native.widen`.

    The outputs for a text do not depend on the texts beside it, on padding, or on whether it is read at once
    or with cached keys. The exceptions are "dynamic" and "clex" with `declared=False`, and "longrope" with
    `short_factor` other than `long_factor`: one rotation, that for the longest text of the batch, padding
    included (of "clex" its length in training lengths, rounded up), is used for all, so that the outputs for
    a text depend on its neighbours and on what follows. Cached keys keep their rotation: these forms turn off
    the cache in generation, and a pass with cached keys of another scale is refused.

    **Biases of distances** (T5, BLOOM, MPT): "flow", a `floater_relative` that is fitted to the trained bias,
    continues it in texts longer than in training (`trained=` tokens, by default the training length in the
    configuration or the paper). It is trained on such texts.

    Except for the methods that this library computes ("clex", "self_extend", "log_n" and biases), the result
    is an ordinary model: Transformers loads it from the files of `save_pretrained` without this library. The
    other models load after `floater` is imported, and are refused otherwise. Set the same length in the
    tokenizer (`tokenizer.model_max_length`). Create optimizers after the extension.

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
            or have no declared length, an option is unknown, or one of the checks above fails. The model is
            then unchanged.

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
    if not is_count(length):
        raise ExtendError(f"length is {length!r}; it must be a whole number of at least 1")
    name = type(model).__name__
    if (before := getattr(getattr(model, "config", None), KEY, None)) is not None:
        raise ExtendError(f"{name} is extended by {before['method']!r} already; extend the original model")
    with whole_or_not_at_all(model):
        try:
            summary = _extended(model, length, method, options)
        except (ExtendError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # any error of the code of any model
            raise ExtendError(
                f"{name} cannot be extended: {type(error).__name__}: {first_line(error)}"
            ) from error
    rename(model, UNSAVED)
    if (state := plugged(model)) is not None:  # `unplug` restores this name, but the model stays extended
        state.origin = UNSAVED
    if hasattr(model, KEY):
        warn_of_adapters(outer, KEY, "extend")
    return summary


def _extended(model: nn.Module, length: int, method: str | None, options: dict[str, Any]) -> Extension:
    """Extend a model as `extend` does; after an error it may be changed in part."""
    name = type(model).__name__
    trial = Trial(model)
    tables, bodies = find_tables(model), rotary.rotary_bodies(model)
    biased = [] if tables or bodies else biases.biased_parts(model)
    if not tables and not bodies and not biased:
        raise _nothing_to_extend(trial, name, length)
    images = [table for table in tables if table.image]
    if images and (len(images) < len(tables) or bodies):
        raise ExtendError(f"{name} reads texts and images; extend the part that needs to take more")
    if len(images) > 1:
        raise ExtendError(f"{name} has {len(images)} grids of patches; extend the parts one by one")
    every, runners = bodies, dict.fromkeys(trial.roots, False)
    if not biased:
        tables, bodies, runners = _used(model, trial, tables, bodies, method)
    kind = "bias" if biased else "rotary" if not tables else "image" if images else "table"
    for body in bodies if kind == "rotary" else ():
        rotary.check(body)
    scaled = _native_scaling(bodies) if kind == "rotary" else None
    if method is None and scaled is not None:
        method = scaled
    if method is None and kind == "table" and all(table.sinusoidal for table in tables):
        method = "sinusoid"
    if method is None:
        method = _DEFAULTS[kind]
        longer = ((body, 2 * int(body.config.max_position_embeddings)) for body in bodies)
        if kind == "rotary" and any(_refusal(body, method, more, {}) for body, more in longer):
            method = "ntk"
    beside = () if scaled == "dynamic" else ("self_extend", "log_n")  # "dynamic" reads the length itself
    methods = _METHODS[kind] if scaled is None else (scaled, *beside)
    if method not in methods:
        allowed = ", ".join(map(repr, methods))
        has = _KINDS[kind] if scaled is None else f"rotary positions that are scaled by {scaled!r} already"
        raise ExtendError(f"method is {method!r}; {name} has {has}, which allow {allowed}")
    valid = {"image": frozenset[str](), "bias": frozenset({"trained"})}.get(kind, _OPTIONS.get(method))
    if valid is None or method == scaled:  # a scaling is made wider with its own options
        valid = frozenset()
    if unknown := sorted(options.keys() - valid):
        raise ExtendError(
            f"method {method!r} has no option {unknown[0]!r}; valid: {', '.join(sorted(valid)) or 'none'}"
        )
    if method in {*_OWN, *PLAIN} and (apart := [body for body in every if body not in bodies]):
        raise ExtendError(
            f"{name} has a {type(apart[0]).__name__} that reads no text; extend the part that reads texts"
        )
    differing, numbers = trial.differing(model), trial.numbers()
    if kind == "bias":
        summary = _extend_biases(model, biased, length, options)
    elif kind == "rotary":
        summary = _extend_rotary(model, bodies, length, method, options)
    elif kind == "image":
        summary = _extend_images(model, tables, length, method)
    else:
        summary = _extend_tables(model, tables, length, method, options)
    _check(model, differing, numbers, runners, length)
    return summary


def _nothing_to_extend(trial: Trial, name: str, length: int) -> ExtendError:
    """Return the refusal of a model whose positions are not known, by whether it takes the length."""
    try:
        for root in trial.roots:
            trial.run(root, length, image=False)
    except Exception as error:  # any error of the code of any model
        return ExtendError(
            f"{name} has no positions that can be extended: no table, no rotary ones that its configuration "
            f"scales, no biases that are known; it does not take {length} tokens ({first_line(error)})"
        )
    return ExtendError(f"{name} takes {length} tokens already: it computes its positions for any length")


def _used(
    model: nn.Module,
    trial: Trial,
    tables: list[Table],
    bodies: list[PreTrainedModel],
    method: str | None,
) -> tuple[list[Table], list[PreTrainedModel], dict[str, bool]]:
    """Return the tables and rotary bodies that the outputs of a model depend on, by a trial.

    Args:
        model: model to extend.
        trial: trial of its configuration.
        tables: its tables of positions, of texts or of images.
        bodies: its rotary bodies.
        method: name of the method, None for the default.

    Returns:
        The tables, the bodies, and the names of the parts of the model that run alone, with whether they take
        images.

    Raises:
        ExtendError: if there are none, a part does not run, or the method cannot change what rotates.
    """
    paths = {part: path for path, part in model.named_modules()}
    image = any(table.image for table in tables)
    short = min([64, *(t.length for t in tables), *(b.config.max_position_embeddings for b in bodies)])
    if image:
        short = _side(tables[0])
    names = {table: _tensor(table, paths) for table in tables}
    trial.mark({name: name for name in names.values()})
    for body in bodies:
        rotary.mark(body, paths[body], trial)
    runners, reached = {}, set[str]()
    for body in dict.fromkeys([*(table.body for table in tables), *bodies]):
        if image or not _TOKENS.isdisjoint(inspect.signature(type(body).forward).parameters):
            runner, marks = trial.runner(paths[body], short, image=image)
            runners[runner] = image
            reached |= marks
    read = [table for table in tables if names[table] in reached]
    rotating = [b for b in bodies if {paths[b], rotary.ROTATION + paths[b]} & reached]
    if method == "clex" and (apart := [body for body in rotating if paths[body] not in reached]):
        raise ExtendError(
            f"{type(apart[0]).__name__} computes its frequencies in each pass; 'clex' cannot change them"
        )
    if not read and not rotating:
        what = _KINDS["rotary" if not tables else "image" if image else "table"]
        raise ExtendError(
            f"{type(model).__name__} has {what}, but with its configuration no output depends on them, so an "
            "extension would change nothing"
        )
    if not image:  # the first token of a text shows which row is that of the first position
        read = [replace(table, first=trial.shapes.first.get(names[table], table.first)) for table in read]
    return read, rotating, runners


def _tensor(table: Table, paths: dict[nn.Module, str]) -> str:
    """Return the name of the tensor of a table in the model."""
    embedding = isinstance(getattr(table.holder, table.name), nn.Embedding)
    return ".".join(filter(None, (paths[table.holder], table.name, "weight" if embedding else "")))


def _check(
    model: nn.Module,
    differing: set[str],
    numbers: dict[tuple[str, str], float],
    runners: dict[str, bool],
    length: int,
) -> None:
    """Check that the configuration of an extended model builds its shapes, and takes the new length.

    Buffers of whole numbers and truth values, such as masks, are replaced by those that it builds, and so are
    numbers of its parts, such as DeepSeek's scale of logits.

    Args:
        model: extended model.
        differing: names of the tensors that had other shapes than the configuration builds before it was
            extended, such as those of quantized weights.
        numbers: `Trial.numbers` of the configuration before it was extended.
        runners: parts to run, with whether they take images; see `Trial.runner`.
        length: number of tokens, or side of the image.

    Raises:
        ExtendError: if shapes differ, or the model does not take the new length.
    """
    trial, name = Trial(model), type(model).__name__
    tensors, buffers = trial.tensors(), dict(model.named_buffers())
    parts = dict(model.named_modules())
    for (path, attribute), number in trial.numbers().items():
        part = parts.get(path)
        if part is not None and numbers.get((path, attribute)) == getattr(part, attribute, None) != number:
            setattr(part, attribute, number)
    for each in sorted(trial.differing(model) - differing):
        there = tensors[each]
        if each not in buffers or there.is_meta:
            here = dict(model.named_parameters()) | buffers
            raise ExtendError(
                f"{name} cannot be extended to {length}: '{each}' is {tuple(here[each].shape)}, and "
                f"{tuple(there.shape)} by the configuration of that length"
            )
        holder, _, attribute = each.rpartition(".")
        setattr(model.get_submodule(holder), attribute, there.to(buffers[each].device))
    for runner, image in runners.items():
        try:
            trial.run(runner, length, image=image)
        except Exception as error:  # any error of the code of any model
            raise ExtendError(
                f"{name} cannot be extended to {length}: other parts of it fail there ({first_line(error)})"
            ) from error


@contextmanager
def whole_or_not_at_all(model: nn.Module) -> Iterator[None]:
    """Restore the modules and configurations of a model if an error ends the block.

    Tensors are not copied, so the block must replace them and not change their values.
    """
    attributes = [(part, dict(part.__dict__)) for part in model.modules()]
    # parameters, buffers, parts and hooks, in the very objects that handles of hooks refer to
    containers: list[tuple[Any, Any]] = [
        (value, copy.copy(value))
        for _, known in attributes
        for value in known.values()
        if isinstance(value, dict | set)
    ]
    observing = [observers(part) for part, _ in attributes]
    own_configs(model)
    for part, known in attributes:
        if "generation_config" in known:
            part.generation_config = copy.deepcopy(known["generation_config"])
    try:
        yield
    except BaseException:
        for part, known in attributes:
            part.__dict__.clear()
            part.__dict__.update(known)
        for value, entries in containers:
            value.clear()
            value.update(entries)
        for (part, _), before in zip(attributes, observing, strict=True):
            for observer in observers(part):
                if observer not in before:
                    unobserve(part, observer)
        raise


def _check_longer(length: int, old: int, what: str) -> None:
    if length <= old:
        raise ExtendError(
            f"length is {length}; the model takes {what.format(old)} already, so it must be more"
        )


def _extend_tables(
    model: nn.Module, tables: list[Table], length: int, method: str, options: dict[str, Any]
) -> Extension:
    old = max(table.length for table in tables)
    _check_longer(length, old, "{} tokens")
    special = options.get("special", (1, 1))
    if (
        not isinstance(special, tuple | list)
        or len(special) != 2
        or any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in special)
    ):
        raise ExtendError(
            f"special is {special!r}; it must be two whole numbers, of the first and last vectors"
        )
    if sum(special) + 2 > min(table.length for table in tables):
        raise ExtendError(f"special is {special!r}, but there are {old} vectors; at least 2 must be left")
    longer = []
    for table in tables:
        rows = table.weight
        try:
            if method == "sinusoid":
                more = continuation.sinusoids(rows[table.first :], length)
            else:
                more = continuation.continued(
                    rows[table.first :], length, method, special=(special[0], special[1])
                )
        except ValueError as error:
            raise ExtendError(f"{type(model).__name__} cannot be extended by {method!r}: {error}") from error
        longer.append(torch.cat((rows[: table.first], more)))
    for table, weight in zip(tables, longer, strict=True):
        lengthen(table.body.config, table.length, length, len(table.weight))
        table.replace(weight)
    return Extension(method, "table", old, length, method != "interpolation")


def _extend_images(model: nn.Module, tables: list[Table], length: int, method: str) -> Extension:
    (table,) = tables
    old, patch = _side(table), table.body.config.patch_size
    if not isinstance(patch, int):
        raise ExtendError(f"patch_size is {patch}; only square patches are extended")
    _check_longer(length, old, "images of {0} x {0} pixels")
    if length % patch:
        raise ExtendError(f"length is {length}; it must be a multiple of the patches' side, {patch}")
    side, new = old // patch, length // patch
    rows = table.weight
    if method == "interpolation":  # the model's own, bicubic
        if not hasattr(table.holder, "interpolate_pos_encoding"):
            raise ExtendError(
                f"{type(table.body).__name__} does not interpolate its positions; method must be 'flow', "
                "'repeat' or 'hierarchical'"
            )
        tokens = rows.new_zeros(1, table.first + new * new, rows.shape[1])
        holder: Any = table.holder
        larger = holder.interpolate_pos_encoding(tokens, length, length)[0]
    else:
        try:
            grid = continuation.continued_grid(rows[table.first :], (side, side), (new, new), method)
        except ValueError as error:
            raise ExtendError(str(error)) from error
        larger = torch.cat((rows[: table.first], grid))
    table.body.config.image_size = length
    table.replace(larger)
    for part in table.holder.modules():
        for name, value in (("image_size", length), ("num_patches", new * new), ("num_positions", new * new)):
            if (known := getattr(part, name, None)) is not None:
                setattr(part, name, (value, value) if isinstance(known, tuple | list) else value)
    return Extension(method, "image", old, length, False)


def _side(table: Table) -> int:
    """Return the side of the images that a table of patches was trained on, in pixels."""
    size = getattr(table.body.config, "image_size", None)
    if not isinstance(size, int):
        raise ExtendError(f"image_size is {size}; only square images of a declared size are extended")
    return size


def _extend_rotary(
    model: nn.Module, bodies: list[PreTrainedModel], length: int, method: str, options: dict[str, Any]
) -> Extension:
    old = max(native.supported(body.config) for body in bodies)
    _check_longer(length, old, "{} tokens")
    if method == native.scaling(bodies[0].config):
        return _widen_rotary(model, bodies, length, method)
    for body in bodies:
        width = rotary.rotated(body.config, native.parameters(body.config))
        if method in ("clex", "dynamic", "ntk") and (width < 4 or width % 2):
            raise ExtendError(
                f"{type(body).__name__} rotates {width} components; {method!r} needs 4, 6, 8 or more"
            )
        if method in _OWN:
            continue
        rotary.check_options(method, options, width // 2)
        if reason := _refusal(body, method, length, options):
            raise ExtendError(f"{type(body).__name__} does not take {method!r}: {reason}")
    settings = {"method": method, "old": old, "new": length, **_settings(method, old, length, options)}
    if method in _OWN:
        install(model, settings)
        for body in bodies:
            native.state_factor(body.config)
            body.config.max_position_embeddings = length
    else:
        for body in bodies:
            rotary.scale(body.config, method, length, options)
            rotary.rebuild(body, changed=method not in ("dynamic", "longrope"))
        if method in PLAIN:
            install(model, settings)
    by_longest = _turn_off_cache(model, bodies, settings)
    unchanged = method in ("self_extend", "log_n") or follows_length(settings)
    return Extension(method, "rotary", old, length, unchanged, by_longest=by_longest)


def _native_scaling(bodies: list[PreTrainedModel]) -> str | None:
    """Return the scaling that rotary bodies have already, or None.

    Raises:
        ExtendError: if it differs among them, or it is none that can be made wider.
    """
    kinds = {native.scaling(body.config) for body in bodies}
    if len(kinds) > 1:
        names = " and ".join(sorted(str(kind) for kind in kinds))
        raise ExtendError(f"parts of the model are scaled by {names}; extend the parts one by one")
    (kind,) = kinds
    if kind is not None and kind not in native.KINDS:
        raise ExtendError(
            f"the rotary positions are scaled by {kind!r}; of the scalings, {', '.join(native.KINDS)} are "
            "made wider"
        )
    return kind


def _widen_rotary(model: nn.Module, bodies: list[PreTrainedModel], length: int, method: str) -> Extension:
    """Extend a model whose rotary positions are scaled by the method already."""
    old = max(native.supported(body.config) for body in bodies)
    for body in bodies:
        native.widen(body.config, length)
        rotary.rebuild(body, changed=method != "longrope")
    settings = {"method": method, "old": old, "new": length, **_settings(method, old, length, {})}
    if method in PLAIN:
        install(model, settings)
    by_longest = _turn_off_cache(model, bodies, settings)
    return Extension(method, "rotary", old, length, False, by_longest=by_longest)


def _refusal(body: PreTrainedModel, method: str, length: int, options: dict[str, Any]) -> str | None:
    """Return the reason for which the configuration of a body refuses a scaling; None if it accepts it."""
    trial: Any = copy.deepcopy(body.config)
    rotary.scale(trial, method, length, options)
    try:
        trial.validate()
    except (StrictDataclassError, ValueError) as error:
        return str(error.__cause__ or error)
    return None


def _settings(method: str, old: int, length: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a method of this library, completed and checked."""
    if method == "clex":
        start, declared = options.get("start", "yarn"), options.get("declared", True)
        if start not in clex.SCALINGS:
            raise ExtendError(f"start is {start!r}; it must be one of {', '.join(map(repr, clex.SCALINGS))}")
        if not isinstance(declared, bool):
            raise ExtendError(f"declared is {declared!r}; it must be True or False")
        return {"start": start, "declared": declared}
    if method == "dynamic":
        return {"declared": options.get("declared", True)}
    if method == "log_n":
        return {"temperature": True}
    if method != "self_extend":
        return {}
    window = options.get("window", max(1, old // 4))
    if not is_count(window) or window >= old:
        raise ExtendError(f"window is {window!r}; it must be a whole number from 1 to {old - 1}")
    least = attention.groups(length, old, window)
    group = options.get("group", least)
    if not is_count(group) or group < least:
        raise ExtendError(
            f"group is {group!r}; with window={window} it must be a whole number of at least {least}, so "
            f"that a text of {length} tokens has no distance above {old}"
        )
    temperature = options.get("temperature", False)
    if not isinstance(temperature, bool):
        raise ExtendError(f"temperature is {temperature!r}; it must be True or False")
    return {"group": [window, group], "temperature": temperature}


def _turn_off_cache(model: Any, bodies: list[PreTrainedModel], settings: dict[str, Any]) -> bool:
    """Turn off the cache of a model whose rotations depend on the longest text; return whether they do."""
    moving = bodies if follows_length(settings) else []
    if settings["method"] == "longrope":
        ropes = [(body, native.parameters(body.config)) for body in bodies]
        moving = [body for body, rope in ropes if rope["short_factor"] != rope["long_factor"]]
    # Phi-3's generation resets its cache when the factors change
    if any(body.config.model_type != "phi3" or follows_length(settings) for body in moving):
        for body in bodies:
            body.config.use_cache = False
        if (generation := getattr(model, "generation_config", None)) is not None:
            generation.use_cache = False
    return bool(moving)


def _extend_biases(model: nn.Module, parts: list[Any], length: int, options: dict[str, Any]) -> Extension:
    given = options.get("trained")
    if given is not None and not (is_count(given) and given >= biases.NEAR):
        raise ExtendError(f"trained is {given!r}; it must be a whole number of at least {biases.NEAR} tokens")
    known = [biases.training_length(part, given) for part in parts]
    old = max((found for found in known if found is not None), default=None)
    if old is None:
        raise ExtendError(f"the training length of {type(model).__name__} is not known; give trained=")
    _check_longer(length, old, "{} tokens")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # initial weights of the fit
        trained = install(model, {"method": "flow", "old": old, "new": length})
    errors = [biases.fit(flow, bias, old) for flow, bias in trained]
    for flow, _ in trained:
        refresh(flow)  # as in a loaded model, which has no solver plans from a fit
    for part in parts:
        if part.config.model_type == "mpt":
            part.config.max_seq_len = length
    return Extension("flow", "bias", old, length, True, max(errors))
