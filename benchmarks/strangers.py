"""Directories of strangers, which hold code, pickles, links and values of wrong types: see reliability.py."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import floater
from hostile import Case, Evil, corrupted

STRANGE = [-1, 0, 3, 10**30, 1e308, math.inf, math.nan, "x", "", None, [], {}, [1, "x"], {"x": 1}, True]
"""Values of JSON that are of a wrong type or size almost everywhere."""
_SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}


def save_models(folder: Path) -> list[Path]:
    """Write tiny checkpoints: original, plugged, extended, and both."""
    models: dict[str, Any] = {
        "bert": BertForSequenceClassification(
            BertConfig(**_SIZES, vocab_size=32, max_position_embeddings=32)
        ),
        "llama": LlamaForCausalLM(LlamaConfig(**_SIZES, vocab_size=32, max_position_embeddings=32)),
        "bloom": BloomForCausalLM(BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=32)),
    }
    folders = []
    for name, model in models.items():
        for change in ("original", "plugged", "extended"):
            if change == "extended" and name != "bloom":
                floater.extend(model, 64, "clex" if name == "llama" else None)
            elif change == "plugged" and name != "bloom":
                floater.plug(model)
            elif change != "original":
                continue
            folders.append(folder / f"{name}-{change}")
            model.save_pretrained(folders[-1])
            words = folders[-1] / "vocab.txt"
            words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(27))]))
            BertTokenizerFast(str(words)).save_pretrained(folders[-1])
    return folders


def stranger(folder: Path, chance: random.Random) -> str:
    """Change a file of a model directory; return what was changed."""
    files = [path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")]
    file = chance.choice(sorted(files))
    if chance.random() < 0.3:
        return f"{file.name}: {corrupted(file, chance)}"
    if file.suffix == ".json":
        tree = at = json.loads(file.read_text())
        while True:
            key = chance.choice(sorted(at))
            if not isinstance(at[key], dict) or not at[key] or chance.random() < 0.3:
                break
            at = at[key]
        value = at[key] = chance.choice(STRANGE)
        file.write_text(json.dumps(tree))
        return f"{file.name}: {key} = {value!r}"
    tensors = load_file(file)
    key = chance.choice(sorted(tensors))
    how = chance.choice(["missing", "more", "shape", "type", "nan", "pickle"])
    if how == "missing":
        del tensors[key]
    elif how == "more":
        tensors["stranger"] = torch.ones(3)
    elif how == "shape":
        tensors[key] = torch.ones(*tensors[key].shape, 2)
    elif how == "type":
        tensors[key] = tensors[key].to(torch.int64)
    elif how == "nan":
        tensors[key] = torch.full_like(tensors[key], torch.nan)
    else:
        file.unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
        return f"{file.name}: a pickle instead"
    save_file(tensors, file, {"format": "pt"})
    return f"{file.name}: {key} {how}"


def stranger_cases(folder: Path, config: Path, marker: Path, chance: random.Random) -> Iterator[Case]:
    """Yield directories of strangers, each with the command that reads it, endlessly.

    Args:
        folder: folder with a finished run, "whole".
        config: configuration of that run.
        marker: path that code of the directory would create.
        chance: random choice of the change.
    """
    models = save_models(folder / "models")
    code = f"import os\nos.makedirs({str(marker)!r}, exist_ok=True)\n"
    run, copy, to = folder / "strange-run", folder / "strange-model", folder / "longer"

    def anew(source: Path, target: Path) -> Path:
        for path in (target, to, marker):
            shutil.rmtree(path, ignore_errors=True)
        return Path(shutil.copytree(source, target))

    for command in (["evaluate"], ["plot"], ["translate"], ["predict", "--source", str(config)]):
        for where in (run, run.parent, Path.cwd()):
            anew(folder / "whole", run)
            tree = yaml.safe_load((run / "config.yaml").read_text())
            module = "strange_helper"
            (where / f"{module}.py").write_text(code)
            (run / "config.yaml").write_text(yaml.safe_dump(tree | {"imports": [module]}))
            yield f"imports of a run, {where.name}", [command[0], str(run), *command[1:]]
            (where / f"{module}.py").unlink()
    for name in ("training_args.bin", "optimizer.pt", "scaler.pt", "rng_state.pth"):
        torch.save(Evil(marker), anew(folder / "whole", run) / "model" / name)
        yield f"a pickle in model/{name}", ["evaluate", str(run)]
    for source in models:
        for name in ("pytorch_model.bin", "adapter_model.bin", "model.safetensors", "training_args.bin"):
            anew(source, copy)
            if name == "pytorch_model.bin":
                (copy / "model.safetensors").unlink()
            if name == "adapter_model.bin":
                (copy / "adapter_config.json").write_text('{"peft_type": "LORA"}')
            torch.save(Evil(marker), copy / name)
            yield f"a pickle in {source.name}/{name}", ["extend", str(copy), "128", "--to", str(to)]
        anew(source, copy)
        (copy / "modeling_strange.py").write_text(code)
        tree = json.loads((copy / "config.json").read_text())
        maps = {"AutoConfig": "modeling_strange.C", "AutoModel": "modeling_strange.M"}
        for kind in ("strange", tree["model_type"]):
            (copy / "config.json").write_text(json.dumps(tree | {"auto_map": maps, "model_type": kind}))
            yield f"code of {source.name}, {kind}", ["extend", str(copy), "128", "--to", str(to)]
        for key in ("hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings"):
            for value in (10**10, "16", 1e400, -1, None, [16]):
                (anew(source, copy) / "config.json").write_text(json.dumps(tree | {key: value}))
                yield f"{source.name}: {key} = {value!r}", ["extend", str(copy), "128", "--to", str(to)]
        anew(source, copy)
        (copy / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
        yield f"{source.name}: a long header", ["extend", str(copy), "128", "--to", str(to)]
        anew(source, copy)
        (copy / "model.safetensors").unlink()
        os.symlink("/dev/zero", copy / "model.safetensors")
        yield f"{source.name}: a link to a device", ["extend", str(copy), "128", "--to", str(to)]
    while True:
        source = chance.choice(models)
        what = stranger(anew(source, copy), chance)
        yield f"{source.name}/{what}", ["extend", str(copy), "128", "--to", str(to)]
