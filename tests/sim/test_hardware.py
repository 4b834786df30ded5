import numpy as np
import pytest

from sim.hardware import HardwareError, hardware_names, load_hardware
from sim.memory import DoesNotFitError, kv_capacity, slot_bytes
from sim.models import load_model

GPUS = ("a100-80g", "h100", "h200", "l40s", "l4", "rtx-4090", "rtx-pro-6000", "b200")


def test_names():
    assert hardware_names() == GPUS
    assert load_hardware("RTX_4090").name == "rtx-4090"
    with pytest.raises(HardwareError, match="did you mean h100"):
        load_hardware("h1000")


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_has_a_source_and_sense(name):
    gpu = load_hardware(name)
    assert gpu.source
    assert gpu.efficiency.source.startswith("aiconfigurator")
    assert 20 << 30 < gpu.memory_bytes < 200 << 30
    assert gpu.peak_flops("fp8") in (gpu.fp8_flops, gpu.bf16_flops)
    for gemm in gpu.efficiency.gemm.values():
        assert all(0.05 < share < 1.6 for share in gemm.compute)
        # a cold read never beats the memory
        assert all(0 < share <= 1 for share in gemm.cold().memory)
    assert all(0 < share <= 1 for share in gpu.efficiency.decode.cold().memory)
    for curve in gpu.efficiency.allreduce.values():
        assert np.all(np.diff(curve.xs) > 0)


def test_who_borrows_says_from_whom():
    assert {n: load_hardware(n).borrowed for n in GPUS if load_hardware(n).borrowed} == {
        "l4": "l40s",
        "rtx-4090": "l40s",
        "b200": "h200",
    }


def test_capacity_is_what_vllm_found():
    """2,588 blocks: vLLM 0.19.0, Llama-3.1-8B, RTX 4090, 0.9, 2,048 tokens, 256 seats."""
    found = kv_capacity(
        load_model("llama-3.1-8b"), load_hardware("rtx-4090"), max_num_batched_tokens=2048
    )
    assert found.blocks == pytest.approx(2588, rel=0.005)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_capacity_adds_up(tp):
    model, gpu = load_model("qwen3-32b"), load_hardware("h200")
    m = kv_capacity(model, gpu, tp=tp, max_num_batched_tokens=4096, utilization=0.8)
    assert m.weight_bytes == model.weight_bytes("bf16", tp)
    assert m.slot_bytes == slot_bytes(model, tp)
    left = m.free_bytes - 4096 * m.slot_bytes - m.blocks * m.block_bytes
    assert 0 <= left < m.block_bytes
    assert m.free_bytes < 0.8 * gpu.memory_bytes - m.weight_bytes
    assert m.block_bytes == 16 * model.kv_bytes_per_token("bf16", tp)


def test_smaller_numbers_leave_more_room():
    model, gpu = load_model("llama-3.1-8b"), load_hardware("l4")
    wide = kv_capacity(model, gpu)
    assert kv_capacity(model, gpu, dtype="fp8").blocks > wide.blocks
    assert kv_capacity(model, gpu, kv_dtype="fp8").blocks >= 2 * wide.blocks
    assert kv_capacity(model, gpu, max_num_batched_tokens=512).blocks > wide.blocks


def test_a_model_that_does_not_fit_says_by_how_much():
    with pytest.raises(DoesNotFitError, match=r"short of 6\d\.\d GiB.*--tp.*--dtype fp8"):
        kv_capacity(load_model("llama-3.1-70b"), load_hardware("h100"))
    with pytest.raises(ValueError, match="--gpu-memory-utilization"):
        kv_capacity(load_model("tiny"), load_hardware("h100"), utilization=1.5)
