"""The data and imported code of a run, recorded when its training began, so that a change is noticed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from floater.errors import DataError
from floater.lab.training.checkpoints import last_checkpoint, step_of
from floater.lab.training.contents import Contents, Part, Source, contents
from floater.lab.training.digests import values_digest
from floater.lab.training.files import MANIFEST, write_json
from floater.lab.training.named_files import files_named

DATA, VOCABULARY, CODE = "data.json", "vocabulary", "imports"
_SHOWN = 3


class RunData:
    """A comparison of the files, examples and imported code of a training run with those that it began with.

    The record in the run's directory, `DATA`, has the contents of the files by the name of the setting, the
    digests of the examples, and the accepted changes, each with the step at which it was accepted.

    Args:
        run: directory of the run.
        settings: settings of the run; their method `files_read` names the files, or without it all settings
            of the data that name one.
        accept: whether other data are accepted.

    Raises:
        DataError: if the record or a file cannot be read.
    """

    def __init__(self, run: Path, settings: Any, *, accept: bool = False) -> None:
        self.run, self.settings, self.accept = run, settings, accept
        self._before: Contents = {}
        self._accepted: list[dict[str, Any]] = []
        self.examples: Mapping[str, str | None] = {}
        self.is_recorded = (run / DATA).is_file()
        if self.is_recorded:
            self._read_record()
        checkpoint = last_checkpoint(run)
        self._step = 0 if checkpoint is None else step_of(checkpoint)
        self._files = self._contents(self._before)
        self._new: list[str] = []

    def _read_record(self) -> None:
        file = self.run / DATA
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            files: dict[str, Any] = record["files"]
            self._before = {name: [Source.of(source) for source in files[name]] for name in files}
            self.examples, self._accepted = {**record["examples"]}, [*record["accepted"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file} is not a record of data ({error!r}); remove it to resume without a check of the data"
            ) from error

    def _contents(self, before: Contents) -> Contents:
        read = getattr(self.settings, "files_read", lambda: files_named(self.settings.data))
        files = contents(read(), before, without=self.run)
        if code := [path for name in getattr(self.settings, CODE, []) if (path := _code(name)) is not None]:
            files |= contents({CODE: code}, before)
        vocabulary = self.run / VOCABULARY
        if vocabulary.is_dir():  # of a sealed one, its seal: damage has a message of its own
            sealed = (vocabulary / MANIFEST).is_file()
            files |= contents({VOCABULARY: Part(vocabulary, (MANIFEST if sealed else "*",))}, before)
        return files

    @property
    def size(self) -> int:
        """Return the number of bytes of the files of the data, without a checkpoint and a vocabulary."""
        return sum(file.size for source in self._sources() for file in (source.files or {}).values())

    @property
    def digest(self) -> list[str]:
        """Return the digests of these files."""
        return [source.sha256 for source in self._sources()]

    def _sources(self) -> list[Source]:
        named = [several for name, several in self._files.items() if name.startswith("data.")]
        return [source for several in named for source in several]

    @property
    def is_unknown(self) -> bool:
        """Return whether the training has begun without a record of its data."""
        return not self.is_recorded and (self._step > 0 or (self.run / VOCABULARY).is_dir())

    @property
    def changes(self) -> list[str]:
        """Return how the files differ from those that the training began with, one line for each file."""
        return differences(self._before, self._files) if self.is_recorded else []

    @property
    def code_changes(self) -> list[str]:
        """Return how imported modules differ from those that the training began with, one line for each."""
        return _differences(self._before, self._files, CODE) if CODE in self._before else []

    @property
    def names(self) -> set[str]:
        """Return the names of the settings whose files are compared by their contents."""
        return (self._before.keys() & self._files.keys()) - {CODE}

    def check(self) -> None:
        """Refuse files that have changed since the training began.

        Raises:
            DataError: if a file has changed, is missing or new, and this is not accepted.
        """
        self._settle(self.changes)

    def check_examples(self, **examples: Any) -> None:
        """Refuse examples that are not those that the training began with, wherever they come from.

        Args:
            **examples: training and validation examples as they were read; examples of unknown types are not
                compared.

        Raises:
            DataError: if a file has changed since `check`, or the examples differ and this is not accepted.
        """
        before, self._files = self.examples, self._reread()
        self.examples = {name: values_digest(value) for name, value in examples.items()}
        if not self._new:
            compared = {name: {before.get(name), self.examples[name]} - {None} for name in examples}
            names = [name for name, digests in compared.items() if len(digests) > 1]
            self._settle([f"the {name} examples differ, though no file or setting does" for name in names])

    def _reread(self) -> Contents:
        """Return the contents of the files once more.

        Raises:
            DataError: if they have changed meanwhile.
        """
        files = self._contents(self._files)
        if lines := differences(self._files, files):
            raise DataError(f"{_joined(lines)} while the training read it; start it again")
        return files

    def write(self) -> None:
        """Write the record; see `record`."""
        write_json(self.run / DATA, self.record())

    def record(self) -> dict[str, Any]:
        """Return the record as a JSON value, with the changes that were accepted.

        Raises:
            DataError: if the vocabulary was made again and is another.
        """
        files = self._reread() if self.is_recorded else self._contents(self._files)
        if VOCABULARY not in self._files:
            self._settle(_differences(self._before, files, VOCABULARY))
        if self.is_unknown:
            self._new.append("there was no record of the data before")
        self._new += self.code_changes
        if self._new:
            self._accepted.append({"step": self._step, "changes": self._new})
        self._files, self._new, self.is_recorded = self._files | files, [], True
        self._before |= {CODE: self._files[CODE]} if CODE in self._files else {}
        sources = {name: [asdict(source) for source in several] for name, several in self._files.items()}
        return {"files": sources, "examples": self.examples, "accepted": self._accepted}

    def _settle(self, lines: list[str]) -> None:
        """Refuse changes, or keep them for the record."""
        if lines and not self.accept:
            raise DataError(
                f"{self.run} was begun on other data: {_joined(lines)}; restore the data, choose another "
                "directory, or continue with --accept-changed-data"
            )
        self._new += lines


def _code(module: str) -> Path | Part | None:
    """Return the file of an imported module, or all of a package; None without one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    return Part(Path(file).parent, ("**/*.py",)) if Path(file).name == "__init__.py" else Path(file)


def differences(before: Contents, now: Contents) -> list[str]:
    """Return the differences of the data that settings name, one line for each file."""
    return [line for name in before | now if name != CODE for line in _differences(before, now, name)]


def _differences(before: Contents, now: Contents, name: str) -> list[str]:
    old, new = before.get(name), now.get(name)
    if old is None or new is None:
        if name == VOCABULARY:  # it is made after the files were read, and made again if it was removed
            return []
        sources, what = (new, "new") if old is None else (old, "missing")
        return [f"{name}: {source.path} is {what}" for source in sources or [] if source.files]
    if len(old) != len(new):
        return [f"{name}: {len(old)} files, now {len(new)}"]
    lines = [f"{name}: {line}" for a, b in zip(old, new, strict=True) for line in a.changes(b)]
    if name == VOCABULARY and lines:
        return [f"{new[0].path} is another vocabulary"]
    return lines


def _joined(lines: list[str]) -> str:
    more = f"; and {len(lines) - _SHOWN:,} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more
