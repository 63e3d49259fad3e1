"""Two processes compute what one does: sharded weights in bfloat16, shared heads."""

import contextlib
import copy
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

import floater
from floater import PositionError, Positions, build, catalogue
from floater.testing.inputs import SIZES, mask_positions, randomize_zeros
from floater.testing.reference import config
from floater.transformer import FloaterConfig, FloaterForCausalLM, FloaterModel
from processes import in_two_processes

MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
PARTS = "none", "rotary", "sinusoidal", "floater", "complex", "floater_rotary"
STYLES = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def add_name(name, text):
    return f"{name}: {text}"


def whole(parameter):
    """Return a parameter's gradient, of all processes."""
    gradient = parameter.grad
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def step(model, ids, positions):
    """Return the hidden states, after a backward pass."""
    out = model(ids, positions=positions).last_hidden_state
    out.float().square().sum().backward()
    return out.detach().float()


def check_tensor_parallel(mesh: DeviceMesh) -> list[str]:
    """Compare models whose heads are shared with whole ones; return the names of those that are equal."""
    served = []
    for name in [name for name in catalogue() if build(name, **SIZES).serves_some_heads]:
        torch.manual_seed(0)
        model = FloaterModel(config(name, {})).double().eval()
        randomize_zeros(model)
        positions = mask_positions(model.encoder.position, MASK)
        ids = torch.arange(14).view(2, 7) % SIZES["vocabulary"]
        sharded = copy.deepcopy(model)
        plan = {name: STYLES[style]() for name, style in model.config.base_model_tp_plan.items()}
        parallelize_module(sharded, mesh, plan)
        torch.testing.assert_close(step(sharded, ids, positions), step(model, ids, positions))
        for (key, mine), theirs in zip(model.named_parameters(), sharded.parameters(), strict=True):
            if mine.grad is not None:
                torch.testing.assert_close(whole(theirs), mine.grad, msg=partial(add_name, f"{name} {key}"))
        served.append(name)
    return served


def check_refusals(mesh: DeviceMesh) -> None:
    """Encodings that treat heads in different ways are refused in one line."""
    for name in ("alibi", "shaw", "floater_rotary", "t5"):
        model = FloaterModel(config(name, {})).eval()
        plan = {name: STYLES[style]() for name, style in model.config.base_model_tp_plan.items()}
        parallelize_module(model, mesh, plan)
        with pytest.raises(PositionError, match="1 of 2 heads are on this process, but") as error:
            model(torch.arange(5)[None])
        assert "\n" not in str(error.value)


def check_tp_plan(folder: Path) -> None:
    """Transformers loads a model by our `tp_plan`."""
    model = FloaterForCausalLM.from_pretrained(folder)
    plan = DistributedConfig(tp_plan="auto", tp_size=2)
    sharded = FloaterForCausalLM.from_pretrained(folder, distributed_config=plan)
    weight = sharded.model.encoder.blocks[0].attention.query.weight
    assert isinstance(weight, DTensor)
    assert weight.to_local().shape == (8, 16)
    ids = torch.arange(14).view(2, 7) % SIZES["vocabulary"]
    for model_ in (model, sharded):
        model_.eval()
    torch.testing.assert_close(sharded(ids).logits, model(ids).logits)


