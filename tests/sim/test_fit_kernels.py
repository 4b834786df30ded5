import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sim.hardware
from sim.fit_kernels import HEAD_DIM, fit_ops, impossible, read_ops
from sim.hardware import HardwareError, load_hardware
from sim.operations import decode_attention_s, prefill_attention_s, product_s
from tests.shared import shared

GEMM_LIMIT, ATTENTION_LIMIT = 0.12, 0.15


@pytest.fixture(scope="module")
def measured():
    return fit_ops(shared("truth", "aiconfigurator-ops"))


@pytest.mark.shared
def test_kernels_of_five_gpus_on_rows_left_out(measured):
    by_gpu = {}
    for s in measured.scores:
        by_gpu.setdefault(s.gpu, {})[s.op] = s
    assert set(by_gpu) == {"a100-80g", "h100", "h200", "l40s", "rtx-pro-6000"}
    for gpu, ops in by_gpu.items():
        for op, score in ops.items():
            if (gpu, op) == ("h200", "prefill attention"):
                assert score.error is None
                continue
            limit = GEMM_LIMIT if op.startswith("gemm") else ATTENTION_LIMIT
            assert score.error < limit, (gpu, op)


@pytest.mark.shared
def test_a_table_that_beats_the_peak_is_rejected_and_said(measured):
    """H200's prefill attention needs up to ten times the FLOP/s that the chip has."""
    (table,) = [
        t
        for t in read_ops(shared("truth", "aiconfigurator-ops"))
        if (t.gpu, t.op) == ("h200", "context_attention")
    ]
    assert impossible(load_hardware("h200"), table.rows).sum() == 139
    (score,) = [s for s in measured.scores if (s.gpu, s.op) == ("h200", "prefill attention")]
    assert score.note.startswith("rejected: 139 rows need more than the dense peak")
    fits = json.loads(measured.to_json())
    assert fits["h200"]["prefill"] == fits["h100"]["prefill"]


@pytest.mark.shared
def test_the_hardware_table_is_what_the_command_gives(measured):
    path = Path(sim.hardware.__file__).with_name("efficiency.json")
    committed = json.loads(path.read_text())
    fresh = json.loads(measured.to_json())
    assert _shape(fresh) == _shape(committed)
    for gpu, ops in _numbers(committed).items():
        assert _numbers(fresh)[gpu] == pytest.approx(ops, rel=0.02, abs=1e-12), gpu


def _shape(value):
    if isinstance(value, dict):
        return {k: _shape(v) for k, v in value.items()}
    return [_shape(v) for v in value] if isinstance(value, list) else type(value) in (int, float)


def _numbers(raw):
    """What decides a time: seconds at a few sizes, per GPU (single coefficients may trade off)."""
    out = {}
    for name, fits in raw.items():
        gpu = load_hardware(name)
        found = sim.hardware.efficiency_of(name, fits)
        sizes = np.array([1, 64, 512, 4096])
        out[name] = [
            *(
                s
                for dtype in found.gemm
                for s in product_s(
                    found.gemm[dtype], gpu.peak_flops(dtype), gpu.bytes_per_s, sizes, 8192, 4096
                )
            ),
            *prefill_attention_s(
                *(found.prefill, gpu.bf16_flops, gpu.bytes_per_s, 32, 8, HEAD_DIM),
                *(sizes * (sizes + 1) / 2, sizes, 1, sizes),
            ),
            *decode_attention_s(found.decode, gpu.bytes_per_s, sizes, 8, sizes * 4096 * 500),
        ]
    return out


def made_tables(folder):
    """Kernel tables of a GPU that obeys the formulas, with 5% noise."""
    gpu = load_hardware("h100")
    fit, rng = gpu.efficiency, np.random.default_rng(3)

    def save(op, table, seconds):
        noisy = seconds * np.exp(0.05 * rng.standard_normal(len(table)))
        path = folder / f"h100_sxm.{op}.made.csv"
        table.assign(latency_ms=noisy * 1e3).to_csv(path, index=False)

    n = 300
    m, wide, deep = (2 ** rng.integers(low, high, n) for low, high in ((0, 14), (11, 16), (11, 15)))
    save(
        "gemm",
        pd.DataFrame({"gemm_dtype": "bfloat16", "m": m, "n": wide, "k": deep}),
        product_s(fit.gemm["bf16"], gpu.bf16_flops, gpu.bytes_per_s, m, wide, deep),
    )
    rows, kv = 2 ** rng.integers(0, 9, n), 2 ** rng.integers(0, 4, n)
    width, heads = 2 ** rng.integers(0, 14, n), 8 * kv
    head = {"batch_size": rows, "num_heads": heads, "num_key_value_heads": kv}
    tokens = rows * width
    save(
        "context_attention",
        pd.DataFrame({**head, "isl": width}),
        prefill_attention_s(
            *(fit.prefill, gpu.bf16_flops, gpu.bytes_per_s, heads, kv, HEAD_DIM),
            *(tokens * (width + 1) / 2, tokens, rows, tokens),
        ),
    )
    save(
        "generation_attention",
        pd.DataFrame({**head, "context": width}),
        decode_attention_s(fit.decode, gpu.bytes_per_s, rows, kv, 4 * HEAD_DIM * tokens * kv),
    )


def test_known_kernels_are_found_again(tmp_path):
    made_tables(tmp_path)
    found = fit_ops(tmp_path)
    assert [s.op for s in found.scores] == ["prefill attention", "gemm-bf16", "decode attention"]
    for score in found.scores:
        assert 0.02 < score.error < 0.06, score  # E|N(0, 0.05)| = 0.04
    fits = sim.hardware.efficiency_of("h100", json.loads(found.to_json())["h100"])
    truth = load_hardware("h100").efficiency
    assert fits.prefill.compute == pytest.approx(truth.prefill.compute, rel=0.1)
    assert fits.decode.memory[-1] == pytest.approx(truth.decode.memory[-1], rel=0.1)
    assert fits.gemm["bf16"].memory[-1] == pytest.approx(truth.gemm["bf16"].memory[-1], rel=0.1)


def test_tables_that_cannot_be_read(tmp_path):
    with pytest.raises(HardwareError, match="no table of kernels"):
        fit_ops(tmp_path)
    path = tmp_path / "h100_sxm.gemm.made.csv"
    table = pd.DataFrame({"gemm_dtype": ["bfloat16"] * 3, "m": 1, "n": 2, "k": 3})
    table.to_csv(path, index=False)
    with pytest.raises(HardwareError, match=r"gemm\.made\.csv: no column latency_ms"):
        fit_ops(tmp_path)
    table.assign(latency_ms=[1.0, -2.0, 1.0]).to_csv(path, index=False)
    with pytest.raises(HardwareError, match=r"made\.csv:3: latency_ms must be positive, found -2"):
        fit_ops(tmp_path)


def test_a_wrong_table_without_a_sibling_is_an_error(tmp_path):
    made_tables(tmp_path)
    path = tmp_path / "h100_sxm.context_attention.made.csv"
    table = pd.read_csv(path)
    table["latency_ms"] /= 50
    table.to_csv(path, index=False)
    with pytest.raises(HardwareError, match="need more than the dense peak, and no other GPU"):
        fit_ops(tmp_path)
