"""Generated traces: what their law says, and what a fitted spec promises of its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from tests.shared import shared
from tests.traces.files import put
from tests.traces.test_write import made
from traces import Trace, TraceError, load
from traces.arrivals import weibull_shape
from traces.fit import fit
from traces.generate import generate
from traces.short import ARRIVALS, LENGTHS, parse
from traces.spec import Spec, load_spec, save_spec
from traces.write import write

N = 40_000


def drawn(
    arrivals: str = "poisson", prompt: str = "fixed:10", output: str = "fixed:5", **more: Any
) -> Trace:
    tenant: dict[str, Any] = {
        "arrivals": parse(arrivals, ARRIVALS, "--arrivals"),
        "prompt": parse(prompt, LENGTHS, "--prompt"),
        "output": parse(output, LENGTHS, "--output"),
        "rate": more.pop("rate", 8.0),
        "rank_correlation": more.pop("rank_correlation", None),
    }
    return generate(Spec(tenants=[tenant], **{"requests": N, **more}))


def cv(arrival: NDArray[np.float64]) -> float:
    gaps = np.diff(arrival)
    return float(gaps.std() / gaps.mean())


@pytest.mark.parametrize("name", ["poisson", "constant", "gamma:0.5", "gamma:2", "weibull:2"])
def test_arrivals_have_the_rate_and_law_they_name(name: str) -> None:
    trace = drawn(name)
    gaps = np.diff(trace.arrival_s)
    assert len(trace) == N
    assert trace.arrival_s[0] == 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    law = {
        "poisson": scipy.stats.expon(scale=1 / 8),
        "gamma:0.5": scipy.stats.gamma(4, scale=1 / 32),
        "gamma:2": scipy.stats.gamma(0.25, scale=1 / 2),
        "weibull:2": scipy.stats.weibull_min(weibull_shape(2)),
    }.get(name)
    if law is None:
        assert gaps == pytest.approx(np.full(N - 1, 1 / 8))
        return
    if name == "weibull:2":
        law = scipy.stats.weibull_min(weibull_shape(2), scale=1 / 8 / law.mean())
    assert scipy.stats.kstest(gaps, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("wanted", [0.3, 1.0, 2.0, 5.0])
def test_weibull_shape_gives_the_cv_asked_for(wanted: float) -> None:
    law = scipy.stats.weibull_min(weibull_shape(wanted))
    assert law.std() / law.mean() == pytest.approx(wanted, rel=1e-6)


def test_on_off_bursts_have_their_rate_and_their_silences() -> None:
    trace = drawn("on-off:1:3", rate=4.0)
    gaps = np.diff(trace.arrival_s)
    assert N / trace.span_s == pytest.approx(4.0, rel=0.1)
    # On-periods send 16/s: a gap over 1 s is an off-period, one a cycle of 4 s, e^(−1/3) of them.
    silences = np.count_nonzero(gaps > 1) / trace.span_s * 4
    assert silences == pytest.approx(np.exp(-1 / 3), rel=0.12)
    assert cv(trace.arrival_s) > 2


def test_a_diurnal_rate_follows_its_sine() -> None:
    trace = drawn("diurnal:1.8:500", rate=8.0)
    phase = trace.arrival_s % 500
    share, _ = np.histogram(phase, bins=10, range=(0, 500))
    middle = (np.arange(10) + 0.5) * 50
    expected = 1 + 0.8 * np.sin(2 * np.pi * middle / 500)
    assert share / share.mean() == pytest.approx(expected, abs=0.12)


def test_lengths_have_the_law_they_name() -> None:
    trace = drawn(prompt="lognormal:1000:0.8", output="pareto:2.5:10")
    logs = np.log(trace.prompt_tokens)
    assert trace.prompt_tokens.mean() == pytest.approx(1000, rel=0.03)
    assert logs.std() == pytest.approx(0.8, rel=0.02)
    assert np.median(trace.output_tokens) == pytest.approx(10 * 2 ** (1 / 2.5), abs=1)
    assert np.mean(trace.output_tokens > 40.5) == pytest.approx((10 / 40.5) ** 2.5, rel=0.15)
    trace = drawn(prompt="uniform:3:6", output="zipf:1.2:50")
    assert np.unique(trace.prompt_tokens).tolist() == [3, 4, 5, 6]
    counts = np.bincount(trace.prompt_tokens)[3:]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    weights = np.arange(1, 51) ** -1.2
    counts = np.bincount(trace.output_tokens, minlength=51)[1:]
    assert scipy.stats.chisquare(counts, N * weights / weights.sum()).pvalue > 1e-3


def test_truncated_lengths_are_drawn_within_not_clipped_to_the_limit() -> None:
    trace = drawn(prompt="lognormal:100:1.5:200", output="pareto:0.3:10:200")
    for tokens in (trace.prompt_tokens, trace.output_tokens):
        assert tokens.min() >= 1
        assert tokens.max() <= 200
        assert np.mean(tokens == 200) < 0.02, "no heap at the limit"


@pytest.mark.parametrize("rho", [-0.7, 0.0, 0.6])
def test_prompts_and_outputs_have_the_rank_correlation_asked_for(rho: float) -> None:
    trace = drawn(prompt="lognormal:1000:1", output="lognormal:200:1", rank_correlation=rho)
    found = scipy.stats.spearmanr(trace.prompt_tokens, trace.output_tokens).statistic
    assert found == pytest.approx(rho, abs=0.02)


def test_the_seed_decides_everything_and_tenants_have_their_own_streams() -> None:
    one: dict[str, Any] = {
        "name": "a",
        "rate": 5,
        "prompt": {"kind": "uniform", "low": 1, "high": 99},
    }
    one["output"] = one["prompt"]
    spec = Spec(requests=2000, seed=4, tenants=[one])
    first, second = generate(spec), generate(spec)
    assert first.arrival_s.tolist() == second.arrival_s.tolist()
    assert first.prompt_tokens.tolist() == second.prompt_tokens.tolist()
    other = generate(spec.model_copy(update={"seed": 5}))
    assert other.prompt_tokens.tolist() != first.prompt_tokens.tolist()
    long = Spec(duration_s=400, seed=4, tenants=[one])
    both = Spec(duration_s=400, seed=4, tenants=[one, one | {"name": "b", "priority": 3}])
    alone, pair = generate(long), generate(both)
    assert pair.tenant is not None
    assert pair.priority is not None
    own = pair.take(np.flatnonzero(pair.tenant == "a"))
    assert own.prompt_tokens.tolist() == alone.prompt_tokens.tolist()
    assert set(pair.priority[pair.tenant == "b"].tolist()) == {3}
    assert set(pair.priority[pair.tenant == "a"].tolist()) == {0}


def test_arrivals_and_lengths_of_a_file(tmp_path: Path) -> None:
    origin = made(500, size=None)
    path = tmp_path / "origin.csv"
    write(origin, path)
    trace = drawn(f"file:{path}", f"file:{path}", f"file:{path}", rate=None, requests=500)
    np.testing.assert_allclose(trace.arrival_s, origin.arrival_s, atol=1e-9)
    assert set(trace.prompt_tokens.tolist()) <= set(origin.prompt_tokens.tolist())
    faster = drawn(f"file:{path}", rate=100.0, requests=1200)
    assert 1199 / faster.span_s == pytest.approx(100, rel=0.05)
    assert cv(faster.arrival_s[:500]) == pytest.approx(cv(origin.arrival_s))


def test_arrivals_of_a_file_are_given_once_without_a_count(tmp_path: Path) -> None:
    origin = made(100, size=None)
    write(origin, tmp_path / "o.csv")
    arrivals = {"kind": "file", "path": str(tmp_path / "o.csv")}
    lognormal = {"kind": "lognormal", "mean": 50, "sigma": 0}
    tenant = {"arrivals": arrivals, "prompt": lognormal, "output": lognormal}
    trace = generate(Spec(tenants=[tenant]))
    np.testing.assert_allclose(trace.arrival_s, origin.arrival_s)
    assert set(trace.prompt_tokens.tolist()) == {50}


def test_joint_lengths_are_pairs_of_the_file(tmp_path: Path) -> None:
    origin = made(50, size=None)
    path = tmp_path / "origin.csv"
    write(origin, path)
    trace = generate(Spec(requests=1000, tenants=[{"rate": 1, "joint": str(path)}]))
    pairs = set(zip(origin.prompt_tokens.tolist(), origin.output_tokens.tolist(), strict=True))
    drawn_pairs = set(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    assert drawn_pairs == pairs


SPEC = """
requests: 300
tenants:
  - name: chat
    rate: 5
    arrivals: {kind: gamma, cv: 1.5}
    prompt: {kind: lognormal, mean: 1000, sigma: 0.9}
    output: {kind: fixed, tokens: 100}
  - name: batch
    rate: 1
    arrivals: {kind: constant}
    prompt: {kind: fixed, tokens: 8000}
    output: {kind: uniform, low: 5, high: 10}
    priority: 1
