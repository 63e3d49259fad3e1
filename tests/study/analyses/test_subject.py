"""What is analysed: checkpoints that lack weights."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertForMaskedLM

from floater.study.analyses import subject
from floater.tasks.text import DataError

SMALL = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
BERT = BertConfig(**SMALL, vocab_size=20, max_position_embeddings=24)


def test_a_checkpoint_whose_weights_do_not_fit_is_refused(tmp_path: Path) -> None:
    """A model of torch.compile has other names for its weights; AutoModel would draw them anew."""
    BertForMaskedLM(BERT).save_pretrained(tmp_path)
    assert isinstance(subject(tmp_path).model, AutoModel.from_pretrained(tmp_path).__class__)  # no pooler
    file = tmp_path / "model.safetensors"
    save_file({f"_orig_mod.{name}": x for name, x in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(DataError, match=r"weights of a BertModel are not there, such as embeddings") as told:
        subject(tmp_path)
    assert "; _orig_mod." in str(told.value)
    assert "\n" not in str(told.value)
