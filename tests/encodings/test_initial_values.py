"""Initial values of encodings against those of their authors' code, at the commit and line that is named."""

import math

import pytest
import torch

from floater import build

SIZES = {"dim": 64, "heads": 8, "layers": 4, "max_length": 128}
ALIKE = {"initializer_range": 0.01}  # a Transformer whose weights all start with one standard deviation


def normal(std, mean=0.0):
    return mean - math.sqrt(3) * std, mean + math.sqrt(3) * std, "normal"


def uniform(low, high):
    return low, high, "uniform"


def glorot(*fans):
    return uniform(-((6 / sum(fans)) ** 0.5), (6 / sum(fans)) ** 0.5)


def linear(inputs):
    return uniform(-(inputs**-0.5), inputs**-0.5)  # torch's linear layers


CASES = [
    # tensorflow/mesh da90793, transformer/transformer_layers.py:338 and ops.py:4193, which leave it to
    # TensorFlow's rule for (heads, buckets); google-research/t5x, examples/t5/network.py:199, has the same
    ("t5", {}, {"table.weight": glorot(8, 32)}),
    # transformers 5.23.0, models/t5/modeling_t5.py, T5PreTrainedModel._init_weights
    ("t5", {"start": "transformers"}, {"table.weight": normal(64**-0.5)}),
    ("bert_r", {}, {"relative.table.weight": normal(64**-0.5)}),
    # guolinke/TUPE 4c64ff7, fairseq/modules/transformer_sentence_encoder.py: the bias (line 171) is built
    # after BERT's rule has been applied (line 164)
    ("tupe_r", {}, {"relative.table.weight": normal(1.0), "query.weight": normal(0.02)}),
    ("tupe_r", ALIKE, {"relative.table.weight": normal(1.0), "key.weight": normal(0.01)}),
    ("tupe_a", ALIKE, dict.fromkeys(("table.weight", "query.weight", "reset"), normal(0.01))),
    ("tupe_a", ALIKE | {"std": 0.5}, dict.fromkeys(("table.weight", "query.weight", "reset"), normal(0.5))),
    # google/trax a930a148 (October 2019), layers/attention.py; in 7c189c2, position_encodings.py:34; tokens
    # started so, too, until 783e983c (August 2020)
    ("axial", {}, {"segments": normal(1.0), "places": normal(1.0)}),
    ("axial", ALIKE, {"segments": normal(0.01), "places": normal(0.01)}),
    ("axial", {"std": 0.5}, {"segments": normal(0.5), "places": normal(0.5)}),
    # kimiyoung/transformer-xl 44781ed, pytorch/train.py:210-260: all weights alike, by --init_std 0.02
    ("transformer_xl", {}, {"u": normal(0.02), "v": normal(0.02), "project.0.weight": glorot(64, 64)}),
    ("transformer_xl", ALIKE, {"u": normal(0.01), "v": normal(0.01), "project.0.weight": normal(0.01)}),
    # fla-org/flash-linear-attention c52acc04, models/path_attn/modeling_path_attention.py:116: linear layers
    # and convolutions alike
    ("path", {}, {"convolution": linear(3)}),
    ("path", ALIKE, {"convolution": normal(0.01), "down": normal(0.01), "gate_bias": normal(0.0)}),
    # zhixuan-lin/forgetting-transformer 883f260, modeling_forgetting_transformer.py:206
    ("forgetting", ALIKE, {"weight": normal(0.01), "gate_bias": normal(0.0)}),
    # jcyk/gtos a13dba0, generator: transformer.py:200, graph_transformer.py:89; encoder.py:84, whose
    # reset_parameters is never called
    (
        "graph_gru",
        {"labels": 40},
        {"symbol.weight": normal(0.02), "output.weight": linear(64), "output.bias": linear(64)},
    ),
    ("graph_gru", ALIKE, {"symbol.weight": normal(0.01), "relation": normal(0.01)}),
    # Amazing-J/structural-transformer daef1f2, opennmt-cnn/train.sh:35 and onmt/transformer.py:
    # -param_init_glorot
    (
        "structural",
        {"encoder": "cnn"},
        {"convolution.weight": glorot(4 * 64, 4 * 64), "convolution.bias": linear(4 * 64)},
    ),
    ("structural", {}, {"query.weight": glorot(64, 64), "keys": glorot(64, 64)}),
    # microsoft/Graphormer ac154fe, graphormer/modules/graphormer_layers.py:13-20
    ("graphormer", {"labels": 40}, dict.fromkeys(("degree", "distance", "label", "hop"), normal(0.02))),
    # mnschmit/graformer 9e1d38d, src/graph_enc/graph_pos_embedding.py:32
    ("graformer", {}, {"scalars.weight": uniform(-1, 1)}),
    # model-architectures/GRAPE f5b539f, model/llama-mha-grape-a-querykeygated.py:80-91: softplus(slope) = 1
    ("grape_a", {}, {"slope": normal(0.0, math.log(math.e - 1)), "query": normal(8**-0.5)}),
    # StanfordMIMI/LieRE b27b41b, models/rope_vit.py:183-203
    ("liere", {}, {"entries": uniform(0, 2 * math.pi)}),
    # aliutkus/spe 3aa364b, src/pytorch/spe/spe.py:247-251
    ("spe_conv", {}, {"filters": uniform(0, (2 / 128) ** 0.5), "gate": normal(1.0)}),
    # facebookresearch/RAM e6f051f, projects/cope/src/cope/context_position.py:77
    ("cope", {}, {"table": normal(0.0)}),
    # mcleish7/arithmetic 86022a5, cramming/architectures/components.py:316
    ("abacus", {}, {"table": normal(64**-0.5)}),
    # zhenyuhe00/BiPE 3dddab3, my_modeling_llama_bipe_rope.py:486
    ("bipe", ALIKE, {"table": normal(0.01)}),
    # microsoft/DeBERTa 4d7fe0b: BERT's rule for P and its projections
    ("deberta", ALIKE, {"table.weight": normal(0.01), "query.0.weight": normal(0.01)}),
    # reml-lab/mTAN 7a3d536, models.py: torch's linear layers
    ("mtan", {}, {"frequency": linear(1), "phase": linear(1), "weight": linear(64)}),
]


@pytest.mark.parametrize(("name", "changes", "starts"), CASES)
def test_parameters_start_as_in_the_authors_code(name, changes, starts):
    torch.manual_seed(0)
    model = build(name, **SIZES, **changes)
    for parameter, (low, high, kind) in starts.items():
        values = model.get_parameter(parameter).detach().double().flatten()
        n, std = len(values), (high - low) / math.sqrt(12)
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=5 * std / n**0.5 + 1e-6), parameter
        assert float(values.std()) == pytest.approx(std, rel=4 / n**0.5, abs=1e-6), parameter
        if kind == "uniform":
            assert low <= float(values.min()) < float(values.max()) <= high, parameter
            assert float(values.max() - values.min()) > (1 - 10 / n) * (high - low), parameter
        elif std and n > 1000:
            assert float((values - values.mean()).abs().max()) > 2.5 * std, parameter