def check_pretrained(folder: Path) -> None:
    """A plugged and an extended model have the outputs and gradients of one process."""
    plan = DistributedConfig(tp_plan="auto", tp_size=2)
    changes = (floater.plug, lambda model: floater.extend(model, 64, "clex"))
    for change in changes:
        outputs = []
        for options in ({}, {"distributed_config": plan}):
            model = LlamaForCausalLM.from_pretrained(folder, **options).eval()
            torch.manual_seed(1)
            change(model)
            randomize_zeros(model)
            logits = model(torch.arange(40)[None] % 17).logits
            logits.square().sum().backward()
            gradients = {name: whole(each) for name, each in model.named_parameters()}
            outputs.append((logits.detach(), gradients))
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def check_fsdp(meshes: list[DeviceMesh]) -> None:
    """Compare bfloat16 on two processes with one, by the same policy, at far and real positions."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name in ("floater", "rotary", "complex", "liere", "alibi", "fire", "rotary_axial", "deberta"):
        outputs = []
        for mesh in meshes:
            torch.manual_seed(0)
            model = FloaterModel(config(name, {})).eval()
            randomize_zeros(model)
            for block in model.encoder.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policy)
            fully_shard(model, mesh=mesh, mp_policy=policy)
            positions = Positions.arange(7)
            if "real" not in catalogue()[name].card.exceptions and not name.endswith("axial"):
                positions = Positions.events(torch.arange(0, 70, 10)[None] + 1325476708, time_per_position=7)
            ids = torch.arange(7)[None]
            out = step(model, ids, positions)
            outputs.append([out, *map(whole, model.parameters())])
        for two, one in zip(*outputs, strict=True):
            assert (two is None) == (one is None)
            if two is not None:
                assert bool(two.isfinite().all())
                torch.testing.assert_close(
                    two, one, rtol=1e-5, atol=1e-6, msg=lambda text, at=name: f"{at}: {text}"
                )


def check_a_precision_of_its_own() -> None:
    """A position model that is sharded by itself keeps float32, as by `bfloat16()`; without, a warning."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ids, positions = torch.arange(7)[None], Positions(*[torch.arange(0, 7000, 1000)[None]] * 2)
    for name in ("complex", "rotary_mixed", "liere", "floater_rotary"):
        torch.manual_seed(0)
        model = FloaterModel(config(name, {})).eval()
        randomize_zeros(model)
        sharded, rounded = copy.deepcopy(model), copy.deepcopy(model)
        fully_shard(sharded.encoder.position)
        for each in (sharded, rounded):
            fully_shard(each, mp_policy=policy)
        with pytest.warns(UserWarning, match="mixed precision rounds the frequencies of"):
            off = step(rounded, ids, positions)
        for _ in range(2):  # weights that were gathered are sharded again
            model.zero_grad()
            sharded.zero_grad()
            plain = copy.deepcopy(model).bfloat16()
            with warnings.catch_warnings(action="error", category=UserWarning):
                actual, expected = step(sharded, ids, positions), step(plain, ids, positions)
            torch.testing.assert_close(actual, expected)
            assert not torch.allclose(off, expected)
            pairs = zip(
                sharded.encoder.position.parameters(), plain.encoder.position.parameters(), strict=True
            )
            for mine, theirs in pairs:
                assert isinstance(mine, DTensor)
                torch.testing.assert_close(whole(mine), theirs.grad)
                mine.data.add_(0.25 * mine.grad / mine.grad.full_tensor().abs().max())
            for mine, theirs in zip(
                sharded.encoder.position.parameters(), model.encoder.position.parameters(), strict=True
            ):
                theirs.data.copy_(mine.full_tensor())


def check_wrapping_by_size(folder: Path) -> None:
    """FSDP may wrap any module but the parts of a position model, which it refuses in one line."""

    def first(model, least):
        policy = partial(size_based_auto_wrap_policy, min_num_params=least)
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))

    def second(model, least):
        for part in [*model.modules()][:0:-1]:
            if sum(p.numel() for p in part.parameters()) > least and not isinstance(part, containers):
                fully_shard(part)
        return fully_shard(model)

    containers = nn.ModuleList, nn.ModuleDict  # PyTorch refuses to wrap them
    rotary, shaw, flow = (FloaterModel(config(name, {})).eval() for name in ("rotary", "shaw", "floater"))
    plugged = LlamaForCausalLM.from_pretrained(folder)
    floater.plug(plugged)
    ids, positions = torch.arange(7)[None], Positions.arange(7)
    for model, wrap in ((rotary, first), (rotary, second), (shaw, second)):
        wrapped = wrap(copy.deepcopy(model), 50)
        torch.testing.assert_close(step(wrapped, ids, positions), step(model, ids, positions))
        if wrap is second:
            for mine, theirs in zip(wrapped.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(whole(mine), theirs.grad)
        model.zero_grad()
    for model in (flow, plugged):
        for wrap in (first, second):
            wrapped = wrap(copy.deepcopy(model), 50)
            with pytest.raises(PositionError, match=r"^FSDP wraps \w+, a part of a position model .*model$"):
                wrapped(ids)


def check_flat_weights(folder: Path) -> None:
    """FSDP1 trains flows whose weights stay parameters, and is refused in one line where they do not."""
    torch.manual_seed(0)
    ids = torch.arange(40)[None] % SIZES["vocabulary"]
    models = [FloaterForCausalLM(config("floater", {}, is_decoder=True))]
    models += [LlamaForCausalLM.from_pretrained(folder) for _ in range(2)]
    floater.plug(models[1])
    floater.extend(models[2], 64, "clex")
    for model, refusals in zip(models, ({False}, {False}, {False, True}), strict=True):
        randomize_zeros(model.train())
        for keep in (False, True):
            wrapped = FullyShardedDataParallel(
                copy.deepcopy(model), use_orig_params=keep, device_id=torch.device("cpu")
            )
            if keep in refusals:
                with pytest.raises(
                    (RuntimeError, ValueError), match=r"^(a flow has no parameters|FSDP1 and) .*fully_shard"
                ):
                    wrapped(ids, use_cache=False)
                continue
            for each in (model, wrapped):
                optimizer = torch.optim.SGD(each.parameters(), 1.0)
                each(ids, use_cache=False).logits.square().mean().backward()
                optimizer.step()
            with FullyShardedDataParallel.summon_full_params(wrapped):
                torch.testing.assert_close([*wrapped.parameters()], [*model.parameters()])


@contextlib.contextmanager
def keys_of_all_processes() -> Iterator[None]:
    """Let causal SDPA attend to the keys of earlier processes, as `context_parallel` does on a GPU."""
    rank, inner = dist.get_rank(), F.scaled_dot_product_attention

    def attend(q, k, v, attn_mask=None, is_causal=False, **options):
        assert attn_mask is None
        assert is_causal
        k, v = (torch.cat(gather(x.contiguous()), 2) for x in (k, v))
        if options.pop("enable_gqa", False):
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(rank * q.shape[2])
        return inner(q, k, v, attn_mask=seen, **options)

    def gather(x):
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x)
        return parts

    attend.__module__ = _attention.__name__
    with mock.patch.object(F, "scaled_dot_product_attention", attend):
        yield


