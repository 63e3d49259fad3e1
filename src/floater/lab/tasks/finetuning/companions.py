"""Files beside the weights of a checkpoint that an extended model needs: processors, templates, poolings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from floater.errors import DataError, first_line, reason
from floater.lab.training.files import MANIFEST

_ENDINGS = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_OTHERS = {MANIFEST, "trainer_state.json", "all_results.json", "train_results.json"}
"""Files of a training run."""
_IMAGES, _SENTENCES = "preprocessor_config.json", "sentence_bert_config.json"


class Companions:
    """The files of a checkpoint other than its weights and its code.

    Args:
        folder: directory of the checkpoint, or its name on the Hugging Face hub.
        old: side of the images that the checkpoint takes; None for texts.
        new: side of the images or number of tokens that the extended model takes; None to change nothing.

    Raises:
        DataError: if the files of a name on the hub cannot be read.
    """

    def __init__(self, folder: str, old: int | None, new: int | None) -> None:
        if not Path(folder).is_dir():
            try:
                patterns = [f"*{ending}" for ending in _ENDINGS]
                folder = snapshot_download(folder, allow_patterns=patterns)
            except (OSError, ValueError) as error:
                raise DataError(f"{folder}: its processors cannot be read ({first_line(error)})") from error
        self.folder, self.old, self.new = Path(folder), old, new

    def save_pretrained(self, target: Path) -> None:
        """Copy the files that are not in a directory yet, with the new length where they hold the old one.

        Raises:
            DataError: if a file cannot be read.
        """
        for file in sorted(self.folder.rglob("*")):
            destination = target / file.relative_to(self.folder)
            hidden = any(part.startswith(".") for part in file.relative_to(self.folder).parts)
            if (
                destination.exists()
                or hidden
                or not file.is_file()
                or file.suffix not in _ENDINGS
                or file.name in _OTHERS
                or file.name.endswith(".index.json")
            ):
                continue
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, destination)
            if self.new is not None and file.name in (_IMAGES, _SENTENCES):
                destination.write_text(json.dumps(self._lengthened(file), indent=2) + "\n", encoding="utf-8")

    def _lengthened(self, file: Path) -> Any:
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read ({reason(error)})") from error
        if not isinstance(settings, dict):
            raise DataError(f"{file} holds no JSON object")
        if file.name == _SENTENCES and "max_seq_length" in settings:
            settings["max_seq_length"] = self.new
        for name in {"size", "crop_size"} & settings.keys() if self.old else ():
            settings[name] = self._larger(settings[name])
        return settings

    def _larger(self, size: Any) -> Any:
        """Return the side of images, or sides by name, as many times larger as those of the model."""
        assert self.old is not None
        assert self.new is not None
        if isinstance(size, dict):
            return {name: self._larger(value) for name, value in size.items()}
        if isinstance(size, int) and not isinstance(size, bool):
            return round(size * self.new / self.old)
        return size
