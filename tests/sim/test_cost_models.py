import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.step import Features
from sim.curve import Curve
from sim.fitted import Calibration, Error, FittedCost, Provenance
from sim.fixed import FixedCost
from sim.graphs import CAPTURE_SIZES, pad_decode, padded_decode_slots
from sim.hardware import HardwareError, hardware_names, load_hardware
from sim.load import load_cost
from sim.models import load_model
from sim.operations import decode_attention_s, gemm_s, layer_s, prefill_attention_s
from sim.roofline import OVERHEAD_LAYER_S, Roofline
from sim.terms import Points, Terms
from tests.sim.features import columns, grown, steps

LLAMA = load_model("llama-3.1-8b")

NO_ERROR = Error(5, 0.0, 0.0, 0.0, {}, {"decode": (-0.1, 0.2), "mixed": (0.05, 0.07)})
TERMS = Terms(
    step=1.1e-3,
    slots=Points((0.0, 64.0, 300.0, 5000.0), (0.0, 1e-3, 3.3e-3, 0.07), 1.7e-5),
    sampled_row=3.1e-7,
    prefill=2e-4,
    prefill_slots=Points((0.0, 100.0), (0.0, 1.3e-4), 1e-7),
    prefill_pair=2.9e-9,
    chunk_kv=Points((0.0, 128.0, 4096.0), (3e-9, 3e-9, 7e-8), 1e-11),
    key=4e-7,
    decode_row=1.7e-6,
    decode_pairs=Points((0.0, 2048.0, 1e6), (0.0, 3.1e-5, 0.0907), 9e-8),
    mixed_row=1.9e-6,
    mixed_pairs=Points((0.0, 4096.0, 1e6), (0.0, 5e-4, 0.21), 2.1e-7),
    mixed_rows=Points((0.0, 32.0, 128.0), (0.0, 1e-6, 3e-5), 3e-7),
    far_rows=Points((0.0, 64.0), (0.0, 3.3e-6), 7e-8),
    decode_tail=Points((0.0, 16.0, 32.0, 256.0), (3e-8, 3e-8, 6e-7, 2e-7)),
    mixed_tail=Points((0.0, 8.0, 64.0, 128.0), (7e-7, 7e-7, 1.1e-6, 5e-7)),
)


def fitted(**options):
    tp = options.pop("tp", 1)
    made = Provenance(rows=100, model="llama-3.1-8b", layers=32, hidden=4096, tp=tp)
    return FittedCost(Calibration(TERMS, made, NO_ERROR), **options)


COSTS = {
    "fixed": FixedCost(0.05),
    "roofline h100": Roofline(LLAMA, load_hardware("h100")),
    "roofline l4, fp8 KV": Roofline(load_model("qwen3-8b"), load_hardware("l4"), 1, "fp8", "fp8"),
    "roofline a100 x4": Roofline(load_model("llama-3.1-70b"), load_hardware("a100-80g"), 4),
    "roofline tiny": Roofline(load_model("tiny"), load_hardware("rtx-4090")),
    "fitted": fitted(),
    "fitted, overhead and all-reduce": fitted(
        tp=4, overhead_layer_s=1.3e-5, allreduce_bytes_per_s=1.1e11, allreduce_s=7e-6
    ),
    "fitted, a draw": fitted().draws(3, seed=1)[2],
}


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=150, deadline=None)
@given(f=steps(), k=st.integers(1, 40))
def test_a_run_is_its_steps_to_the_last_bit(name, f, k):
    cost = COSTS[name]
    run = cost.seconds_run(f, k)
    assert {type(x) for x in run} == {float}
    assert run == [cost.seconds(g) for g in grown(f, k)]


@pytest.mark.parametrize("name", COSTS)
def test_an_empty_step_takes_no_time_and_a_step_is_a_plain_float(name):
    cost = COSTS[name]
    assert cost.seconds(Features()) == 0.0
    one = cost.seconds(Features(0, 1, 0, 1, 0, 0, 9, 9, 0, 1, 1, 0))
    assert type(one) is float
    assert one > 0


