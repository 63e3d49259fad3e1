"""The model card beside a model or a flow."""

from pathlib import Path

import floater

from . import zoo
from .extended import build


def test_a_model_card_says_how_to_load(tmp_path: Path) -> None:
    model = zoo.build("bert")
    floater.plug(model)
    model.save_pretrained(tmp_path / "whole")
    card = (tmp_path / "whole" / "README.md").read_text()
    assert "import floater" in card
    assert "library_name: transformers" in card
    (tmp_path / "whole" / "README.md").write_text("mine")
    model.save_pretrained(tmp_path / "whole")
    assert (tmp_path / "whole" / "README.md").read_text() == "mine"
    floater.save(model, tmp_path / "flow")
    assert "floater.load" in (tmp_path / "flow" / "README.md").read_text()
    extended = build("llama")
    floater.extend(extended, 600, "clex")
    extended.save_pretrained(tmp_path / "extended")
    card = (tmp_path / "extended" / "README.md").read_text()
    assert "import floater" in card
    assert "| `new` | `600` |" in card
    zoo.build("bert").save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / "README.md").exists()
