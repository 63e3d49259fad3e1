from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import BartConfig, BartForConditionalGeneration

from floater.lab.training import average


def save(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_is_the_mean_in_double_precision(tmp_path: Path) -> None:
    """The exact mean of these is 1/3, but summing in float32 loses the small one."""
    values = (1e8, 1.0, -1e8)
    paths = [save(tmp_path / str(i), weight=torch.tensor([v])) for i, v in enumerate(values)]
    assert torch.equal(average(paths)["weight"], torch.tensor([1 / 3]))


def test_keeps_types_and_integers(tmp_path: Path) -> None:
    paths = [
        save(tmp_path / str(i), half=torch.tensor([1.0 + i], dtype=torch.bfloat16), count=torch.tensor(7))
        for i in range(3)
    ]
    mean = average(paths)
    assert mean["half"].dtype == torch.bfloat16
    assert mean["half"].item() == 2
    assert torch.equal(mean["count"], torch.tensor(7))


def bart(seed: int) -> BartForConditionalGeneration:
    torch.manual_seed(seed)
    size = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=50, d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=9, **size
        )
    )


@pytest.mark.parametrize("shard", ["50GB", "2KB"])
def test_averages_models_with_tied_weights_in_one_file_or_many(tmp_path: Path, shard: str) -> None:
    models = [bart(seed) for seed in (0, 1)]
    for seed, model in enumerate(models):
        model.save_pretrained(tmp_path / str(seed), max_shard_size=shard)
    assert (len(list((tmp_path / "0").glob("*.safetensors"))) > 1) == (shard == "2KB")
    mean = bart(2)
    loaded = mean.load_state_dict(average([tmp_path / "0", tmp_path / "1"]), strict=False)
    assert not loaded.unexpected_keys
    mean.tie_weights()
    both = [dict(model.named_parameters()) for model in models]
    for name, parameter in mean.named_parameters():
        expected = (both[0][name].double() + both[1][name].double()) / 2
        assert torch.equal(parameter, expected.float()), name
    assert mean.lm_head.weight is mean.model.shared.weight


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": torch.zeros(2), "n": torch.tensor(1), "b": torch.zeros(1)}, "b is in only one of .*0 and .*1"),
        ({"a": torch.zeros(2)}, "n is in only one"),
        ({"a": torch.zeros(3), "n": torch.tensor(1)}, r"a is \(3,\) torch.float32 in .*1, but \(2,\)"),
        ({"a": torch.zeros(2).double(), "n": torch.tensor(1)}, r"a is \(2,\) torch.float64 in .*1"),
        ({"a": torch.zeros(2), "n": torch.tensor(2)}, "n is torch.int64, so it must be the same"),
    ],
)
def test_refuses_checkpoints_of_different_models(
    tmp_path: Path, other: dict[str, torch.Tensor], message: str
) -> None:
    paths = [save(tmp_path / "0", a=torch.zeros(2), n=torch.tensor(1)), save(tmp_path / "1", **other)]
    with pytest.raises(ValueError, match=message):
        average(paths)


def test_refuses_nothing_to_average(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoints"):
        average([])
    with pytest.raises(FileNotFoundError, match="has no weights"):
        average([tmp_path])
