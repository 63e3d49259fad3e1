"""Encodings before training, and the survey's figures, against what is known of them in closed form."""

import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from floater import PositionError, Positions, catalogue
from floater.encodings import StackSpec
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.study.analyses.survey_figures import draw_survey
from floater.lab.study.analyses.untrained import compare, pictures
from floater.lab.study.plots import FIGURES


def test_alibi_is_its_slopes_times_the_distance():
    kind, heads = pictures("alibi", StackSpec(dim=64, heads=8, layers=1, max_length=12))
    assert (kind, len(heads)) == ("logits", 8)
    at = torch.arange(12)
    distance = (at[:, None] - at).abs().float()
    for head, logits in enumerate(heads, start=1):  # Press et al. 2022, section 3; less their mean
        expected = -(2.0**-head) * (distance - distance.mean())
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_relative_encodings_are_constant_on_diagonals_and_rotary_heads_differ():
    for name in ("rotary", "t5"):
        _, heads = pictures(name, StackSpec(dim=64, heads=8, layers=1, max_length=10))
        for logits in heads:
            torch.testing.assert_close(logits[1:, 1:], logits[:-1, :-1], atol=1e-5, rtol=1e-4)


def test_small_logits_are_not_lost_beside_those_of_the_words():
    """Logits of SeqPE differ by less than a thousandth, where float32's rounding would show."""
    spec = StackSpec(dim=64, heads=8, layers=2, max_length=32)
    _, heads = pictures("seqpe", spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = catalogue()["seqpe"](spec).eval().double()
    with torch.no_grad():
        product = model.prepare(Positions.arange(32))
    expected = (product.query @ product.key.mT)[0]
    expected = expected - expected.mean((1, 2), keepdim=True)
    torch.testing.assert_close(torch.stack(heads), expected.float(), atol=1e-9, rtol=1e-5)


def test_sinusoids_are_vectors():
    kind, (vectors,) = pictures("sinusoidal", StackSpec(dim=64, heads=8, layers=1, max_length=20))
    assert (kind, vectors.shape) == ("vectors", (20, 64))
    torch.testing.assert_close(vectors.square().sum(1), torch.full((20,), 32.0))


def test_a_comparison_has_all_heads_and_does_not_change_the_random_numbers():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    plot = compare(["alibi", "sinusoidal", "alibi"], 16)
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: tuple(part.shape) for name, part in plot.numbers.items()} == {
        "alibi": (8, 16, 16),
        "sinusoidal": (1, 16, 64),
    }
    titles = [axes.get_title() for axes in plot.figure.axes if axes.get_title()]
    assert sorted(titles) == ["alibi, head 1", "alibi, head 8", "sinusoidal"]


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(PositionError, match="did you mean 'alibi'"):
        compare(["alib"])
    with pytest.raises(DataError, match="drawn at 2 to 2048 positions"):
        compare(["alibi"], 4096)


def test_dot_products_of_sinusoids_know_no_direction():
    lines = draw_survey("dot_products").numbers
    plain, offsets = lines["without projections"], lines["offsets"].double()
    rates = 10000.0 ** (-torch.arange(64, dtype=torch.float64) / 64)
    torch.testing.assert_close(plain, (offsets[:, None] * rates).cos().sum(1), atol=1e-4, rtol=1e-4)
    for number in (1, 2):
        projected = lines[f"random projections {number}"]
        assert float((projected - projected.flip(0)).abs().max()) > 1


def test_biases_of_distances_repeat_and_those_of_pairs_do_not():
    biases = draw_survey("biases").numbers
    relative, absolute = biases["dufter_relative"], biases["dufter_absolute"]
    torch.testing.assert_close(relative[1:, 1:], relative[:-1, :-1])
    assert absolute.unique().numel() == 36
    assert relative.unique().numel() == 11


def test_relations_in_a_graph_are_signed_lengths_of_paths():
    relations = draw_survey("graph").numbers["graph"]
    assert relations[0].tolist() == [0, 1, 2, 1, 3]
    assert relations[1, 3] == relations[3, 1] == math.inf
    finite = relations.masked_fill(relations.isinf(), 0.0)
    assert torch.equal(finite, -finite.T)


def test_axial_embeddings_share_segments_and_places():
    vectors = draw_survey("axial").numbers["vectors"]
    segments, within = vectors[:, :32].reshape(8, 8, 32), vectors[:, 32:].reshape(8, 8, 32)
    assert torch.equal(segments, segments[:, :1].expand_as(segments))
    assert torch.equal(within, within[:1].expand_as(within))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_of_the_survey_is_drawn(name):
    plot = draw_survey(name)
    assert plot.text
    assert bool(plot.numbers) == (name not in ("block", "recurrent"))  # drawings of architectures
    assert plot.figure.axes


def test_the_survey_has_figures_1_to_8_and_10():
    numbers = [int(text.removeprefix("Figure ").split(":")[0]) for text in FIGURES.values()]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8, 10]


def test_a_drawing_has_no_numbers_to_write(tmp_path, capsys):
    arguments = [
        "--survey",
        "block",
        "--output",
        str(tmp_path / "a.png"),
        "--numbers",
        str(tmp_path / "a.npz"),
    ]
    assert main(["plot", *arguments]) == 2
    assert "a drawing without numbers" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_first_token_is_untied_from_every_pattern():
    patterns = draw_survey("untied").numbers
    assert len(patterns) == 5
    for bias in patterns.values():
        assert bias[0].tolist() == [2.0] * 32
        assert bias[1:, 0].tolist() == [-2.0] * 31
    left, right = patterns["left"][1:, 1:], patterns["right"][1:, 1:]
    assert torch.equal(left, right.T)
    assert bool((patterns["local"][1:, 1:].diagonal() == 1.0).all())


def test_the_command_draws_encodings_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, numbers = tmp_path / "three.png", tmp_path / "three.npz"
    arguments = ["--encoding", "rotary", "alibi", "t5", "--length", "24", "--output", str(file)]
    assert main(["plot", *arguments, "--numbers", str(numbers)]) == 0
    assert "alibi: logits, 8 heads" in capsys.readouterr().out
    assert min(Image.open(file).size) > 500
    assert numbers.is_file()
    assert main(["plot", "--survey", "tree", "--output", str(tmp_path / "tree.svg")]) == 0
    assert "held 0" in capsys.readouterr().out
    assert (tmp_path / "tree.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a RUN and a KIND of plot, or --encoding NAME..., or --survey NAME"),
        (["run"], "give a RUN and a KIND"),
        (["run", "vectors", "--encoding", "t5"], "give a RUN and a KIND"),
        (["--encoding", "t5", "--where", "x"], "--encoding takes no --where"),
        (["--survey", "tree", "--length", "5"], "--survey takes no --length"),
        (["--encoding", "t6"], "unknown position model 't6'; "),
        (["--encoding", "t5", "--output", "x.jpg"], "figures are .png, .svg or .pdf"),
    ],
)
def test_wrong_commands_are_refused(arguments, message, capsys: pytest.CaptureFixture[str]):
    assert main(["plot", *arguments]) == 2
    assert message in capsys.readouterr().err