"""


def test_a_yaml_spec_of_several_tenants(tmp_path: Path) -> None:
    trace = generate(load_spec(put(tmp_path, "spec.yaml", SPEC)))
    assert len(trace) == 300
    assert trace.tenant is not None
    assert np.mean(trace.tenant == "chat") == pytest.approx(5 / 6, abs=0.08)
    assert set(trace.prompt_tokens[trace.tenant == "batch"].tolist()) == {8000}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rate: 5", "rat: 5", "tenants.0.rat: Extra inputs are not permitted"),
        ("rate: 5", "rate: -5", "tenants.0.rate: Input should be greater than 0"),
        ("rate: 5", "priority: 5", "rate: missing; gamma arrivals need one"),
        ("cv: 1.5", "cv: 0", "arrivals.gamma.cv: Input should be greater"),
        ("kind: gamma", "kind: gama", "arrivals: Input tag 'gama'"),
        ("tokens: 100", "tokens: 0", "output.fixed.tokens"),
        ("high: 10", "high: 4", "low 5 is above high 4"),
        ("name: batch", "name: chat", "two have the same name"),
        ("output: {kind: fixed, tokens: 100}", "joint: x.csv", "joint already says prompt, output"),
        (
            "{kind: fixed, tokens: 8000}",
            "{kind: pareto, alpha: 1, least: 9, most: 8}",
            "above most",
        ),
        (
            "{kind: fixed, tokens: 8000}",
            "{kind: quantiles, levels: [0, 1], tokens: [5]}",
            "2 levels and 1 tokens",
        ),
        (
            "{kind: fixed, tokens: 8000}",
            "{kind: quantiles, levels: [0, 0.9], tokens: [5, 6]}",
            "levels must rise from 0 to 1",
        ),
        (
            "{kind: fixed, tokens: 8000}",
            "{kind: quantiles, levels: [0, 1], tokens: [6, 5]}",
            "tokens must not fall",
        ),
        (
            "{kind: fixed, tokens: 8000}",
            "{kind: quantiles, levels: [0, 1], tokens: [0, 5]}",
            "tokens must be at least 1",
        ),
        ("{kind: constant}", "{kind: curve, window_s: 9, span_s: 9, counts: [0]}", "above 0"),
        ("{kind: constant}", "{kind: curve, window_s: 9, span_s: 99, counts: [1]}", "1 windows"),
        ("    prompt: {kind: fixed, tokens: 8000}\n", "", "give prompt and output, or joint alone"),
        ("requests: 300", "requests: 0", "requests"),
        ("tenants:", "tenant:", "tenants: Field required"),
    ],
)
def test_spec_errors_name_the_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SPEC
    with pytest.raises(TraceError) as caught:
        load_spec(put(tmp_path, "spec.yaml", SPEC.replace(old, new, 1)))
    assert "spec.yaml, field " in str(caught.value)
    assert message in str(caught.value)


def test_specs_that_are_no_specs(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not YAML"):
        load_spec(put(tmp_path, "a.yaml", "{"))
    with pytest.raises(TraceError, match="cannot be read"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(TraceError, match="cannot be read"):
        load_spec(put(tmp_path, "b.yaml", b"\xff\xff"))
    with pytest.raises(TraceError, match="field document"):
        load_spec(put(tmp_path, "c.yaml", "[]"))
    tenant: dict[str, Any] = {"rate": 5, "prompt": {"kind": "fixed", "tokens": 1}}
    tenant["output"] = tenant["prompt"]
    with pytest.raises(TraceError, match="neither requests nor duration_s"):
        generate(Spec(tenants=[tenant]))
    with pytest.raises(TraceError, match="at most 200,000,000 are generated"):
        generate(Spec(duration_s=1e12, tenants=[tenant]))
    rare = tenant | {"arrivals": {"kind": "diurnal", "peak": 2}}
    with pytest.raises(TraceError, match="generates no request"):
        generate(Spec(duration_s=1e-9, tenants=[rare]))
    put(tmp_path, "once.csv", "arrival_s,prompt_tokens,output_tokens\n0,1,1\n0,1,1\n")
    once = {"kind": "file", "path": str(tmp_path / "once.csv")}
    with pytest.raises(TraceError, match="it has no rate to follow"):
        generate(Spec(tenants=[tenant | {"arrivals": once, "rate": None}]))
    with pytest.raises(TraceError, match="cannot be written"):
        save_spec(Spec(tenants=[tenant]), tmp_path / "no folder" / "spec.yaml")
    heavy = tenant | {"prompt": {"kind": "pareto", "alpha": 0.05, "least": 10**6}}
    with pytest.raises(TraceError, match="Give the distribution an upper limit"):
        generate(Spec(requests=1000, tenants=[heavy]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gama:2", "no 'gama'. The nearest is gamma"),
        ("gamma", "write it as gamma:CV"),
        ("gamma:1:2", "write it as gamma:CV"),
        ("gamma:", "write it as gamma:CV"),
        ("gamma:x", "field cv: Input should be a valid number"),
        ("gamma:-1", "field cv"),
        ("diurnal:3", "field peak"),
        ("file", "write it as file:PATH"),
        ("", "no ''"),
    ],
)
def test_short_forms_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse(text, ARRIVALS, "--arrivals")
    assert str(caught.value).startswith(f"--arrivals {text}")
    assert message in str(caught.value)


def quantiles(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.percentile(tokens, [10, 50, 90, 99])


def index_of_dispersion(arrival: NDArray[np.float64], window: float) -> float:
    counts = np.bincount((arrival // window).astype(int))
    return float(counts.var() / counts.mean())


@pytest.mark.shared
@pytest.mark.parametrize("seed", range(5))
def test_a_fitted_spec_makes_traces_like_the_azure_conversation(tmp_path: Path, seed: int) -> None:
    origin = load(shared("traces", "AzureLLMInferenceTrace_conv.csv"))
    save_spec(fit(origin), tmp_path / "spec.yaml", "Fitted.")
    spec = load_spec(tmp_path / "spec.yaml")
    trace = generate(spec.model_copy(update={"seed": seed}))
    assert len(trace) == len(origin)
    assert trace.span_s == pytest.approx(origin.span_s, rel=0.01)
    for made_of, real in (
        (trace.prompt_tokens, origin.prompt_tokens),
        (trace.output_tokens, origin.output_tokens),
    ):
        assert quantiles(made_of) == pytest.approx(quantiles(real), rel=0.03)
    rho = scipy.stats.spearmanr(trace.prompt_tokens, trace.output_tokens).statistic
    real_rho = scipy.stats.spearmanr(origin.prompt_tokens, origin.output_tokens).statistic
    assert abs(rho - real_rho) < 0.05
    for window in (1, 60):
        real_index = index_of_dispersion(origin.arrival_s, window)
        assert index_of_dispersion(trace.arrival_s, window) == pytest.approx(real_index, rel=0.15)


@pytest.mark.shared
def test_a_coarse_clock_is_fitted_too() -> None:
    origin = load(shared("traces", "mooncake_conversation.jsonl"))
    trace = generate(fit(origin))
    for window in (1, 60):
        real_index = index_of_dispersion(origin.arrival_s, window)
        assert index_of_dispersion(trace.arrival_s, window) == pytest.approx(real_index, rel=0.15)
    assert quantiles(trace.prompt_tokens) == pytest.approx(
        quantiles(origin.prompt_tokens), rel=0.03
    )


def test_a_fitted_spec_can_be_made_longer_faster_and_per_tenant() -> None:
    origin = made(4000, size=None)
    plain = Trace(
        origin.arrival_s, origin.prompt_tokens, origin.output_tokens, tenant=origin.tenant
    )
    spec = fit(plain)
    assert sorted(t.name for t in spec.tenants) == ["a", "b, c", 'd"e']
    trace = generate(spec)
    assert len(trace) == 4000
    longer = generate(spec.model_copy(update={"requests": 9000}))
    assert len(longer) == 9000
    assert longer.span_s == pytest.approx(9 / 4 * trace.span_s, rel=0.05)
    tenants = [t.model_copy(update={"rate": 10.0}) for t in spec.tenants]
    faster = generate(spec.model_copy(update={"tenants": tenants, "requests": 4000}))
    assert 4000 / faster.span_s == pytest.approx(30, rel=0.1)


def test_traces_that_cannot_be_fitted() -> None:
    with pytest.raises(TraceError, match="have no rate to fit"):
        fit(Trace(np.zeros(5), np.ones(5, int), np.ones(5, int)))
    with pytest.raises(TraceError, match="has 5 priorities"):
        fit(made(100))
    names = np.array([str(i) for i in range(200)], object)
    many = Trace(np.arange(200.0), np.ones(200, int), np.ones(200, int), tenant=names)
    with pytest.raises(TraceError, match="at most 100 are fitted"):
        fit(many)
