"""Encodings, kernels and models on a GPU equal those of the CPU and the formula, also in CUDA graphs."""

import copy
import re

import pytest
import torch

from devices.cases import PADDED, counted_positions, padded_positions, step
from devices.subjects import BAKED, IDS, baked, subjects
from devices.test_second_device import PAGE
from floater import catalogue
from floater.encodings import PositionModel
from floater.flow import FlowEncoder
from floater.pretrained.extending import biases
from floater.testing.case import Case
from floater.testing.inputs import mask_positions, randomize_zeros
from floater.transformer import FloaterForCausalLM
from floater.transformer.stacks import Encoder
from small_models import small_config

pytestmark = pytest.mark.gpu
ENCODINGS = sorted(catalogue())
POSITIONS = {"counted": counted_positions, "padded": padded_positions}
RECURRENT = "rnn_transformer", "rr_transformer"
# PyTorch copies the norms of a matrix exponential, and the lengths of packed texts, to the CPU.
COPYING = {"liere", "pnat"}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def inputs(kind, position):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*PADDED.shape, 16, generator=generator, dtype=torch.double), POSITIONS[kind](position)


def assert_all_close(ours, theirs, **tolerance):
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None), "a parameter without gradient on one device"
        if mine is not None:
            torch.testing.assert_close(mine.cpu(), other.cpu(), **tolerance)


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_is_that_of_the_cpu(name, kind):
    # Without what training draws, since a GPU draws other numbers from a seed. cuDNN's recurrent cells have
    # no gradient in evaluation.
    here, there = (Case(name).stack().train(name in RECURRENT) for _ in range(2))
    there.cuda()
    x, positions = inputs(kind, here.position)
    expected = step(here, x, positions)
    # more intervals are iterated together there: vectors differ within the solver's tolerance
    atol = 1e-6 if any(isinstance(part, FlowEncoder) for part in here.modules()) else 1e-8
    assert_all_close(step(there, x.cuda(), positions.to("cuda")), expected, rtol=1e-6, atol=atol)


