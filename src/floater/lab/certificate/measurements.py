"""The measurements of a certificate: their order, and how they stop and resume."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import floater
from floater.errors import DataError, first_line
from floater.lab.certificate.answers import answer
from floater.lab.certificate.certified_model import CertifiedModel, Method
from floater.lab.certificate.loss import (
    Read,
    blocks,
    causal_read,
    causal_windows,
    masked_read,
)
from floater.lab.certificate.needles import KINDS, TASKS, TooShort, haystack
from floater.lab.certificate.record import Record
from floater.lab.study.trial import software
from floater.lab.tasks.finetuning.text import special
from floater.lab.tasks.measurement import Array
from floater.lab.training.files import read_record, write_json
from floater.lab.training.peak_memory import peak_memory, reset_peak_memory

FINALISTS = 3
"""Number of methods whose needles are measured: those with the lowest loss beyond the old length so far."""
ROUNDS = 3
"""Minimum number of rounds of needles."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Text:
    """A text of the certificate.

    Args:
        name: name of its file.
        text: the text.
        ids: its first tokens, as many as the new length has room for, without special tokens.
    """

    name: str
    text: str
    ids: Array


@dataclass(frozen=True)
class Unit:
    """One measurement.

    Args:
        kind: "loss", "windows" or the kind of a text with needles.
        method: the method.
        length: number of tokens of the text.
        trial: index of the text.
    """

    kind: str
    method: Method
    length: int
    trial: int

    @property
    def key(self) -> str:
        """Return the name of the measurement in the record."""
        return f"{self.kind}/{self.method}/{self.length}/{self.trial}"


def read_texts(paths: Sequence[str], tokenizer: PreTrainedTokenizerFast, length: int) -> list[Text]:
    """Read the texts of a certificate, one for each file.

    A text is named by its file, or by its path where several files have one name.

    Raises:
        DataError: if a file cannot be read, its text has fewer tokens than the new length, or two texts have
            the same tokens, which would count twice in the intervals.
    """
    texts: list[Text] = []
    around, names = sum(map(len, special(tokenizer))), Counter(Path(path).name for path in paths)
    read: dict[bytes, str] = {}
    for path in paths:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as UTF-8 text ({first_line(error)})") from error
        ids = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        if len(ids) + around < length:
            raise DataError(
                f"{path} has {len(ids) + around} tokens; a certificate at {length} tokens needs as many"
            )
        kept = np.array(ids[: length - around], dtype=np.int64)
        if (same := read.get(kept.tobytes())) is not None:
            raise DataError(f"{path} has the same first {len(kept)} tokens as {same}; give each text once")
        read[kept.tobytes()] = path
        name = Path(path).name
        texts.append(Text(path if names[name] > 1 else name, text, kept))
    return texts


def certify(
    model: CertifiedModel,
    tokenizer: PreTrainedTokenizerFast,
    measured: Sequence[Method],
    texts: Sequence[Text],
    path: Path,
    minutes: float | None = None,
) -> Record:
    """Run the measurements, and write each result before the next one starts.

    Results that the file has already are not measured again.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        measured: methods to measure.
        texts: the texts.
        path: JSON file of the record.
        minutes: time budget; no measurement starts that is expected to end later. None means no limit.

    Raises:
        DataError: if the file has results of other settings.
    """
    apart = ("folder", "length", "weights")
    settings = {
        "checkpoint": Path(model.folder).name,
        "weights": model.weights,
        "length": model.length,
        "model": {key: value for key, value in asdict(model).items() if key not in apart},
        "texts": {each.name: hashlib.sha256(each.ids.tobytes()).hexdigest()[:16] for each in texts},
        "methods": [str(method) for method in measured],
        "environments": [
            {
                "threads": torch.get_num_threads(),
                "software": software(),
                "device": str(torch.accelerator.current_accelerator() or "cpu"),
            }
        ],
    }
    record = _resume(path, json.loads(json.dumps(settings)))
    write_json(path, asdict(record))
    began, spent, work = time.perf_counter(), 0.0, 0.0
    everything = [*_units(model, measured, texts, Record(settings, {}))]
    whole = sum(_weight(model, unit) for unit in everything)
    done = sum(_weight(model, unit) for unit in everything if unit.key in record.results)
    for unit in _units(model, measured, texts, record):
        if unit.key in record.results:
            continue
        weight = _weight(model, unit)
        expected = weight * spent / work if work else 0.0
        if minutes is not None and time.perf_counter() - began + expected > 60 * minutes:
            logger.info("stopped after %.0f minutes; the same command continues", spent / 60)
            break
        start = time.perf_counter()
        result = _measure(unit, model, tokenizer, texts[unit.trial % len(texts)])
        seconds = time.perf_counter() - start
        record.results[unit.key] = result | {"minutes": round(seconds / 60, 2)}
        write_json(path, asdict(record))
        spent, work, done = spent + seconds, work + weight, done + weight
        left = max(whole - done, 0.0) * spent / work / 60
        logger.info("%s: %.1f minutes; about %.0f minutes left", unit.key, seconds / 60, left)
    unmeasured = [unit for unit in _units(model, measured, texts, record) if unit.key not in record.results]
    record.settings["left"] = len(unmeasured)
    write_json(path, asdict(record))
    return record


def _resume(path: Path, settings: dict[str, Any]) -> Record:
    """Return the record of a file, or a new one."""
    if not path.is_file():
        return Record(settings, {})
    stored = read_record(path)
    if not all(isinstance(stored.get(part), dict) for part in ("settings", "results")):
        raise DataError(f"{path} is no record of a certificate; choose another directory")
    for name, value in settings.items():
        before = stored["settings"].get(name)
        if before != value and name in ("checkpoint", "weights", "length", "model"):
            raise DataError(f"{path} has results for {name} {before}, not {value}; choose another directory")
    before, now = ([*each["texts"].items()] for each in (stored["settings"], settings))
    if now[: len(before)] != before:
        raise DataError(
            f"{path} has results for other texts; name new ones last, or choose another directory"
        )
    environments = stored["settings"]["environments"]
    new = [each for each in settings["environments"] if each not in environments]
    return Record(settings | {"environments": environments + new}, stored["results"])


