"""The configurations that come with the library."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from floater.errors import DataError


def folder() -> Path:
    """Return the directory of the configurations, in an installed package or in a checkout."""
    lab = Path(__file__).parents[1]
    installed = lab / "configs"
    return installed if installed.is_dir() else lab.parents[2] / "configs"


def shipped() -> dict[str, str]:
    """Return the description of each configuration by its name.

    Example:
        >>> shipped()["generated/copy"]
        'Copy up to 16 symbols'
    """
    root = folder()
    paths = sorted(root.glob("*/*.yaml"))
    return {path.relative_to(root).with_suffix("").as_posix(): _description(path) for path in paths}


def matching(name: str) -> list[str]:
    """Return the names in `shipped` that a name may mean: itself, or those of which it is the last part.

    Example:
        >>> matching("configs/generated/copy.yaml"), matching("copy")
        (['generated/copy'], ['generated/copy'])
    """
    name = name.removeprefix("configs/").removesuffix(".yaml")
    return [each for each in shipped() if name in (each, each.rpartition("/")[2])]


def find(name: str) -> Path:
    """Return the file of a configuration.

    Args:
        name: name in `shipped`, or its last part if that is unique.

    Raises:
        DataError: if there is no such configuration, or there are several; the message names them.

    Example:
        >>> find("copy").name
        'copy.yaml'
    """
    names = matching(name)
    if len(names) == 1:
        return folder() / f"{names[0]}.yaml"
    name = name.removeprefix("configs/").removesuffix(".yaml")
    if names:
        raise DataError(f"there are several configurations '{name}'; choose {' or '.join(names)}")
    full_names = {each.rpartition("/")[2]: each for each in reversed(shipped())}
    near = difflib.get_close_matches(name, [*shipped(), *full_names], n=1)
    hint = f"did you mean {full_names.get(near[0], near[0])}?" if near else "floater configs lists them"
    raise DataError(f"there is no configuration '{name}'; {hint}")


def written(path: Path, origin: Path) -> str:
    """Return the text of a configuration for a copy at `path`, which the commands in it then name."""
    text = origin.read_text(encoding="utf-8")
    return text.replace(f"configs/{origin.parent.name}/{origin.name}", path.as_posix())


def _description(path: Path) -> str:
    """Return the first sentence of the comment at the top of a configuration, without its commands."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("# ").strip()
        if not re.match(r"(With FLOATER: )?(floater|torchrun) |  ", text):
            comment.append(text)
    sentence = re.split(r"(?<=\?) |\. (?=[A-Z])|[;:] ", " ".join(comment), maxsplit=1)[0]
    return sentence.rstrip(".")