@torch.no_grad()
def check_context_parallel(mesh: DeviceMesh, folder: Path) -> None:
    """Halves of a text at `position_ids` have the logits of the text; what would read a part is refused."""
    plugged, extended = (LlamaForCausalLM.from_pretrained(folder) for _ in range(2))
    floater.plug(plugged)
    floater.extend(extended, 64, "yarn")
    models = [FloaterForCausalLM(config(name, {}, is_decoder=True)) for name in PARTS]
    ids, options = torch.arange(14)[None] % SIZES["vocabulary"], {"use_cache": False}
    half = slice(7 * dist.get_rank(), 7 * dist.get_rank() + 7)
    at = torch.arange(14)[None, half]
    for model in (*models, plugged, extended):
        randomize_zeros(model.eval())
        expected = model(ids, **options).logits[:, half]
        with keys_of_all_processes():
            actual = model(ids[:, half], position_ids=at, **options).logits
            if model in models:
                placed = model(ids[:, half], positions=Positions(at, at), **options).logits
                torch.testing.assert_close(placed, expected)
        torch.testing.assert_close(actual, expected)
    with context_parallel(mesh, buffers=[part := ids.clone()], buffer_seq_dims=[1]):
        for model in (*models, plugged):
            with pytest.raises(ValueError, match=r"^within context_parallel .* pass position_ids.*$"):
                model(part, **options)
        for name in ("alibi", "shaw", "fire", "rnn_transformer"):
            model = FloaterForCausalLM(config(name, {}, is_decoder=True)).eval()
            with pytest.raises(PositionError, match=r"^context_parallel shows .* a part of each text; .*$"):
                model(part, position_ids=at, **options)
        for method in ("clex", "self_extend", "log_n"):
            model = LlamaForCausalLM.from_pretrained(folder)
            floater.extend(model, 64, method)
            with pytest.raises(ValueError, match=r"^a model extended by .* reads the positions of all.*$"):
                model(part, position_ids=at, **options)


def check_ddp() -> None:
    """Gradients of two halves of a batch are averaged to those of the whole batch."""
    torch.manual_seed(0)
    model = FloaterModel(config("floater", {}))
    ids = torch.arange(14).view(2, 7) % SIZES["vocabulary"]
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    wrapped(ids[dist.get_rank()][None]).last_hidden_state.square().mean().backward()
    model(ids).last_hidden_state.square().mean().backward()
    for mine, theirs in zip(model.parameters(), wrapped.module.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def compare(folder: Path) -> int:
    """Run all comparisons, in one of two processes."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    alone = [DeviceMesh("cpu", [[0], [1]], mesh_dim_names=("apart", "dp"))["dp"]][0]
    check_ddp()
    check_fsdp([init_device_mesh("cpu", (2,)), alone])
    check_a_precision_of_its_own()
    check_wrapping_by_size(folder / "llama")
    check_flat_weights(folder / "llama")
    served = check_tensor_parallel(mesh)
    assert {"none", "rotary", "sinusoidal", "floater", "learned"} <= {*served}
    check_refusals(mesh)
    check_tp_plan(folder / "model")
    check_pretrained(folder / "llama")
    check_context_parallel(mesh, folder / "llama")
    print(len(served), "encodings")
    dist.destroy_process_group()
    return 0


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    FloaterForCausalLM(
        FloaterConfig(**config("floater", {}, is_decoder=True).to_diff_dict())
    ).save_pretrained(tmp_path / "model")
    llama = LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    LlamaForCausalLM(llama).save_pretrained(tmp_path / "llama")
    in_two_processes(compare, tmp_path, folder=tmp_path)
