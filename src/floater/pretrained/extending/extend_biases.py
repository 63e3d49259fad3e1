"""Extension of trained biases of distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from floater.flow.checks import is_count
from floater.pretrained.extending import biases
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import Extension, check_longer
from floater.pretrained.extending.install import install
from floater.pretrained.flows import refresh


def extend_biases(model: Any, parts: list[Any], length: int, options: Mapping[str, Any]) -> Extension:
    """Continue the biases of a model by flows that are fitted to them.

    Args:
        model: model that contains the parts; changed in place.
        parts: parts that add biases, see `biases.biased_parts`.
        length: number of tokens to support.
        options: `trained`, the training length in tokens; by default that of the configuration or the paper.

    Returns:
        A summary of the extension.

    Raises:
        ExtendError: if the length or the option is not valid, or the training length is not known.
    """
    trained = options.get("trained")
    if trained is not None and not (is_count(trained) and trained >= biases.NEAR):
        raise ExtendError(
            f"trained is {trained!r}; it must be a whole number of at least {biases.NEAR} tokens"
        )
    lengths = [biases.training_length(part, trained) for part in parts]
    old = max((each for each in lengths if each is not None), default=None)
    if old is None:
        raise ExtendError(f"the training length of {type(model).__name__} is not known; give trained=")
    check_longer(length, old)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # initial weights of the fit
        fits = install(model, {"method": "flow", "old": old, "new": length})
    errors = [biases.fit(flow, bias, old) for flow, bias in fits]
    for flow, _ in fits:
        refresh(flow)  # as in a loaded model, which has no solver plans from a fit
    for part in parts:
        if part.config.model_type == "mpt":
            part.config.max_seq_len = length
        elif part.config.model_type == "falcon":
            part.config.max_position_embeddings = length
    return Extension("flow", "bias", old, length, True, max(errors))
