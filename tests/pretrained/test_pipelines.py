"""Pipelines of a plugged or extended model run it as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import pipeline

from . import zoo
from .changed import CHANGED, changed, inputs, task, trained

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


@pytest.fixture(scope="module")
def processors() -> dict[str, Any]:
    """Return the tokenizer and the feature extractors that pipelines need besides a model."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({str(i): i for i in range(zoo.VOCABULARY)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()
    return {
        "tokenizer": transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="1", mask_token="2"
        ),
        "image_processor": transformers.ViTImageProcessor(size={"height": 8, "width": 8}),
        "feature_extractor": transformers.WhisperFeatureExtractor(feature_size=4),
    }


@pytest.mark.parametrize(("name", "how"), CHANGED)
def test_pipelines_have_the_model(tmp_path: Path, processors: dict[str, Any], name: str, how: str) -> None:
    """If no pipeline fits the head, that of feature extraction has the model without it."""
    model = changed(name, how)
    model.save_pretrained(tmp_path)
    runs = pipeline(
        task(model),
        model=str(tmp_path),
        model_kwargs={"attn_implementation": "eager"},
        device="cpu",
        **processors,
    )
    options = inputs(name, how)
    if type(runs.model) is type(model):
        expected = zoo.output(model.eval(), **options)
    else:
        with torch.no_grad():
            states = model.eval()(**options, output_hidden_states=True)
        expected = (states.get("hidden_states") or states["decoder_hidden_states"])[-1]
    assert torch.equal(zoo.output(runs.model.eval(), **options), expected)


def test_a_pipeline_runs_the_plugged_model(tmp_path: Path, processors: dict[str, Any]) -> None:
    model = trained("bert")
    model.save_pretrained(tmp_path)
    processors["tokenizer"].save_pretrained(tmp_path)
    runs: Any = pipeline(
        "text-classification", model=str(tmp_path), model_kwargs={"attn_implementation": "eager"}
    )
    actual = runs("3 4 5 9 2 6", top_k=None)
    ids = torch.tensor([[3, 4, 5, 9, 2, 6]])
    expected = zoo.output(model, input_ids=ids).softmax(-1)[0]
    scores = {row["label"]: row["score"] for row in actual}
    assert [scores["LABEL_0"], scores["LABEL_1"]] == pytest.approx(expected.tolist(), abs=1e-6)
