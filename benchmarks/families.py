"""Extend a tiny model of every class of the installed Transformers that declares positions: docs/families.md.

python benchmarks/families.py           writes the page and its table
python benchmarks/families.py llama t5  prints the outcomes of some classes
"""

from __future__ import annotations

import copy
import csv
import inspect
import io
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers import PreTrainedConfig, PreTrainedModel

import floater
import tiny_configs
from floater.pretrained import ExtendError
from floater.pretrained.extending.dry_run import example_inputs, ordinary_tokens

TABLE = Path(__file__).parents[1] / "docs" / "families.csv"
LONGER = 96
"""Tokens of the extended models; before, they take at most tiny_configs.LENGTH."""

REASONS = {
    "takes any length: no positions, or positions that are computed": r"takes \d+ tokens already",
    "takes any length: only layers with a window rotate": "in layers with a window",
    "reads no text: positions of frames or patches": "reads no text",
    "a part that runs only within its whole": "cannot be run on (tokens|an image) alone",
    "another part keeps the old length": "by the configuration of that length|other parts of it fail",
    "computes its positions in a way that is not known": "has no positions that can be extended",
    "layers of several kinds attend to the whole text": "rotates layers by their kinds",
    "images or patches that are not square": "only square|does not interpolate",
    "its positions reach no output": "no output depends on them",
    "several grids of patches": "grids of patches",
}
"""Reasons of refusals, by a pattern of the message."""

DIFFERS = "outputs differ after loading"


@dataclass(frozen=True)
class Outcome:
    """The result of `floater.extend` for a class.

    Args:
        name: model type.
        model: name of the model's class.
        result: "extended", "refused", "failing", or "not built".
        reason: kind of positions and method of an extension; reason of a refusal; what failed.
        text: summary or message.
        version: version of Transformers.
        commit: commit of this repository by which it was examined.
        seconds: duration on the processor.
    """

    name: str
    model: str
    result: Literal["extended", "refused", "failing", "not built"]
    reason: str
    text: str
    version: str = transformers.__version__
    commit: str = ""
    seconds: float = 0.0


def examine(name: str, kind: type[PreTrainedConfig]) -> Outcome:
    """Extend a tiny model of a configuration class, and check the result.

    An extension is right if the model computes finite outputs at the new length, has the outputs of before at
    the old length where this is promised and others at the new one, is causal if it was, and has the same
    outputs when it is loaded from its files.

    Args:
        name: model type.
        kind: configuration class.
    """
    try:
        model = tiny_configs.build(kind)
    except Exception as error:  # any error of any model
        return Outcome(name, "", "not built", _missing(error), _line(error))
    outcome = (name, type(model).__name__)
    before = copy.deepcopy(model)
    try:
        summary = _extended(model)
    except ExtendError as error:
        text = _line(error)
        reason = next((reason for reason, pattern in REASONS.items() if re.search(pattern, text)), None)
        return Outcome(*outcome, "refused" if reason else "failing", reason or "unknown refusal", text)
    except Exception as error:  # any error of any model
        return Outcome(*outcome, "failing", type(error).__name__, _line(error))
    if wrong := _fault(_wrong, model, before, summary):
        if wrong == _fault(_wrong_before, before, summary):
            return Outcome(*outcome, "not built", f"not extended it fails, too: {wrong}", str(summary))
        return Outcome(*outcome, "failing", wrong, str(summary))
    return Outcome(*outcome, "extended", f"{summary.positions}, {summary.method}", str(summary))


def _extended(model: PreTrainedModel) -> Any:
    """Extend a model to LONGER tokens, or to images of twice the side."""
    try:
        return floater.extend(model, LONGER)
    except ExtendError as error:
        if re.search("trained=|takes \\d{3,4} tokens already, so", str(error)):  # of biases
            return floater.extend(model, LONGER, trained=tiny_configs.LENGTH)
        if side := re.search(r"takes images of (\d+) x|multiple of the patches' side", str(error)):
            size = int(side[1] or tiny_side(model))
            return floater.extend(model, 2 * size)
        raise


def tiny_side(model: PreTrainedModel) -> int:
    """Return the side of the images of a model."""
    configs = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    return next(
        int(config.image_size) for config in configs if isinstance(getattr(config, "image_size", None), int)
    )


