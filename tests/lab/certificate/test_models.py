"""The models of `make models` are what their authors trained: they know what they were trained on."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import floater
from checkpoints import checkpoint
from floater.lab.certificate.loss import masked_read
from floater.lab.tasks.finetuning.checkpoint import load_pretrained, load_tokenizer

HEAVY = (  # variable domain of trastuzumab's heavy chain
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDY"
    "WGQGTLVTVSS"
)
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"


@pytest.mark.parametrize(("name", "text"), [("antiberty", HEAVY), ("rxnmapper", REACTION)])
def test_encoders_predict_what_they_were_trained_on(name: str, text: str) -> None:
    folder = str(checkpoint(name))
    model, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids).replace(" ", "") == text
    shuffled = np.random.default_rng(0).permutation(ids)
    losses = [
        np.nanmean([masked_read(model, tokenizer, row, 512, k).nats for k in range(5)])
        for row in (ids, shuffled)
    ]
    assert losses[0] < 1.0 < losses[1]


@pytest.mark.slow
def test_smollm2_knows_a_capital_also_after_its_extension() -> None:
    folder = str(checkpoint("smollm2"))
    model, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    assert isinstance(model, AutoModelForCausalLM._model_mapping[type(model.config)])
    row = torch.tensor([tokenizer("The capital of France is", add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        before = model(row).logits
        assert tokenizer.decode(before[0, -1].argmax()).strip() == "Paris"
        floater.extend(model, 12288, "self_extend")
        assert torch.equal(model(row).logits, before)
