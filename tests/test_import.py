"""Modules that `import floater` imports, with and without Transformers, which then loads our models."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

import floater
from floater import _hf
from floater.errors import install
from floater.transformer import FloaterConfig, FloaterModel
from floater.transformer.documents import DocumentsConfig
from floater.transformer.events import EventsConfig
from floater.transformer.images import ImageConfig

HEAVY = ("torch", "transformers", "numpy", "torchdiffeq", "matplotlib")


def run(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.split()


def test_importing_imports_nothing_heavy() -> None:
    code = "import sys, floater; print(floater.__version__, *sys.modules)"
    version, *modules = run(code)
    assert version == floater.__version__
    assert not set(modules) & set(HEAVY)


def test_encodings_import_no_solver_of_others() -> None:
    modules = run("import sys, floater.encodings; print(*sys.modules)")
    assert "floater.flow.solve" in modules
    assert not set(modules) & {"scipy", "torchdiffeq"}


def test_the_import_of_the_solvers_does_not_depend_on_the_modes_of_the_first_solve() -> None:
    """Tables of torchdiffeq would be without values, or without gradients, as long as the process lasts."""
    code = """
import torch
from floater.flow import MLPField, solve
field, start, times = MLPField(4), torch.zeros(1, 4), torch.tensor([1.0])
torch.set_default_dtype(torch.bfloat16)
with torch.device("meta"), torch.inference_mode():
    solve(field, start, times, method="dopri5")
solve(field, start, times, method="dopri5").sum().backward()
modules = [vars(module) for name, module in sys.modules.items() if name.startswith("torchdiffeq._impl.")]
print(*{(x.device.type, x.dtype) for names in modules for x in names.values() if torch.is_tensor(x)})
"""
    assert run(f"import sys{code}") == ["('cpu',", "torch.float64)"]


def test_every_public_name_is_there() -> None:
    """Each at first use, in a process that has imported nothing else."""
    code = "import floater; print(*[getattr(floater, name).__module__ for name in floater.__all__])"
    assert all(module.startswith("floater.") for module in run(code))
    assert {*floater.__all__, "flow", "transformer"} <= set(dir(floater))
    with pytest.raises(AttributeError, match="no attribute 'plugg'"):
        _ = floater.plugg  # type: ignore[attr-defined]


def test_without_transformers_what_needs_it_says_what_to_install() -> None:
    """The other packages work; a fake module stands for a Transformers that is too old."""
    code = """
import sys, types
sys.modules["transformers"] = None
import floater
from floater import encodings, flow, positions, structures
floater.build("alibi", dim=8, heads=2, layers=1, max_length=16)
for version in (None, "5.3.0.dev0", "4.57.1"):
    if version is not None:
        sys.modules["transformers"] = types.ModuleType("transformers")
        sys.modules["transformers"].__version__ = version
    for statement in ("import floater.transformer", "from floater.pretrained import plug", "floater.plug"):
        try:
            exec(statement)
        except ImportError as error:
            print(error)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    lines = done.stdout.splitlines()
    assert len(lines) == 9
    assert all("floater.transformer and floater.pretrained need Transformers" in line for line in lines)
    assert all(line.endswith(install("hf")) for line in lines)
    assert all("not installed" in line for line in lines[:3])
    assert all("5.23 or newer, and 5.3.0.dev0 is installed" in line for line in lines[3:6])


def test_the_command_says_that_transformers_is_too_old() -> None:
    code = """
import sys, types
sys.modules["transformers"] = types.ModuleType("transformers")
sys.modules["transformers"].__version__ = "4.57.1"
from floater.lab.cli import main
sys.exit(main(["train", "causal_lm/llama_yarn"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "need Transformers 5.23 or newer, and 4.57.1 is installed" in line


def test_the_oldest_transformers_is_that_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    (requirement,) = project["project"]["optional-dependencies"]["hf"]
    assert requirement.startswith(f"transformers>={'.'.join(map(str, _hf.OLDEST))},")


@pytest.mark.parametrize(
    "order",
    [
        "import floater, transformers",
        pytest.param("import transformers, floater", marks=pytest.mark.slow),
    ],
)
def test_auto_classes_load_what_was_saved(order: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    plugged = BertModel(BertConfig(vocab_size=9, **sizes))
    floater.plug(plugged)
    plugged.save_pretrained(tmp_path / "plugged")
    config = FloaterConfig.preset(
        "tiny", vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1
    )
    FloaterModel(config).save_pretrained(tmp_path / "model")
    code = order + (
        "\nimport sys"
        "\nfrom transformers import AutoModel"
        "\nmodel = AutoModel.from_pretrained(sys.argv[1])"
        "\nprint(type(model).__name__, hasattr(model, 'floater'))"
    )
    # a process each: what loads one model imports the part of the library that the other needs
    assert run(code, str(tmp_path / "plugged")) == ["BertModel", "True"]
    assert run(code, str(tmp_path / "model")) == ["FloaterModel", "False"]


@pytest.mark.parametrize("config", [DocumentsConfig, EventsConfig, FloaterConfig, ImageConfig])
def test_auto_config_loads_every_type(config: type[FloaterConfig], tmp_path: Path) -> None:
    config.preset("tiny").save_pretrained(tmp_path)
    code = (
        "import floater, sys\nfrom transformers import AutoConfig"
        "\nprint(type(AutoConfig.from_pretrained(sys.argv[1])).__name__)"
    )
    assert run(code, str(tmp_path)) == [config.__name__]
