"""What a GPU runs, held to the definition; the same tests run on the CPU as far as it can."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from executor.backends import NAMES, AttentionError, choose
from executor.dry_run import largest_step, measured_slot_bytes
from executor.memory import room
from executor.utilisation import Utilisation
from policies.compose import NAMED, Settings
from sim.memory import DoesNotFitError
from tests.executor.nano import NANO, alone, engine, mixed, run
from tests.executor.test_attention import SHAPE, check

GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU: CUDA is not tested"),
)


def cuda(*values: object) -> object:
    """Parameters of a test that needs a GPU."""
    return pytest.param("cuda", *values, marks=GPU)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("device", "name"),
    [("cpu", "sdpa"), *(cuda(name) for name in NAMES)],
)
def test_every_backend_that_is_here_computes_attention(device: str, name: str, dtype: str) -> None:
    """Prompts, chunks and decodes against float64; SDPA is there everywhere."""
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    try:
        backend = choose(SHAPE, kind, device, name)
    except AttentionError as error:
        if name == "sdpa":
            raise
        pytest.skip(f"not here: {str(error).splitlines()[-1].strip()}")
    tolerance = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 4e-3}[dtype]
    check(backend, max(16, backend.page_multiple), kind, tolerance, device)


@pytest.mark.parametrize(
    ("device", "policy"), [("cpu", "continuous"), *(cuda(policy) for policy in NAMED)]
)
def test_greedy_tokens_in_fp32_are_the_definitions(device: str, policy: str) -> None:
    model = engine(device)
    trace = mixed(12)
    found = run(model, trace, policy)
    for i in range(len(trace)):
        prompt, count = found.tokens.prompt(i).tolist(), int(trace.output_tokens[i])
        assert found.tokens.output(i).tolist() == alone(model, prompt, count)


@pytest.mark.parametrize(
    ("device", "policy", "asynchronous"),
    [("cpu", "continuous", True), cuda("static", False), cuda("continuous", False),
     cuda("chunked-prefill", False), cuda("continuous", True)],
)  # fmt: skip
def test_the_models_count_is_the_records(device: str, policy: str, asynchronous: bool) -> None:
    """In bf16, so with CUDA graphs where the backend can, whose padding rows count too."""
    model = engine(device, "bf16")
    assert model.backend.capturable == (device == "cuda"), "no CUDA backend runs on this GPU"
    found = run(model, mixed(), policy, async_scheduling=asynchronous)
    columns = found.recorder.step_columns()
    slots = columns["prefill_slots"] + columns["decode_slots"]
    pairs = columns["prefill_computed_pairs"] + columns["decode_computed_pairs"]
    assert found.facts["computed_slots"] == slots.sum()
    assert found.facts["computed_pairs"] == pairs.sum()
    assert found.facts["peak_memory_bytes"] > 0
    assert found.spent.model_s > 0


@pytest.mark.parametrize("device", ["cpu", cuda()])
def test_bf16_logits_are_near_those_of_fp32_on_the_cpu(device: str) -> None:
    """By the first tokens of many prompts: rounding flips few of them, a wrong kernel most."""
    exact, rounded = engine(), engine(device, "bf16")
    for theirs, ours in zip(exact.model.parameters(), rounded.model.parameters(), strict=True):
        ours.data.copy_(theirs.data)
    firsts = []
    for model in (exact, rounded):
        found = run(model, mixed(40), "chunked-prefill", max_num_batched_tokens=64)
        firsts.append([found.tokens.output(i, 1).tolist() for i in range(40)])
    assert sum(a == b for a, b in zip(*firsts, strict=True)) >= 34


# The dry run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("padded", "tokens", "longest"),
    [(False, 8192, 4096), (False, 8192, 8192), (False, 512, 4096), (False, 9000, 4096),
     (True, 0, 2048), (True, 0, 20000)],
)  # fmt: skip
def test_the_dry_run_is_the_largest_step(padded: bool, tokens: int, longest: int) -> None:
    cell = largest_step(padded, tokens, longest)
    assert max(context + n for context, n in cell.chunks) == longest
    if padded:
        assert cell.slots == max(8192 // longest, 1) * longest
    else:
        assert sum(n for _, n in cell.chunks) == cell.slots == tokens


def test_what_the_dry_run_needs_is_counted_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's counters replaced: the peak over what was held when the second run began."""
    model, calls = engine(), []
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 5000)
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", calls.append)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: 5000 + 77 * 100 - 1)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: calls.append("emptied"))
    assert measured_slot_bytes(model, False, 100, 64) == 77
    assert calls == [model.device, "emptied"]

    def full(device: object) -> int:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("torch.cuda.memory_allocated", full)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1 << 30, 4 << 30))
    with pytest.raises(DoesNotFitError, match=r"a step of 100 tokens .* 1.0 of 4.0 GiB are free"):
        measured_slot_bytes(model, False, 100, 64)


def test_a_measured_slot_takes_the_place_of_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "executor.memory.free_bytes", lambda device: int((100_000 * 8192 + 8e6) / 0.9)
    )
    point, settings, cpu = NAMED["chunked-prefill"], Settings(4096), torch.device("cpu")
    trace = mixed(40)
    trace = trace.__class__(trace.arrival_s, np.full(40, 4000), np.full(40, 90), name="long")
    few, many = (
        room(NANO, torch.bfloat16, cpu, point, settings, trace, 8192, None, 0.9, slot).blocks
        for slot in (100_000, 99_000)
    )
    block = 2 * NANO.layers * 16 * NANO.kv_heads * NANO.head_dim * 2
    assert abs((many - few) * block - 8192 * 1000) <= block


# Utilisation -------------------------------------------------------------------------------------


class FakeNvml:
    """NVML by the names that nvidia-ml-py gives it."""

    class NVMLError(Exception):
        pass

    def __init__(self, readings: list[int], broken: str = "") -> None:
        self.readings, self.broken, self.calls = readings, broken, []

    def nvmlInit(self) -> None:  # noqa: N802
        self.calls.append("init")
        if self.broken == "init":
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append("shutdown")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        assert handle == "GPU-1234"
        if not self.readings or self.broken == "rates":
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=self.readings.pop(0))


def watch(monkeypatch: pytest.MonkeyPatch, nvml: object) -> Utilisation:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    properties = SimpleNamespace(uuid="1234")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    with Utilisation(torch.device("cuda"), period_s=0.001) as busy:
        if busy._thread is not None:
            busy._thread.join(5)  # until the readings run out
    return busy


def test_utilisation_is_the_mean_of_the_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([0, 90, 100, 80])  # the first is of the time before
    busy = watch(monkeypatch, nvml)
    assert busy.mean == pytest.approx(0.9)
    assert nvml.calls == ["init", "shutdown"]


def test_no_utilisation_comes_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for nvml, why in (
        (FakeNvml([1], "init"), "NVML: Driver Not Loaded"),
        (FakeNvml([1], "rates"), "NVML: Not Supported"),
        (None, "nvidia-ml-py is not installed"),
    ):
        busy = watch(monkeypatch, nvml)
        assert (busy.mean, busy.why) == (None, why)
    with Utilisation(torch.device("cpu")) as busy:
        pass
    assert (busy.mean, busy.why) == (None, "cpu is no NVIDIA GPU")
