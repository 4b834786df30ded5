"""A hand-written file of each format, with its real quirks, read to the exact right columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.files import assert_columns, lines, put, rows_of_hashes, said
from traces import TraceError, load
from traces.formats import FORMATS


def test_native_csv_with_every_column_and_columns_it_does_not_know(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "t.csv",
        "note,Arrival_S,prompt_tokens,output_tokens,priority,tenant,hash_ids,block_tokens\n"
        'a,0,20,3,1,"x, y",7 8,16\n'
        "b,0.25,16,0,-2,z,7,16\n",
    )
    trace = load(path)
    assert_columns(trace, [0, 0.25], [20, 16], [3, 0])
    assert trace.priority is not None
    assert trace.priority.tolist() == [1, -2]
    assert trace.tenant is not None
    assert trace.tenant.tolist() == ["x, y", "z"]
    assert rows_of_hashes(trace) == [[7, 8], [7]]
    assert trace.hashes is not None
    assert trace.hashes.block_tokens == 16
    assert trace.name == "t.csv"
    assert said(trace, "read as csv: its header has arrival_s, prompt_tokens, output_tokens")


def test_native_jsonl(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "t.jsonl",
        lines(
            {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 2, "tenant": "a", "extra": {}},
            {"arrival_s": 1.5, "prompt_tokens": 6.0, "output_tokens": 0, "tenant": "b"},
        )
        + "\n\n",
    )
    trace = load(path)
    assert_columns(trace, [0, 1.5], [5, 6], [2, 0])
    assert trace.tenant is not None
    assert trace.tenant.tolist() == ["a", "b"]
    assert trace.priority is None


def test_native_parquet_of_narrow_types_and_lists(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    table = pa.table(
        {
            "other": ["x", "y", "z"],
            "output_tokens": pa.array([1, 2, 3], pa.int16()),
            "arrival_s": pa.array([0, 1, 2], pa.int32()),
            "prompt_tokens": pa.array([4.0, 5.0, 6.0], pa.float32()),
            "hash_ids": pa.array([[1], [2], [3]], pa.list_(pa.uint32())),
            "block_tokens": [8, 8, 8],
        }
    )
    pq.write_table(table, path)
    trace = load(path)
    assert_columns(trace, [0, 1, 2], [4, 5, 6], [1, 2, 3])
    assert rows_of_hashes(trace) == [[1], [2], [3]]


def test_native_without_block_size_takes_the_only_one_that_fits(tmp_path: Path) -> None:
    rows = [
        {"arrival_s": 0, "prompt_tokens": 33, "output_tokens": 1, "hash_ids": [0, 1, 2]},
        {"arrival_s": 1, "prompt_tokens": 16, "output_tokens": 1, "hash_ids": [0]},
        {"arrival_s": 1, "prompt_tokens": 17, "output_tokens": 1, "hash_ids": [0, 5]},
    ]
    trace = load(put(tmp_path, "t.jsonl", lines(*rows)))
    assert trace.hashes is not None
    assert trace.hashes.block_tokens == 16
    assert said(trace, "blocks of 16 tokens, the only power of two that fits")
    with pytest.raises(TraceError, match="do not say how many tokens"):
        load(put(tmp_path, "u.jsonl", lines(rows[1])))


def test_azure_2023_has_crlf_seven_digits_and_no_last_newline(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.9951690,396,109\r\n"
        "2023-11-16 18:15:50.9951691,397,110",
    )
    trace = load(path)
    # To the 100 ns of the file, which a float of seconds since 1970 could not hold.
    assert trace.arrival_s.tolist() == [0.0, 4.314579, 4.3145791]
    assert_columns(trace, [0, 4.314579, 4.3145791], [374, 396, 397], [44, 109, 110])
    assert said(trace, "2023-11-16 18:15:46 UTC is 0")


def test_azure_2024_has_zones_mixed_fractions_and_whole_seconds(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.009930+00:00,10,1\n"
        "2024-05-12 00:00:01+00:00,11,2\n"
        "2024-05-12 02:00:01.5+02:00,12,3\n",
    )
    assert_columns(load(path), [0, 0.99007, 1.49007], [10, 11, 12], [1, 2, 3])


def test_azure_2025_has_images_which_are_ignored(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-01-01 00:00:00,3,10,1\n",
    )
    assert_columns(load(path), [0], [10], [1])


def test_mooncake_is_in_milliseconds_and_512_token_blocks(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "mooncake.jsonl",
        '{"timestamp": 0, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 27482, "input_length": 1024, "output_length": 26, "hash_ids": [46, 9]}\n',
    )
    trace = load(path)
    assert_columns(trace, [0, 27.482], [600, 1024], [52, 26])
    assert rows_of_hashes(trace) == [[46, 47], [46, 9]]
    assert trace.hashes is not None
    assert trace.hashes.block_tokens == 512


def test_qwen_bailian_is_in_seconds_and_16_token_blocks(tmp_path: Path) -> None:
    record = {"parent_chat_id": -1, "type": "text", "turn": 1}
    path = put(
        tmp_path,
        "qwen.jsonl",
        lines(
            {"chat_id": 1, **record, "timestamp": 61.114, "input_length": 20, "output_length": 3}
            | {"hash_ids": [2**63 + 5, 8]},
            {"chat_id": 2, **record, "timestamp": 61.5, "input_length": 17, "output_length": 4}
            | {"hash_ids": [2**63 + 5]},
        ),
    )
    trace = load(path)
    assert_columns(trace, [0, 0.386], [20, 17], [3, 4])
    first, second = rows_of_hashes(trace)
    assert first[0] == second[0], "64-bit hashes stay equal where they were"
    assert len(second) == 2, "the unhashed rest of a prompt has a block of its own"
    assert second[1] not in first
    assert said(trace, "1 partial block not shared")


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_rows_without_a_response_are_failures(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "burst.csv",
        BURST + "5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,300,0,300,API log\n"
        "45,GPT-4,0,0,0,API log\n"
        "47,ChatGPT,1087,230,1317,Conversation log\n",
    )
    trace = load(path)
    assert_columns(trace, [0, 42], [472, 1087], [18, 230])
    assert said(trace, "2 requests left out: failed (0 response tokens)")
    assert said(trace, "moved by 5 s")


def test_newer_burstgpt_inserts_session_and_elapsed_time(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "burst.csv",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log\n"
        "19440161.0,d5983bf9-4b48,2,ChatGPT,36,29,65,Conversation log\n",
    )
    assert_columns(load(path), [0, 51], [906, 36], [446, 29])


def test_vllm_timed_trace_is_told_from_mooncake_by_its_blocks(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "timed.jsonl",
        lines(
            {"timestamp": 0.5, "input_length": 600, "output_length": 3, "hash_ids": [*range(38)]},
            {"timestamp": 2.0, "input_length": 16, "output_length": 4, "hash_ids": [0]},
        ),
    )
    trace = load(path)
    assert_columns(trace, [0, 1.5], [600, 16], [3, 4])
    assert said(trace, "read as vllm-timed-trace")
    assert said(trace, "hash_ids fit 16-token blocks")


def test_vllm_bench_detailed_result(tmp_path: Path) -> None:
    result = {
        "date": "20250101-000000",
        "num_prompts": 3,
        "total_input_tokens": 60,
        "input_lens": [10, 20, 30],
        "output_lens": [1, 0, 3],
        "start_times": [1000.5, 1000.75, 1001.5],
        "errors": ["", "Connection reset", ""],
    }
    for text in (json.dumps(result), json.dumps(result, indent=4)):
        trace = load(put(tmp_path, "result.json", text))
        assert_columns(trace, [0, 1], [10, 30], [1, 3])
        assert said(trace, "1 request left out: failed")
    del result["start_times"]
    with pytest.raises(TraceError, match=r"start_times: missing.*--save-detailed"):
        load(put(tmp_path, "result.json", json.dumps(result)))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer that counts words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    return path


def test_vllm_custom_needs_a_tokenizer_and_output_lengths(tmp_path: Path, tokenizer: Path) -> None:
    path = put(
        tmp_path,
        "custom.jsonl",
        lines({"prompt": "one two three", "output_tokens": 7}, {"prompt": "four"}),
    )
    with pytest.raises(TraceError, match="--tokenizer"):
        load(path)
    with pytest.raises(TraceError, match=r"line 2, column output_tokens.*--output-tokens"):
        load(path, tokenizer=tokenizer)
    trace = load(path, tokenizer=tokenizer, output_tokens=9)
    assert_columns(trace, [0, 0], [3, 1], [7, 9])
    assert said(trace, "the file has no times")


def test_text_that_is_none_is_a_bad_row(tmp_path: Path, tokenizer: Path) -> None:
    half = put(tmp_path, "c.jsonl", '{"prompt": "\\ud800 word", "output_tokens": 1}\n')
    with pytest.raises(TraceError, match=r"line 1, column prompt.*is not clean UTF-8 text"):
        load(half, tokenizer=tokenizer)
    talk = [{"conversations": [{"value": "a b c d"}, {"value": None}]}]
    with pytest.raises(TraceError, match="conversation 1, column conversations"):
        load(put(tmp_path, "s.json", json.dumps(talk)), tokenizer=tokenizer)


def test_sharegpt_is_pruned_as_vllm_does_and_says_so(tmp_path: Path, tokenizer: Path) -> None:
    def talk(*sizes: int) -> dict[str, Any]:
        turns = [{"from": "human", "value": "word " * size} for size in sizes]
        return {"id": "x", "conversations": turns}

    talks = [talk(5, 6, 7), talk(5), talk(2, 50), talk(2000, 10), talk(1024, 1024), talk(4, 4)]
    trace = load(put(tmp_path, "share.json", json.dumps(talks)), tokenizer=tokenizer)
    assert_columns(trace, [0, 0, 0], [5, 1024, 4], [6, 1024, 4])
    assert said(trace, "1 request left out: fewer than two turns")
    assert said(trace, "1 request left out: prompt or answer below 4 tokens")
    assert said(trace, "1 request left out: prompt over 1,024")


def test_aiperf_records_failures_are_left_out(tmp_path: Path) -> None:
    def record(start: int, prompt: int, output: float) -> dict[str, Any]:
        return {
            "metadata": {"request_start_ns": start, "was_cancelled": False},
            "metrics": {
                "input_sequence_length": {"value": prompt, "unit": "tokens"},
                "output_sequence_length": {"value": output, "unit": "tokens"},
            },
            "error": None,
        }

    failed = {
        "metadata": {"request_start_ns": 1759813207532900500, "was_cancelled": True},
        "metrics": {"error_isl": {"value": 550, "unit": "tokens"}},
        "error": {"code": 499},
    }
    path = put(
        tmp_path,
        "profile_export.jsonl",
        lines(record(1759813207532900363, 550, 9), failed, record(1759813207532900463, 7, 10.0)),
    )
    trace = load(path)
    # 100 ns apart at 1.8e18 ns: kept as whole nanoseconds until subtracted.
    assert trace.arrival_s.tolist() == [0.0, 1e-7]
    assert_columns(trace, [0, 1e-7], [550, 7], [9, 10])
    assert said(trace, "1 request left out: failed or cancelled")


def test_guidellm_reports_old_and_new(tmp_path: Path) -> None:
    report = {
        "args": {},
        "benchmarks": [
            {
                "requests": {
                    "successful": [
                        {"request_start_time": 100.5, "prompt_tokens": 7, "output_tokens": 3}
                    ],
                    "errored": [{}],
                    "incomplete": [],
                }
            },
            {
                "requests": {
                    "successful": [{"start_time": 99.5, "prompt_tokens": 8, "output_tokens": 4}]
                }
            },
        ],
    }
    trace = load(put(tmp_path, "report.json", json.dumps(report, indent=1)))
    assert_columns(trace, [0, 1], [8, 7], [4, 3])
    assert said(trace, "1 request left out: errored")


BLIS_ROWS = (
    "request_id,client_id,tenant_id,slo_class,input_tokens,output_tokens,arrival_time_us,status\n"
    "0,c1,t1,batch,512,128,1708100000000000,ok\n"
    "1,c1,t2,batch,256,0,1708100000000005,timeout\n"
    "2,c2,t2,batch,256,64,1708100000100001,ok\n"
)
BLIS_HEADER = "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"


@pytest.mark.parametrize("start", ["csv", "header", "one file"])
def test_blis_trace_v2(tmp_path: Path, start: str) -> None:
    rows = put(tmp_path, "trace.csv", BLIS_ROWS)
    header = put(tmp_path, "trace.yaml", BLIS_HEADER)
    both = put(tmp_path, "both.txt", BLIS_HEADER + BLIS_ROWS)
    trace = load({"csv": rows, "header": header, "one file": both}[start])
    assert_columns(trace, [0, 0.100001], [512, 256], [128, 64])
    assert trace.tenant is not None
    assert trace.tenant.tolist() == ["t1", "t2"]
    assert said(trace, "1 request left out: failed (status is not ok)")


def test_blis_errors_name_the_line_of_their_file(tmp_path: Path) -> None:
    both = put(tmp_path, "both.txt", BLIS_HEADER + BLIS_ROWS.replace("512", "x"))
    with pytest.raises(TraceError, match=r"both.txt, line 6, column input_tokens: 'x'"):
        load(both)
    put(tmp_path, "a.yaml", BLIS_HEADER.replace("microseconds", "seconds"))
    with pytest.raises(TraceError, match="time_unit is seconds"):
        load(tmp_path / "a.yaml")
    (tmp_path / "alone").mkdir()
    with pytest.raises(TraceError, match=r"without its CSV \(looked for b.csv"):
        load(put(tmp_path / "alone", "b.yaml", BLIS_HEADER))


def test_vidur(tmp_path: Path) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,3772,54\n2.828,2015,156\n"
    assert_columns(load(put(tmp_path, "v.csv", text)), [0, 2.828], [3772, 2015], [54, 156])


def test_splitwise(tmp_path: Path) -> None:
    text = (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,"
        "token_size\n0,2,0,0.0,1,1024,10\n1,2,0,0.5,1,2048,20\n"
    )
    assert_columns(load(put(tmp_path, "s.csv", text)), [0, 0.5], [1024, 2048], [10, 20])


def test_llmservingsim_with_token_ids_on_the_line(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "l.jsonl",
        lines(
            {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 46926808}
            | {"input_tok_ids": [5, 6, 7], "output_tok_ids": [8, 9]},
            {"input_toks": 4, "output_toks": 1, "arrival_time_ns": 347938951},
        ),
    )
    assert_columns(load(path), [0, 0.301012143], [3, 4], [2, 1])


def servegen(folder: Path) -> Path:
    put(folder, "chunk-1-trace.csv", "0,0,0,,0,0\n600,2.0,1.1,Gamma,0.9,0.08\n1200,0,0,,0,0\n")
    histograms = {
        "0": {"input_tokens": "{100: 0.25, 200: 0.75}", "output_tokens": "{5: 1.0}"},
        "1200": {"input_tokens": "{}", "output_tokens": "{}"},
    }
    put(folder, "chunk-1-dataset.json", json.dumps(histograms))
    put(folder, "chunk-2-trace.csv", "0,0,0,,0,0\n600,1.0,4,Weibull,0.5,0.3\n1200,0,0,,0,0\n")
    histograms = {"0": {"input_tokens": "{7: 1.0}", "output_tokens": "{8: 1.0}"}}
    put(folder, "chunk-2-dataset.json", json.dumps(histograms))
    return folder


def test_servegen_draws_rates_and_histograms(tmp_path: Path) -> None:
    folder = servegen(tmp_path)
    trace = load(folder, seed=3)
    assert trace.tenant is not None
    first, second = trace.tenant == "client-1", trace.tenant == "client-2"
    # Requests are rate × window of each client: 2/s and 1/s for 600 s.
    assert abs(first.sum() - 1200) <= 1
    assert abs(second.sum() - 600) <= 1
    assert trace.span_s < 600
    assert set(trace.prompt_tokens[first].tolist()) == {100, 200}
    assert np.mean(trace.prompt_tokens[first] == 200) == pytest.approx(0.75, abs=0.05)
    assert set(zip(trace.prompt_tokens[second], trace.output_tokens[second], strict=True)) == {
        (7, 8)
    }
    again = load(folder, seed=3)
    assert again.arrival_s.tolist() == trace.arrival_s.tolist()
    assert len(load(folder, limit=10, seed=3)) == 10
    assert len(load(folder / "chunk-2-trace.csv")) in (600, 601)


def test_servegen_gaps_have_the_law_of_their_window(tmp_path: Path) -> None:
    put(tmp_path, "chunk-5-trace.csv", "0,50,1,Gamma,0.25,9\n2000,0,0,,0,0\n")
    histograms = {"0": {"input_tokens": "{9: 1.0}", "output_tokens": "{9: 1.0}"}}
    put(tmp_path, "chunk-5-dataset.json", json.dumps(histograms))
    gaps = np.diff(load(tmp_path).arrival_s)
    # A Gamma of shape 1/4 has a CV of 2.
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("chunk-1-trace.csv", "0,1,1\n", "line 1: 3 cells instead of 6"),
        ("chunk-1-trace.csv", "0,x,1,Gamma,1,1\n", "line 1: .* is not a number"),
        ("chunk-1-trace.csv", "0,1,1,Pareto,1,1\n", "law 'Pareto'"),
        ("chunk-1-trace.csv", "0,1,1,Gamma,0,1\n", "shape 0"),
        ("chunk-1-trace.csv", "9,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "line 2: windows must rise"),
        ("chunk-1-trace.csv", "0,1e9,1,Gamma,1,1\n", "Take the first ones with --limit"),
        ("chunk-1-dataset.json", "[]", "not an object"),
        ("chunk-1-dataset.json", '{"0": {"input_tokens": "{1: 1.0}"}}', "output_tokens: missing"),
        (
            "chunk-1-dataset.json",
            '{"0": {"input_tokens": "__import__(0)", "output_tokens": "{}"}}',
            "not a histogram",
        ),
        (
            "chunk-1-dataset.json",
            '{"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{}"}}',
            "add up to 1",
        ),
    ],
)
def test_servegen_errors(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = servegen(tmp_path)
    put(folder, name, content)
    with pytest.raises(TraceError, match=message):
        load(folder)


def test_a_folder_without_clients_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no chunk-N-trace.csv in this folder"):
        load(tmp_path)


def test_format_names_are_distinct_and_can_be_asked_for(tmp_path: Path) -> None:
    names = [f.name for f in FORMATS]
    assert len(set(names)) == len(names)
    text = "Timestamp,Request tokens,Response tokens\n1,2,3\n"
    path = put(tmp_path, "x.csv", text)
    assert said(load(path, format="burstgpt"), "read as burstgpt: asked for")
    with pytest.raises(TraceError, match=r"no format named 'burstgtp'. The nearest is burstgpt"):
        load(path, format="burstgtp")
    with pytest.raises(TraceError, match="column TIMESTAMP"):
        load(put(tmp_path, "y.csv", "a,b\n1,2\n"), format="azure")


def test_more_errors_of_formats(tmp_path: Path, tokenizer: Path) -> None:
    result = {"num_prompts": 1, "total_input_tokens": 1, "start_times": [0.0, 1.0]}
    result |= {"input_lens": [1], "output_lens": [1]}
    with pytest.raises(TraceError, match=r"lists of different lengths \(start_times 2, input"):
        load(put(tmp_path, "r.json", json.dumps(result)))
    report = {"benchmarks": [{"requests": {"successful": [5]}}]}
    with pytest.raises(TraceError, match="benchmark 1 has a request that is none"):
        load(put(tmp_path, "g.json", json.dumps(report)))
    with pytest.raises(TraceError, match="not a list of conversations"):
        load(put(tmp_path, "s.json", '{"conversations": 1}'), tokenizer=tokenizer)
    prompts = put(tmp_path, "p.jsonl", lines({"prompt": "a b", "output_tokens": 1}))
    with pytest.raises(TraceError, match="not a tokenizer"):
        load(prompts, tokenizer=put(tmp_path, "not.json", "{}"))
    alone = tmp_path / "alone"
    alone.mkdir()
    put(alone, "other.csv", BLIS_ROWS)
    assert len(load(put(alone, "header.yaml", BLIS_HEADER))) == 2, "the only CSV beside it"
    with pytest.raises(TraceError, match="not named as a ServeGen client file"):
        load(put(tmp_path, "x.csv", "0,1,1,Gamma,1,1\n"), format="servegen")


def test_servegen_windows_before_any_lengths_are_counted(tmp_path: Path) -> None:
    folder = servegen(tmp_path)
    late = {"1200": {"input_tokens": "{7: 1.0}", "output_tokens": "{8: 1.0}"}}
    put(folder, "chunk-2-dataset.json", json.dumps(late))
    trace = load(folder)
    assert said(trace, "600 requests left out: no lengths known in their window")
    assert set(trace.tenant if trace.tenant is not None else []) == {"client-1"}
    put(folder, "chunk-2-dataset.json", json.dumps({"soon": late["1200"]}))
    with pytest.raises(TraceError, match="time 'soon'"):
        load(folder)


def test_servegen_draws_no_window_without_end(tmp_path: Path) -> None:
    folder = servegen(tmp_path)
    put(folder, "chunk-1-trace.csv", "0,9e25,1,Gamma,0.9,1\n")
    with pytest.raises(TraceError, match="client 1 sends about"):
        load(folder, limit=5)


def test_servegen_stops_at_the_limit(tmp_path: Path) -> None:
    put(tmp_path, "chunk-1-trace.csv", "".join(f"{i * 600},1,1,Gamma,1,1\n" for i in range(9)))
    lengths = {"0": {"input_tokens": "{9: 1}", "output_tokens": "{9: 1}"}}
    put(tmp_path, "chunk-1-dataset.json", json.dumps(lengths))
    assert load(tmp_path, limit=700).span_s < 1200


def test_hash_ids_of_every_kind(tmp_path: Path) -> None:
    row = {"arrival_s": 0, "prompt_tokens": 32, "output_tokens": 1, "hash_ids": [1, 2]}
    path = put(tmp_path, "t.jsonl", lines(row | {"block_tokens": 16}, row | {"block_tokens": 17}))
    with pytest.raises(TraceError, match="block_tokens must be the same number above 0"):
        load(path)
    bare = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": []}
    assert load(put(tmp_path, "m.jsonl", lines(bare))).hashes is None
    header = "arrival_s,prompt_tokens,output_tokens,hash_ids\n"
    with pytest.raises(TraceError, match="'1;2' is not a list of ids"):
        load(put(tmp_path, "t.csv", header + "0,32,1,1;2\n"))


def test_parquet_with_hash_ids_that_arrow_cannot_cast(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    base: dict[str, Any] = {
        "arrival_s": [0.0, 1.0],
        "prompt_tokens": [16, 16],
        "output_tokens": [1, 1],
    }
    base["block_tokens"] = [16, 16]
    unsigned = pa.array([[2**64 - 1], [2**64 - 1]], pa.list_(pa.uint64()))
    pq.write_table(pa.table({**base, "hash_ids": unsigned, "tenant": ["a", "b"]}), path)
    first, second = rows_of_hashes(load(path))
    assert first == second
    pq.write_table(pa.table({**base, "hash_ids": [[1], [None]]}), path)
    with pytest.raises(TraceError, match=r"row 2, column hash_ids: \[None\]"):
        load(path)
    pq.write_table(pa.table({**base, "hash_ids": ["1", "2"]}), path)
    with pytest.raises(TraceError, match="row 1, column hash_ids: '1' is not a list"):
        load(path)
    pq.write_table(pa.table({**base, "tenant": [1.5, 2.5]}), path)
    with pytest.raises(TraceError, match=r"row 1, column tenant: 1.5 is not text"):
        load(path)
    pq.write_table(pa.table({**base, "arrival_s": [0.0, float("nan")]}), path)
    with pytest.raises(TraceError, match="row 2, column arrival_s: nan is not a finite number"):
        load(path)


def test_many_json_lines_cross_chunks(tmp_path: Path) -> None:
    row = '{{"arrival_s": {}, "prompt_tokens": 5, "output_tokens": 1, "tenant": ""}}\n'
    text = "".join(row.format(i) for i in range(60_000))
    trace = load(put(tmp_path, "t.jsonl", text))
    assert trace.arrival_s.tolist() == list(range(60_000))
    assert trace.tenant is None, "a tenant that is always empty is none"
    bad = text + row.format('"late"')
    with pytest.raises(TraceError, match="line 60001, column arrival_s"):
        load(put(tmp_path, "t.jsonl", bad))


def test_a_format_of_ones_own_may_have_dates_in_json(tmp_path: Path) -> None:
    from traces.layout import Column, Layout, Options
    from traces.rows import Rows
    from traces.source import Source
    from traces.text_jsonl import read_jsonl
    from traces.trouble import Trouble

    columns = (Column("arrival", "at.time", "stamp"), Column("prompt", "p"), Column("output", "o"))
    layout = Layout(columns, per_second=1_000_000_000)
    rows = [{"at": {"time": f"2024-01-01T00:00:0{i}.5Z"}, "p": 1, "o": 2} for i in range(3)]
    path = put(tmp_path, "t.jsonl", lines(*rows))
    trouble = Trouble(str(path))
    gathered = Rows(layout, trouble)
    for chunk in read_jsonl(Source.at(path), layout, trouble, Options()):
        gathered.add(chunk)
    assert_columns(gathered.finish("t", ()), [0, 1, 2], [1, 1, 1], [2, 2, 2])
