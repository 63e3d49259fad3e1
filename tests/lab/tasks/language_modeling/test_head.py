"""The head at a few tokens gives what it gives there when it runs at all of them."""

import pytest
import torch
import transformers
from torch import nn

from floater.lab.tasks.language_modeling.head import has_head, head_at, logits_at
from floater.transformer import FloaterConfig, FloaterForMaskedLM

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "embedding_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 1,
}
DISTILBERT = {"vocab_size": 50, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2}
CASES = {
    "Bert": SIZES,
    "Roberta": SIZES,
    "DistilBert": DISTILBERT,
    "Electra": SIZES,
    "Albert": SIZES,
    "MPNet": SIZES,
    "DebertaV2": SIZES,
    "ModernBert": SIZES,
}


def build_model(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**CASES[name])
    return getattr(transformers, f"{name}ForMaskedLM")(config).double().eval()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, and labels at a few of the tokens."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 50, (3, 9), generator=draw)
    labels = torch.where(torch.rand(3, 9, generator=draw) < 0.3, ids, -100)
    return ids, labels


@pytest.mark.parametrize("name", CASES)
def test_logits_loss_and_gradients_are_those_of_the_whole_batch(name: str) -> None:
    model, (ids, labels) = build_model(name), batch()
    mask_ = labels != -100
    logits = model(input_ids=ids).logits
    assert has_head(model)
    torch.testing.assert_close(logits_at(model, mask_, input_ids=ids), logits[mask_])
    plain = model(input_ids=ids, labels=labels).loss
    expected = torch.autograd.grad(plain, list(model.parameters()), allow_unused=True)
    with head_at(model, mask_):
        loss = model(input_ids=ids, labels=labels[mask_][None]).loss
    torch.testing.assert_close(loss, plain)
    for actual, wanted in zip(
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True), expected, strict=True
    ):
        if wanted is not None:
            torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-7)  # ModernBERT's loss is float32
    assert model(input_ids=ids).logits.shape == logits.shape, "the model is as it was"


def test_hidden_states_that_are_not_of_the_tokens_are_refused() -> None:
    model, (ids, labels) = build_model("Bert"), batch()
    with (
        head_at(model, (labels != -100)[:, :4]),
        pytest.raises(ValueError, match=r"hidden states \(3, 9, 16\).* \(3, 4, 'dim'\)"),
    ):
        model(input_ids=ids)


def test_a_head_is_not_run_where_nothing_is_predicted() -> None:
    model = FloaterForMaskedLM(FloaterConfig.preset("tiny", vocab_size=50))
    seen = []
    model.lm_head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    ids, labels = batch()
    logits_at(model, labels != -100, input_ids=ids)
    assert seen == [(1, int((labels != -100).sum()), 128)]


def test_a_model_without_a_body_of_its_own_is_read_whole() -> None:
    class Whole(transformers.PreTrainedModel):
        config_class = FloaterConfig

        def __init__(self, config: FloaterConfig) -> None:
            super().__init__(config)
            self.table = nn.Embedding(config.vocab_size, config.vocab_size)

        def forward(self, input_ids: torch.Tensor) -> transformers.modeling_outputs.MaskedLMOutput:
            return transformers.modeling_outputs.MaskedLMOutput(logits=self.table(input_ids))

    model, (ids, labels) = Whole(FloaterConfig.preset("tiny", vocab_size=50)), batch()
    assert not has_head(model)
    mask_ = labels != -100
    assert torch.equal(logits_at(model, mask_, input_ids=ids), model.table.weight[ids[mask_]])