def listed(pattern):
    """Return the encodings in the rows of the page that match."""
    rows = re.findall(pattern, PAGE.read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_do_not_wait_for_the_gpu(name):
    """No operation of a training step waits, except in the encodings that the page lists."""
    waiting = COPYING | listed(r"^\| ([^|]*`[^|]*) \| [1-9] \|") | listed(r"^\| (`[^|]*`) \| [^|\d]+ \|$")
    if name in waiting or any(isinstance(part, FlowEncoder) for part in Case(name).stack().modules()):
        pytest.skip("the page says that it waits")
    stack = Case(name).stack().train().cuda()
    x, positions = inputs("counted", stack.position)
    x, positions = x.cuda(), positions.to("cuda")
    step(stack, x, positions)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(stack, x, positions)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def replayed(call, x):
    """Return what a CUDA graph of a call returns for the input x, which it was not captured with."""
    held = torch.zeros_like(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call(held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(held)
    held.copy_(x)
    graph.replay()
    return out


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_graph_captures_every_baked_encoding(name):
    if name in COPYING | listed(r"^\| (`[^|]*`) \| [^|\d]+ \|$"):
        pytest.skip("the page says that a graph does not capture it")
    stack = Case(name).stack().eval()
    if any(isinstance(part, FlowEncoder) for part in stack.modules()):
        for part in [part for part in stack.modules() if isinstance(part, PositionModel)]:
            part.bake(8)
    stack = stack.cuda()
    x, positions = inputs("counted", stack.position)
    x, positions = x.cuda(), positions.to("cuda")
    torch.testing.assert_close(replayed(lambda held: stack(held, positions), x), stack(x, positions))


@torch.no_grad()
@pytest.mark.parametrize("name", BAKED)
def test_a_graph_captures_baked_models(name):
    model, ids = baked(name).cuda(), IDS.cuda()
    outputs = replayed(lambda held: model(held)[0], ids)
    torch.testing.assert_close(outputs, model(ids)[0])


def assert_near(results, formula, limit):
    """Compare norms, as a gradient that is zero but for rounding has no relative error."""
    least = 0.1 * max(float(x.norm()) for x in formula if x is not None)
    for ours, theirs in zip(results, formula, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            error = (ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=least)
            assert error < limit, (tuple(ours.shape), float(error))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_half_precision_is_near_single_precision(name, precision):
    single, mixed = (Case(name).stack().train().float().cuda() for _ in range(2))
    x, positions = inputs("padded", single.position)
    x, positions = x.float().cuda(), positions.to("cuda")
    expected = step(single, x, positions)
    with torch.autocast("cuda", dtype=PRECISIONS[precision]):
        results = step(mixed, x, positions)
    assert_near(results, expected, {"bfloat16": 0.3, "float16": 0.1}[precision])


def kernel_results(name, kernels, causal, precision, length=200, width=32, **options):
    """Return the output and gradients of a block by each kernel, the second text shorter than the first."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 2 * width, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = small_config(name, **sizes, training_length=256, position_options=options)
    stack = Encoder(config, causal=causal).cuda().train()
    randomize_zeros(stack)
    x = torch.randn(2, length, 2 * width, device="cuda")
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length - 3 :] = 0
    positions = mask_positions(stack.position, mask).to("cuda")
    results = []
    for kernel in kernels:
        stack.config._attn_implementation = kernel
        stack.zero_grad()
        torch.manual_seed(3)
        with torch.autocast("cuda", dtype=PRECISIONS[precision], enabled=precision != "float32"):
            out = stack(x, positions) * mask.cuda()[..., None]
        out.sin().sum().backward()
        results.append([out.detach(), *(p.grad for p in stack.parameters())])
    return results


LIMITS = {"float32": 1e-4, "bfloat16": 0.15, "float16": 0.1}
TIMED = "alibi", "kerple", "rotary", "dynamic_bias"
CLOCKS = {f"clock of {name}": {"model": name, "std": 0.1} for name in TIMED}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("length", [7, 64])
@pytest.mark.parametrize("name", [*ENCODINGS, *CLOCKS])
def test_the_fused_kernel_computes_the_formula(name, length, precision):
    """Keys have more columns in a clock; in "disan" queries have no key, where cuDNN's kernel is wrong."""
    options = CLOCKS.get(name, {})
    causal = bool(options)
    encoding = "clock" if options else name
    eager, fused = kernel_results(encoding, ("eager", "sdpa"), causal, precision, length, **options)
    assert_near(fused, eager, LIMITS[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("name", ["alibi", "disan", "floater_relative", "kerple", "rotary", "t5", "window"])
def test_flex_attention_computes_the_formula(name, width, causal, precision):
    """It compiles kernels for the GPU, whose blocks depend on the width of heads."""
    eager, flex = kernel_results(name, ("eager", "flex_attention"), causal, precision, width=width)
    assert_near(flex, eager, LIMITS[precision])


@pytest.mark.parametrize("name", ["floater", "floater_relative", "rotary", "t5"])
def test_compiled_steps_are_those_of_the_formula(name):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    model = FloaterForCausalLM(small_config(name, **sizes)).cuda().train()
    ids = torch.arange(3, 33, device="cuda").view(2, 15) % 8 + 3

    def gradients(module):
        module.zero_grad()
        loss = module(ids, labels=ids).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in module.parameters())]

    expected = gradients(model)
    assert_all_close(gradients(torch.compile(copy.deepcopy(model))), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["floater", "alibi", "rotary", "t5", "cope", "forgetting"])
def test_generation_writes_what_the_cpu_writes(name):
    torch.manual_seed(0)
    model = FloaterForCausalLM(small_config(name)).double().eval()
    mask = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [0] * 4 + [1] * 3])
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": 2}
    here = model.generate(IDS, attention_mask=mask, **options)
    there = model.cuda().generate(IDS.cuda(), attention_mask=mask.cuda(), **options)
    assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("name", subjects())
def test_whole_models_are_those_of_the_cpu(name, monkeypatch):
    monkeypatch.setattr(biases, "STEPS", 1)  # a fit need not be close
    monkeypatch.setattr(biases, "POINTS", 20)
    build, batch = subjects()[name]
    here = build().eval()
    there = copy.deepcopy(here).cuda()

    def train(model, batch):
        torch.manual_seed(3)
        outputs = [x for x in model(**batch).values() if isinstance(x, torch.Tensor) and x.requires_grad]
        torch.stack([x.square().sum() for x in outputs]).sum().backward()
        return [*(x.detach() for x in outputs), *(p.grad for p in model.parameters())]

    expected = train(here, batch)
    largest = max(float(x.abs().max()) for x in expected if x is not None)
    on_gpu = {key: value.cuda() for key, value in batch.items()}
    assert_all_close(train(there, on_gpu), expected, rtol=1e-3, atol=3e-5 * largest)