@pytest.mark.parametrize("name", [n for n in COSTS if n != "fixed"])
@settings(max_examples=100, deadline=None)
@given(f=steps(), slots=st.integers(1, 500))
def test_padding_is_never_free_of_charge(name, f, slots):
    cost = COSTS[name]
    if f.prefill_slots:
        more = f._replace(
            prefill_slots=f.prefill_slots + slots,
            prefill_computed_pairs=f.prefill_computed_pairs + slots * slots,
            prefill_kv=f.prefill_kv + slots,
        )
        assert cost.seconds(more) > cost.seconds(f)
    if f.decode_slots:
        f = f._replace(decode_longest=f.decode_computed_pairs // f.decode_rows)  # all alike
        more = f._replace(
            decode_slots=f.decode_slots + slots,
            decode_rows=f.decode_rows + slots,
            decode_computed_pairs=f.decode_computed_pairs
            + slots * (f.decode_computed_pairs // f.decode_rows + 1),
        )
        assert cost.seconds(more) > cost.seconds(f) * (1 - 1e-12)


def test_fixed():
    assert FixedCost(0.05).seconds(Features(prefill_slots=1)) == 0.05
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="--step-ms"):
            FixedCost(wrong)


@pytest.mark.parametrize("hardware", ["h100", "l40s"])
@settings(max_examples=60, deadline=None)
@given(
    power=st.integers(0, 12),
    context=st.integers(0, 9000),
    rows=st.integers(1, 256),
    prompts=st.integers(1, 3),
)
def test_roofline_is_the_sum_of_its_operations(hardware, power, context, rows, prompts):
    """At a slot count where the curve is worked out, against the formulas of each kernel."""
    gpu = load_hardware(hardware)
    cost = Roofline(LLAMA, gpu)
    fit, bandwidth = gpu.efficiency, gpu.bytes_per_s
    slots = 2**power
    pairs, kv = slots * (slots + 1) // 2 * prompts, slots + context
    prompt = Features(slots, 0, slots, 0, pairs, pairs, 0, 0, prompts, 0, 1, kv)
    layers = 32 * (layer_s(LLAMA, gpu, 1, "bf16", np.array([slots]))[0] + OVERHEAD_LAYER_S)
    head = gemm_s(gpu, "bf16", 1, LLAMA.vocab, LLAMA.hidden) + 8 * LLAMA.vocab / bandwidth
    attention = 32 * prefill_attention_s(
        fit.prefill, gpu.bf16_flops, bandwidth, 32, 8, 128, pairs, slots, prompts, kv
    )
    assert cost.seconds(prompt) == pytest.approx(layers + head + attention, rel=1e-9)

    decode = Features(0, slots, 0, slots, 0, 0, 0, rows * context, 0, rows, 0, 0)
    kv_bytes = rows * context * LLAMA.kv_bytes_per_token() / 32
    attention = 32 * decode_attention_s(fit.decode.cold(), bandwidth, rows, 8, kv_bytes)
    assert cost.seconds(decode) == pytest.approx(layers + attention, rel=1e-9)


@pytest.mark.parametrize("hardware", hardware_names())
@settings(max_examples=40, deadline=None)
@given(f=steps())
def test_no_step_beats_the_hardware(hardware, f):
    """FLOPs and bytes counted apart, one token at a time, cannot be done faster than the peak."""
    gpu = load_hardware(hardware)
    cost = Roofline(LLAMA, gpu)
    table = columns(f)
    flops, moved = float(cost.flops(table)[0]), float(cost.bytes(table)[0])
    seconds = cost.seconds(f)
    # an RTX 4090 runs over its rated clock, and its compute share is over 1 for that
    top = max(1.0, *gpu.efficiency.gemm["bf16"].compute)
    assert flops <= cost.peak_flops * seconds * top * (1 + 1e-9)
    assert moved <= cost.peak_bytes_per_s * seconds * (1 + 1e-9)


def test_useful_flops_and_bytes_of_a_known_step():
    """Llama-3.1-8B: 6,979,321,856 weights in its layers, 525,336,576 in its head."""
    f = Features(10, 4, 99, 9, 55, 999, 400, 9999, 1, 9, 5, 99)
    cost = Roofline(LLAMA, load_hardware("h100"))
    layers, head = 6_979_321_856, 525_336_576
    assert cost.flops(columns(f)).tolist() == [
        2.0 * 14 * layers + 4.0 * 32 * 32 * 128 * 455 + 2.0 * 5 * head
    ]
    assert cost.bytes(columns(f)).tolist() == [2.0 * (layers + head) + 131072.0 * (99 + 400 + 10)]
    assert cost.flops(columns(Features())).tolist() == [0.0]
    assert cost.bytes(columns(Features())).tolist() == [0.0]


def test_more_gpus_are_faster_and_pay_for_their_reductions():
    big = load_model("llama-3.1-70b")
    h100 = load_hardware("h100")
    f = Features(2048, 64, 2048, 64, 2**21, 2**21, 64000, 64000, 1, 64, 65, 2048)
    two, four = Roofline(big, h100, 2).seconds(f), Roofline(big, h100, 4).seconds(f)
    assert four < two < 2 * four
    slow = Roofline(big, h100, 4, allreduce_bytes_per_s=5e9, allreduce_s=1e-4).seconds(f)
    by_hand = 80 * 2 * (1e-4 + 2112 * 8192 * 2 / 5e9)
    free = Roofline(big, h100, 4, allreduce_bytes_per_s=1e18).seconds(f)
    assert slow - free == pytest.approx(by_hand, rel=0.02)  # between two knots of the curve
    with pytest.raises(HardwareError, match="--allreduce-gbps"):
        Roofline(big, load_hardware("l40s"), 4)
    assert Roofline(big, load_hardware("l40s"), 4, allreduce_bytes_per_s=1e10).seconds(f) > 0


def test_fitted_terms_by_hand():
    """Every term once, at values that one can work out."""
    f = Features(200, 8, 200, 8, 0, 30_000, 0, 16_000, 2, 8, 9, 4600)
    slots = 1e-3 + (208 - 64) * 2.3e-3 / 236
    prefill = 2e-4 + 1.3e-4 + 100 * 1e-7 + 30_000 * 2.9e-9 + 4600 * 3e-9
    mixed = 8 * 1.9e-6 + 5e-4 + (16_000 - 4096) * 0.2095 / (1e6 - 4096)
    beside = 2000 * 8 * 1e-6 / 32 + (2000 - 1024) * 8 * 3.3e-6 / 64
    total = 1.1e-3 + slots + 9 * 3.1e-7 + prefill + mixed + beside + max(2300, 2000) * 4e-7
    assert fitted().seconds(f) == pytest.approx(total, rel=1e-12)
    overhead = fitted(overhead_layer_s=1e-5).seconds(f)
    assert overhead == pytest.approx(total + 32e-5, rel=1e-12)
    reduced = fitted(tp=2, allreduce_bytes_per_s=1e11, allreduce_s=5e-6).seconds(f)
    by_hand = 2 * 32 * (5e-6 + 208 * 4096 * 2 / 1e11)
    assert reduced == pytest.approx(total + by_hand, rel=1e-12)


def test_overhead_needs_the_number_of_layers():
    nameless = Calibration(TERMS, Provenance(rows=10), NO_ERROR)
    with pytest.raises(ValueError, match=r"--overhead-us-per-layer -100 .* no time"):
        fitted(overhead_layer_s=-1e-4)
    assert FittedCost(nameless).seconds(Features(decode_slots=1, decode_rows=1)) > 0
    with pytest.raises(ValueError, match="calibrate again with --model"):
        FittedCost(nameless, overhead_layer_s=1e-5)


@given(
    points=st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1e3)), min_size=1, max_size=6),
    x=st.lists(st.integers(0, 10**7), min_size=1, max_size=20),
    end=st.none() | st.floats(0, 10),
)
def test_curve_is_linear_interpolation_and_alike_for_arrays(points, x, end):
    xs = np.cumsum([0, *(p[0] for p in points)]).astype(float)
    ys = np.array([0.0, *(p[1] for p in points)])
    curve = Curve(xs, ys, end)
    inside = [v for v in x if v <= xs[-1]]
    for v in inside:
        assert curve.at(v) == pytest.approx(np.interp(v, xs, ys), rel=1e-9, abs=1e-9)
    assert curve.many(np.array(x)).tolist() == [curve.at(v) for v in x]
    slope = curve.slopes[-2] if end is None else end
    assert curve.at(xs[-1] + 5) == pytest.approx(ys[-1] + 5 * slope)


