"""Random plugged and extended models of Transformers, built from tiny configurations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import floater
from floater.pretrained.extending import attention
from pretrained import extended, zoo

IMAGES = tuple(zoo.IMAGES)
CAUSAL = (*(name for name in zoo.DECODERS if name != "bert-decoder"), "bloom", "mpt")
FAMILIES = (*zoo.NAMES, "bloom", "mpt")
WHOLE_BATCH = ("dynamic", "longrope")
"""Methods whose scale is that of the longest text of a batch, as Transformers computes it."""
_ROTARY = ("linear", "ntk", "dynamic", "yarn", "longrope", "llama3", "clex", "self_extend", "log_n")
_TABLES = ("flow", "repeat", "interpolation", "hierarchical")
_OLD = {"whisper": 32, "siglip-text": 16, "bloom": 32, "mpt": 32, "t5": 32} | dict.fromkeys(
    ("roberta", "xlm-roberta", "mpnet"), 510
)
_LARGE = ("bert", "bert-decoder", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "mpnet",
          "deberta-v2", "bert2bert")  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A model, and what was done to it in order.

    Args:
        family: name of the architecture.
        attention: "eager" or "sdpa".
        changes: "plug" or "extend", each with its options.
    """

    family: str
    attention: str = "eager"
    changes: tuple[tuple[str, dict[str, Any]], ...] = field(default_factory=tuple)

    @property
    def old(self) -> int:
        """The number of tokens that the model took before."""
        return _OLD.get(self.family, 512 if self.family in _LARGE else 64)

    @property
    def extension(self) -> dict[str, Any]:
        """The options of the extension; empty if there is none."""
        return next((options for name, options in self.changes if name == "extend"), {})

    @property
    def new(self) -> int:
        """The number of tokens, or of pixels of a side, that the model takes now."""
        return int(self.extension.get("length", self.old))

    @property
    def by_batch(self) -> bool:
        """Whether the numbers of a text depend on the others of its batch, as is documented."""
        method, declared = (self.extension.get(name) for name in ("method", "declared"))
        return method in WHOLE_BATCH or (method == "clex" and not declared)

    def build(self) -> Any:
        """Return the model in evaluation mode, the weights of what was added away from their start."""
        model = self.original()
        for name, options in self.changes:
            torch.manual_seed(1)  # so that what one change draws does not depend on the other
            getattr(floater, name)(model, **options)
        return noisy(model)

    def original(self) -> Any:
        """Return the model before the changes."""
        model = extended.build(self.family)
        if self.kernels:
            model.set_attn_implementation(self.attention)
        return model

    @property
    def kernels(self) -> bool:
        """Whether the original model has an attention of both kinds."""
        return self.family not in ("deberta-v2", "mpnet", "gemma2", "mpt", "bloom")


def noisy(model: Any) -> Any:
    """Randomise the parameters that `plug` and `extend` added."""
    for part in ("floater", "floater_extension"):
        generator = torch.Generator().manual_seed(3)
        for name, parameter in getattr(model, part, nn.Module()).named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.data += (0.3 if name.endswith("start") else 0.05) * noise  # fields that stay small
    return model


@st.composite
def plug_options(draw: st.DrawFn) -> dict[str, Any]:
    """Draw arguments of `plug`, most of them valid."""
    options: dict[str, Any] = {
        "blocks": st.sampled_from(["all", "input", [1], [0, 1]]),
        "projections": st.lists(st.sampled_from(["query", "key", "value"]), min_size=1, unique=True),
        "start": st.sampled_from(["zero", "small"]),
        "freeze_model": st.booleans(),
        "max_length": st.sampled_from([1, 16, 512]),
        "delta": st.sampled_from([0.03, 0.1, 0.3]),
        "time_scale": st.sampled_from([1.0, 0.5, "learned"]),
        "share": st.sampled_from(["blocks", "none"]),
        "solver": st.sampled_from(["auto", "dopri5", "rk4", "collocation"]),
        "activation": st.sampled_from(["tanh", "relu", "gelu", "silu", "selu"]),
        "hidden": st.sampled_from([None, 1, 5]),
        "field": st.sampled_from(["mlp", "bounded"]),
        "uncovered": st.sampled_from(["keep", "cut", "round"]),
    }
    names = draw(st.lists(st.sampled_from(sorted(options)), max_size=4, unique=True))
    return {name: draw(options[name]) for name in names}


@st.composite
def extend_options(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """Draw arguments of `extend` that suit the positions of a family."""
    old = Subject(family).old
    if family in IMAGES:
        methods: tuple[str | None, ...] = (None, *_TABLES)
        return {"length": draw(st.sampled_from([12, 16, 24])), "method": draw(st.sampled_from(methods))}
    options: dict[str, Any] = {"length": draw(st.integers(old + 1, 2 * old + 9))}
    if family in extended.ROTARY:
        method = options["method"] = draw(st.sampled_from((None, *_ROTARY)))
        if method == "clex":
            options |= {
                "start": draw(st.sampled_from(["yarn", "linear", "ntk", "dynamic"])),
                "declared": draw(st.booleans()),
            }
        elif method == "self_extend":
            window = options["window"] = draw(st.integers(1, old - 1))
            least = attention.groups(options["length"], old, window)
            options |= {"group": draw(st.integers(least, least + 5)), "temperature": draw(st.booleans())}
    elif family in ("t5", "bloom", "mpt"):
        options |= {"method": draw(st.sampled_from([None, "flow"]))}
        if family == "t5":
            options["trained"] = old
    else:
        options["method"] = draw(st.sampled_from((None, *_TABLES)))
        if draw(st.booleans()):
            options["special"] = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    return options


@st.composite
def subjects(draw: st.DrawFn, families: tuple[str, ...] = FAMILIES) -> Subject:
    """Draw a model that was plugged, extended, or both in either order."""
    family = draw(st.sampled_from(families))
    plug, extend = ("plug", draw(plug_options())), ("extend", draw(extend_options(family)))
    changes = draw(st.sampled_from([(plug,), (extend,), (plug, extend), (extend, plug)]))
    return Subject(family, draw(st.sampled_from(["eager", "sdpa"])), changes)


def texts(lengths: list[int], left: bool = False) -> tuple[Tensor, Tensor]:
    """Return token ids and their mask: rows of the given lengths, padded on the right or on the left."""
    longest, generator = max(lengths), torch.Generator().manual_seed(sum(lengths))
    ids = torch.randint(3, zoo.VOCABULARY, (len(lengths), longest), generator=generator)
    at, counts = torch.arange(longest), torch.tensor(lengths)[:, None]
    mask = (at >= longest - counts if left else at < counts).long()
    return ids.masked_fill(mask == 0, zoo.PADDING), mask
