"""Other contents under the same names are noticed."""

from pathlib import Path

from floater.training.digests import changed, digests


def test_directories_that_changed_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "reviews" / "good"
    folder.mkdir(parents=True)
    (folder / "1.txt").write_text("a", encoding="utf-8")
    given = {"train": str(tmp_path / "reviews"), "window": 5}
    kept = digests(given)
    assert kept.keys() == {"train"}
    assert changed(kept, given) is None
    (folder / "1.txt").write_text("b", encoding="utf-8")
    assert changed(kept, given) == "train"
    (folder / "1.txt").write_text("a", encoding="utf-8")
    assert changed(kept, given) is None
    folder.rename(folder.with_name("bad"))  # the label is the name
    assert changed(kept, given) == "train"