def test_a_curve_that_is_none():
    for xs, ys in (((0.0,), (1.0,)), ((0.0, 1.0), (1.0,)), ((0.0, 0.0), (1.0, 2.0))):
        with pytest.raises(ValueError, match="curve"):
            Curve(xs, ys)


def test_captured_sizes_are_those_of_vllm():
    assert CAPTURE_SIZES[:6] == (1, 2, 4, 8, 16, 24)
    assert len(CAPTURE_SIZES) == 51
    assert [padded_decode_slots(n) for n in (1, 3, 5, 9, 249, 257, 500, 512, 513)] == [
        *(1, 4, 8, 16, 256, 272, 512, 512, 513)
    ]
    decode = Features(decode_tokens=9, decode_slots=9, decode_rows=9)
    assert pad_decode(decode) == decode._replace(decode_slots=16)
    mixed = decode._replace(prefill_slots=5)
    assert pad_decode(mixed) is mixed
    assert pad_decode(Features()) == Features()


def test_load_cost_names(tmp_path):
    assert isinstance(load_cost("fixed", step_s=0.05), FixedCost)
    assert isinstance(load_cost("roofline", model="tiny", hardware="l4"), Roofline)
    path = tmp_path / "cost.json"
    fitted().save(path)
    cost = load_cost(str(path), model="tiny", hardware="l4")
    assert isinstance(cost, FittedCost)
    assert cost.peak_flops == 121e12
    assert load_cost(str(path)).flops is None
    for spec, message in (
        ("fixed", "--step-ms"),
        ("roofline", "--model and --hardware"),
        ("nowhere.json", "no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            load_cost(spec)