def _wrong(model: PreTrainedModel, before: PreTrainedModel, summary: Any) -> str | None:
    """Return what is wrong with an extension; None if nothing is."""
    image, old, new = summary.positions == "image", summary.old, summary.new
    path = _runner(model, new if image else old, image)
    part, plain = model.get_submodule(path), before.get_submodule(path)
    result = _output(part, new, image)
    if not bool(result.isfinite().all()):
        return "outputs are not finite"
    if image:
        if "interpolate_pos_encoding" in inspect.signature(type(plain).forward).parameters:
            expected = _output(plain, new, image, interpolate_pos_encoding=True)
            if not _close(result, expected):
                return "outputs are not those of the model's interpolation"
        return None if _close(_loaded(model, path, new, image), result) else DIFFERS
    short, expected = _output(part, old, image), _output(plain, old, image)
    if summary.unchanged and not torch.equal(short, expected):
        return f"outputs at the old length differ by {float((short - expected).abs().max()):.2g}"
    try:
        unextended = _output(plain, new, image)
    except Exception:  # a table ends
        unextended = None
    if unextended is not None and torch.equal(unextended, result):
        return "the extension has no effect"
    longer, shorter = (
        (expected, _output(plain, old // 2, image)) if unextended is None else (unextended, expected)
    )
    causal = not summary.by_longest and _close(longer[:, : shorter.shape[1]], shorter)
    if causal and not _close(result[:, :old], short):
        return "outputs depend on later tokens"
    return None if _close(_loaded(model, path, new, image), result) else DIFFERS


def _wrong_before(model: PreTrainedModel, summary: Any) -> str | None:
    """Return what is wrong with a model that is not extended when it is loaded from its files."""
    image, old = summary.positions == "image", summary.old
    path = _runner(model, old, image)
    result = _output(model.get_submodule(path), old, image)
    return None if _close(_loaded(model, path, old, image), result) else DIFFERS


def _fault(check: Callable[..., str | None], *arguments: Any) -> str | None:
    """Return what a check reports, or its error."""
    try:
        return check(*arguments)
    except Exception as error:  # any error of any model
        return f"{type(error).__name__}: {_line(error)}"


def _loaded(model: PreTrainedModel, path: str, length: int, image: bool) -> Tensor:
    """Return the output of a part of a model that is loaded from its files."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder, experts_implementation="eager").eval()
    return _output(again.get_submodule(path), length, image)


def _runner(model: PreTrainedModel, length: int, image: bool) -> str:
    """Return the name of the largest part of a model that runs on a text, or on an image."""
    error: Exception | None = None
    for path, part in model.named_modules():
        if isinstance(part, PreTrainedModel):
            try:
                _output(part, length, image)
            except Exception as failure:  # any error of any model
                error = error or failure
            else:
                return path
    raise error or TypeError("nothing runs")


def _output(part: Any, length: int, image: bool, **options: Any) -> Tensor:
    """Return the first output of a part for one text or image."""
    error: Exception | None = None
    for inputs in example_inputs(part, length, image):
        generator = torch.Generator().manual_seed(0)
        words = torch.tensor(ordinary_tokens(part.config, 16))
        values = dict(inputs)
        for name, value in inputs.items():
            if _has_fractions(value):
                values[name] = torch.randn(value.shape, generator=generator)
            elif name.endswith("input_ids"):  # different words: attention over equal ones has no positions
                values[name] = words[torch.randint(len(words), value.shape, generator=generator)]
        try:
            with torch.no_grad():
                output = part(**values, **options)
        except Exception as failure:  # any error of any model: the next inputs may suit it
            error = error or failure
            continue
        leaves = pytree.tree_leaves(dict(output) if isinstance(output, Mapping) else output)
        result: Tensor = next(filter(_has_fractions, leaves))
        return result
    raise error or TypeError(f"{type(part).__name__} takes neither tokens nor images")


def _missing(error: Exception) -> str:
    """Return why a model cannot be built, in a few words."""
    library = re.search(r"requires the (\w+) library", str(error))
    if library:
        return f"needs {library[1]}"
    reasons = {MemoryError: "too large", ModuleNotFoundError: "no model", LookupError: "no model"}
    return reasons.get(type(error), f"no tiny configuration: {type(error).__name__}")


def _has_fractions(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def _line(error: BaseException) -> str:
    """Return the message in one line, without the folders in which modules are installed."""
    return re.sub(r" from '/[^']*'", "", " ".join(str(error).split()))


def page(outcomes: list[Outcome], total: int) -> str:
    """Return docs/families.md.

    Args:
        outcomes: outcomes of the classes that were examined.
        total: number of classes that declare positions.
    """
    results = Counter(each.result for each in outcomes)
    built = [each for each in outcomes if each.result in ("extended", "refused", "failing")]
    rows = ["| result | classes |", "|---|---:|", f"| extended | {results['extended']} |"]
    for reason, count in Counter(each.reason for each in built if each.result == "refused").most_common():
        rows.append(f"| refused: {reason} | {count} |")
    rows += [f"| **failing** | **{results['failing']}** |", f"| all that were built | {len(built)} |"]
    kinds = Counter(each.reason for each in built if each.result == "extended")
    methods = ["| positions, default method | classes |", "|---|---:|"]
    methods += [f"| {kind} | {count} |" for kind, count in kinds.most_common()]
    refusals, missing = (
        [
            f"| {reason} | {', '.join(f'`{each.name}`' for each in outcomes if each.reason == reason)} |"
            for reason in dict.fromkeys(each.reason for each in outcomes if each.result == result)
        ]
        for result in ("refused", "not built")
    )
    failing = [f"- `{each.name}`: {each.reason} ({each.text})" for each in built if each.result == "failing"]
    commits = Counter(each.commit for each in outcomes)
    return PAGE.format(
        commits="\n".join(f"| {commit} | {count} |" for commit, count in commits.most_common()),
        minutes=round(sum(float(each.seconds) for each in outcomes) / 60),
        version=transformers.__version__,
        examined="all" if len(outcomes) == total else f"{len(outcomes)} of the",
        total=total,
        counts="\n".join(rows),
        methods="\n".join(methods),
        refusals="\n".join(refusals),
        missing="\n".join(missing),
        failing="\n".join(failing) or "None fails.",
    )


PAGE = """# Every class of Transformers

`floater.extend` on a tiny random model of configuration classes of Transformers {version} that declare
positions of tokens or relative biases, themselves or in a part (as LLaVA does), and of some of images:
{examined} {total}.

{counts}

{failing}

`python benchmarks/families.py` writes this page and [families.csv](families.csv), which has the message of
each class and continues where it stopped; rows that are deleted are examined anew. The tests marked slow
examine all classes, those that declare positions themselves and the composite models around them in two
processes. A model is extended from at most 64 tokens to 96 by its default method. The extension is correct if

- the outputs at the new length are finite, and differ from those without the extension where the model
  runs there,
- outputs at the old length are unchanged, bit for bit, where the summary says so,
- outputs do not depend on later tokens if they did not before,
- outputs for larger images are those of the model's own interpolation,
- the model has the same outputs when it is loaded from its files.

A model that already fails when it is loaded from its files without an extension is counted as not built.

The weights are random: the table shows what runs and what is saved, not how well a model reads longer texts.
A configuration has the windows of its class's defaults. Checkpoints without one, as those of Mistral 7B from
v0.2 on, are extended where the table says that only layers with a window rotate.

## Extended

{methods}

Classes decided individually:

- **Whisper** and other audio models with a text decoder: the decoder's table is continued; the encoders read
  recordings of a fixed length. **Encoder-decoders with two tables**: both are continued.
- **ViT, DINOv2 and SigLIP**: grids of patches are interpolated to larger square images. A model of texts
  *and* images is extended for texts; extend its vision part for images.
- **ModernBERT, EuroBERT**, Gemma 3, Olmo 3, Zaya: rotation of the layers that attend to the whole text;
  sliding-window layers keep theirs.
- **Hybrids of Mamba and attention**: Bamba, Granite 4 and Zamba 2 rotate and are extended. Jamba and
  Nemotron-H have no positions.
- **GPT-J, CodeGen, CTRL**: their sines and cosines end at the declared length and are continued by their
  formula.
- **ESM-2**: its frequencies are weights, which are rescaled ("ntk" by default; no method with a temperature).
- **Falcon with ALiBi**: like BLOOM, by a flow that continues the bias.
- **Composite models with several texts**: MusicGen reads one with T5's encoder, whose biases are continued;
  its decoder's positions are computed for any length. DiffusionGemma's decoder reads keys of its encoder:
  both have the same rotation.
- **The T5 family**: T5, mT5, UMT5 and Switch. LongT5, Pix2Struct and UDOP take any length with their last
  bucket.

## Refused

| reason | classes |
|---|---|
{refusals}

## Not built

| reason | classes |
|---|---|
{missing}

## Provenance

{minutes} minutes of a core, one thread, seed 0.

| commit | classes |
|---|---:|
{commits}
"""


def main() -> None:
    """Examine the classes that are named, or those that the table does not have, and write page and table."""
    transformers.logging.set_verbosity_error()
    kinds = tiny_configs.classes()
    if unknown := sorted(set(sys.argv[1:]) - kinds.keys()):
        sys.exit(f"no class that declares positions: {', '.join(unknown)}")
    outcomes = {each.name: each for each in read() if each.name in kinds}
    git = ["git", "-C", str(TABLE.parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    for name in sys.argv[1:] or [name for name in kinds if name not in outcomes]:
        start = time.process_time()
        outcome = examine(name, kinds[name])
        seconds = round(time.process_time() - start, 2)
        outcomes[name] = replace(outcome, commit=commit, seconds=seconds)
        print(outcomes[name], flush=True)
        write([outcomes[name] for name in kinds if name in outcomes], len(kinds))


def read() -> list[Outcome]:
    """Return the outcomes of the table for the installed version."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="", encoding="utf-8") as lines:
        return [Outcome(**row) for row in csv.DictReader(lines) if row["version"] == transformers.__version__]


def write(outcomes: list[Outcome], total: int) -> None:
    """Write the page and its table; see `page`."""
    text = io.StringIO()
    rows = csv.DictWriter(text, [each.name for each in fields(Outcome)], lineterminator="\n")
    rows.writeheader()
    rows.writerows(asdict(each) for each in outcomes)
    TABLE.write_text(text.getvalue(), encoding="utf-8")
    TABLE.with_suffix(".md").write_text(page(outcomes, total), encoding="utf-8")


if __name__ == "__main__":
    main()
