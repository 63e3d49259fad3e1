"""Sources of tables, and the splits that `datasets` or Arrow load of them."""

from __future__ import annotations

import contextlib
import glob
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from floater.errors import DataError, reason
from floater.lab.tasks.corpora.columns import Choice, outer_of
from floater.lab.tasks.corpora.rows import DELIMITED, JSON, suffix
from floater.lab.tasks.corpora.text import PACKED, load_split
from floater.lab.training.named_files import file_of, part_of

HUB = "hf:"
SPLITS = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""Names that a split may have."""
COLUMNAR = (".parquet", ".arrow")
_SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `save_to_disk` wrote."""
_NAME = re.compile(r"hf:([\w.-]+(?:/[\w.-]+)?)(?:/([\w.-]+))?(?::([^:/]+))?")


def with_split(source: Any, split: str) -> Any:
    """Return a source with a split, if it is a folder or a data set without one; others have no splits.

    Example:
        >>> with_split("hf:stanfordnlp/imdb", "valid"), with_split("corpus.csv", "valid")
        ('hf:stanfordnlp/imdb:valid', 'corpus.csv')
        >>> with_split(["hf:stanfordnlp/imdb:unsupervised"], "train")
        ['hf:stanfordnlp/imdb:unsupervised']
    """
    if isinstance(source, list):
        return [with_split(each, split) for each in source]
    name = str(source)
    is_whole = Path(name).is_dir() or (name.startswith(HUB) and ":" not in name.removeprefix(HUB))
    return f"{name}:{split}" if is_whole else source


def is_split(name: str) -> bool:
    """Return whether a source is loaded by `load`: a name on the hub, a folder or a columnar file."""
    return name.startswith(HUB) or _folder(name)[0].is_dir() or suffix(name) in COLUMNAR


def load(name: str, choice: Choice) -> tuple[Any, list[str]]:
    """Load a split of a folder, of a columnar file or of a data set on the hub.

    Of a columnar file the chosen columns alone are read.

    Returns:
        The `datasets.Dataset`; or None, and the files of the split if they are text that `read_table` parses.

    Raises:
        DataError: if there are no such data, or no such split.
    """
    import datasets
    from datasets.packaged_modules.csv.csv import Csv

    hub = _NAME.fullmatch(name)
    if name.startswith(HUB) and hub is None:
        raise DataError(f"{name}: not of the form hf:NAME, hf:OWNER/NAME/CONFIGURATION or hf:NAME:SPLIT")
    if hub and _is_saved(Path(hub[1])):
        raise DataError(f"{name}: {hub[1]} is a folder written by save_to_disk; leave out hf:")
    folder, chosen = (None, hub[3]) if hub else _folder(name)
    bare, wanted = name.removesuffix(f":{chosen}"), SPLITS.get(chosen or "test", (str(chosen),))
    where = hub[1] if hub else str(folder and folder.resolve())  # "." would name no data set
    with _quiet(name), tempfile.TemporaryDirectory() as fresh:
        if folder is not None and not folder.is_dir():
            return datasets.Dataset(_columnar(name, choice), fingerprint=name), []  # or it would be hashed
        if folder is not None and _is_saved(folder):
            data = datasets.load_from_disk(where)
            return (data[_split(bare, data, wanted)] if isinstance(data, dict) else data), []
        if folder is not None and glob.has_magic(where):
            raise DataError(
                f"{name}: the package datasets reads *, ? and [ in {where} as a pattern; rename the folder"
            )
        # the cache of `datasets` tells files of a folder by their times alone
        options: dict[str, Any] = {"cache_dir": fresh} if Path(where).is_dir() else {}
        builder = datasets.load_dataset_builder(where, hub[2] if hub else None, **options)
        files = builder.config.data_files or {}
        suffixes = {suffix(file) for part in files.values() for file in part}
        columnar = COLUMNAR if builder.info.features is None else ()  # a card may name the labels
        if folder is not None and suffixes <= {*DELIMITED, *JSON, *columnar}:
            return None, list(files[_split(bare, files, wanted)])
        chosen = _split(bare, builder.info.splits or files, wanted)
        missing = {"keep_default_na": False} if isinstance(builder, Csv) else {}  # "NA" is a text
        return load_split(where, hub[2] if hub else None, chosen, **missing), []


def _is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote a folder."""
    return any((folder / file).is_file() for file in _SAVED)


def _columnar(name: str, choice: Choice) -> Any:
    """Return the chosen columns of a Parquet or Arrow file, plain or compressed."""
    import pyarrow as pa
    import pyarrow.parquet

    unpack: Any = PACKED.get(Path(name).suffix.lower(), ("", b"", open))[2]
    parquet = suffix(name) == ".parquet"
    with pa.memory_map(name) if unpack is open and not parquet else unpack(name, "rb") as file:
        if parquet:
            table = pa.parquet.ParquetFile(file)
            columns = choice.in_schema(table.schema_arrow).values()
            return table.read(columns=[*{outer_of(column, table.schema_arrow.names) for column in columns}])
        try:
            return pa.ipc.open_stream(file).read_all()
        except pa.ArrowInvalid:  # the format of files, which can be read at random
            file.seek(0)
            return pa.ipc.open_file(file).read_all()


def _split(bare: str, splits: Iterable[str], wanted: Sequence[str]) -> str:
    """Return the first of the wanted splits of a source that it has."""
    names = list(map(str, splits))
    chosen = next((each for each in wanted if each in names), None)
    if chosen is None:
        raise DataError(
            f"{bare}: no split '{wanted[0]}'; there are: {', '.join(names)}; choose one: {bare}:{names[0]}"
        )
    return chosen


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Convert any failure of `datasets` into one message, and show none of its progress bars."""
    from datasets.utils import logging as datasets_logging

    shown, level = datasets_logging.is_progress_bar_enabled(), datasets_logging.get_verbosity()
    datasets_logging.disable_progress_bar()
    datasets_logging.set_verbosity(logging.CRITICAL)  # what fails is in the message
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # files and servers of strangers: any error of any code that reads them
        raise DataError(f"{name}: cannot be loaded ({reason(error)})"[:500]) from error
    finally:
        datasets_logging.set_verbosity(level)
        if shown:
            datasets_logging.enable_progress_bar()


def _folder(name: str) -> tuple[Path, str | None]:
    """Return the path of a source, and the split that its name chooses."""
    path = file_of(name)
    return path, part_of(name).removeprefix(":") or None if path.is_dir() else None