def _units(
    model: CertifiedModel, measured: Sequence[Method], texts: Sequence[Text], record: Record
) -> Iterator[Unit]:
    """Yield the measurements, a text and a round of needles at a time, so that a stop leaves whole rounds."""
    plain = Method(None)
    for trial in range(max(len(texts), ROUNDS)):
        if trial < len(texts):
            yield Unit("windows", plain, model.length, trial)
            for method in (plain, *measured):
                if not record.refused(method):
                    yield Unit("loss", method, model.length, trial)
        if model.kind == "causal":
            best = [method for method in record.ranked(measured) if not record.refused(method)]
            for kind in KINDS:
                yield Unit(kind, plain, model.old // 2, trial)
                yield from (Unit(kind, method, model.length, trial) for method in (*best[:FINALISTS], plain))


def _weight(model: CertifiedModel, unit: Unit) -> float:
    """Estimate the relative cost of a measurement."""
    if unit.kind == "windows":
        return model.cost(model.old) * max(1, 2 * (model.length - model.old) // model.old)
    return model.cost(unit.length)


def _measure(
    unit: Unit, model: CertifiedModel, tokenizer: PreTrainedTokenizerFast, text: Text
) -> dict[str, Any]:
    """Measure; a refused or failed extension is also a result."""
    body = model.load()
    try:
        if unit.kind == "windows":
            return _losses(model, _windows(model, body, tokenizer, text, unit.trial))
        if unit.kind == "loss":
            return _loss(unit, model, body, tokenizer, text)
        if unit.method.name is not None:
            floater.extend(body, model.length, unit.method.name, **unit.method.options)
        return _needles(unit, body, tokenizer, text)
    except torch.OutOfMemoryError:
        raise DataError(f"{unit.key} needs more memory than there is") from None


def _windows(
    model: CertifiedModel, body: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: Text, seed: int
) -> Read:
    if model.kind == "masked":
        return masked_read(body, tokenizer, text.ids, model.old, seed)
    first = special(tokenizer)[0]
    return causal_windows(body, _whole(text, first), len(first), model.old)


def _whole(text: Text, first: Sequence[int]) -> Array:
    return np.concatenate([np.array(first, dtype=np.int64), text.ids])


def _loss(
    unit: Unit, model: CertifiedModel, body: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: Text
) -> dict[str, Any]:
    """Measure the loss at every position, and whether a short text is read as before."""

    def read(length: int) -> Read:
        if model.kind == "masked":
            around = sum(map(len, special(tokenizer)))
            return masked_read(body, tokenizer, text.ids[: length - around], length, unit.trial)
        return causal_read(body, _whole(text, special(tokenizer)[0])[:length])

    short = model.old // 8 if model.kind == "causal" else model.old
    before = read(short).nats
    try:
        summary = None
        if unit.method.name is not None:
            summary = floater.extend(body, model.length, unit.method.name, **unit.method.options)
        after = before if summary is None else read(short).nats
        reset_peak_memory()
        try:
            long = read(model.length)
        except (IndexError, RuntimeError) as error:
            if summary is not None:
                raise
            return _losses(model, Read(before, 0.0)) | {"ends": first_line(error)}
    except ValueError as error:  # ExtendError is one
        return {"refused": first_line(error)}
    summed = [float(np.nansum(nats.astype(np.float64))) for nats in (before, after)]
    return _losses(model, long) | {
        "memory": peak_memory(),
        "summary": None if summary is None else str(summary),
        "promised": summary is None or summary.unchanged,
        "short": {
            "tokens": short,
            "equal": bool(np.array_equal(before, after, equal_nan=True)),
            "change": round(summed[1] / summed[0] - 1, 8),
            "largest": float(np.nanmax(np.abs(after - before))),
        },
    }


def _losses(model: CertifiedModel, read: Read) -> dict[str, Any]:
    nats, tokens = blocks(read.nats, model.old // 32)
    return {"nats": nats, "tokens": tokens, "seconds": round(read.seconds, 2)}


def _needles(
    unit: Unit, body: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: Text
) -> dict[str, Any]:
    seed = (unit.trial, unit.length, [*KINDS].index(unit.kind))
    try:
        hay = haystack(unit.kind, tokenizer, text.text, unit.length, seed)
    except TooShort as error:
        return {"refused": first_line(error), "least": error.least}
    except DataError as error:  # a text with too few sentences or words
        return {"refused": first_line(error)}
    questions = hay.questions
    try:
        result = answer(body, hay.ids, [each.ids for each in questions], [each.tokens for each in questions])
    except IndexError:  # its table of positions ends
        if unit.method.name is not None:
            raise
        return {"refused": f"needles of the unextended model, which cannot read {unit.length} tokens"}
    hits: dict[str, list[int]] = {task: [0, 0] for task in TASKS if task in KINDS[unit.kind]}
    answers = []
    for question, ids in zip(questions, result.ids, strict=True):
        reply = str(tokenizer.decode(ids))
        hits[question.task][0] += question.hits(reply)
        hits[question.task][1] += len(question.expected)
        answers.append([question.task, question.expected, reply])
    return {
        "hits": hits,
        "prefill": round(result.prefill, 2),
        "decode": round(result.decode, 4),
        "cache": result.cache,
        "tokens": len(hay.ids),
        "answers": answers,
    }
