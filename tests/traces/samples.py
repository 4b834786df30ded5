"""One small valid file of each format, to mutate."""

from __future__ import annotations

import gzip
import io
import json

import numpy as np
import zstandard

from tests.traces.files import lines


def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    columns = {
        "arrival_s": np.arange(40) / 8,
        "prompt_tokens": np.arange(1, 41),
        "output_tokens": np.arange(40),
        "tenant": ["a", "b"] * 20,
        "hash_ids": [[i] for i in range(40)],
        "block_tokens": [64] * 40,
    }
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


CSV = b"arrival_s,prompt_tokens,output_tokens,tenant\n0,10,1,a\n0.5,20,2,b\n1.5,30,0,a\n"
_LENGTHS = [
    {"timestamp": 0, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 2748, "input_length": 1024, "output_length": 26, "hash_ids": [46, 9]},
]

SAMPLES: dict[str, bytes] = {
    "csv": CSV,
    "csv.gz": gzip.compress(CSV, mtime=0),
    "csv.zst": zstandard.compress(CSV),
    "jsonl": lines(
        {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 2, "priority": 1},
        {"arrival_s": 1.5, "prompt_tokens": 6, "output_tokens": 0, "priority": 2},
    ).encode(),
    "parquet": _parquet(),
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,300,0,300,API log\n",
    "vidur": b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,3772,54\n2.828,2015,156\n",
    "splitwise": b"request_id,arrival_timestamp,prompt_size,token_size\n0,0.0,1024,10\n1,1,9,9\n",
    "blis": b"trace_version: 2\ntime_unit: microseconds\n"
    b"request_id,tenant_id,input_tokens,output_tokens,arrival_time_us,status\n"
    b"0,t1,512,128,17081,ok\n1,t2,256,0,17089,timeout\n",
    "qwen-bailian": lines(
        *({"chat_id": 1, "turn": 1, **r, "hash_ids": [*range(64)]} for r in _LENGTHS[1:])
    ).encode(),
    "vllm-timed-trace": lines(*({**r, "hash_ids": [*range(64)]} for r in _LENGTHS[1:])).encode(),
    "mooncake": lines(*_LENGTHS).encode(),
    "aiperf": lines(
        {
            "metadata": {"request_start_ns": 1759813207532900363, "was_cancelled": False},
            "metrics": {
                "input_sequence_length": {"value": 550, "unit": "tokens"},
                "output_sequence_length": {"value": 9, "unit": "tokens"},
            },
            "error": None,
        }
    ).encode(),
    "llmservingsim": lines({"input_toks": 3, "output_toks": 2, "arrival_time_ns": 46926}).encode(),
    "vllm-custom": lines({"prompt": "one two three", "output_tokens": 7}).encode(),
    "sharegpt": json.dumps(
        [{"conversations": [{"value": "a b c d e"}, {"value": "a b c d e f"}]}]
    ).encode(),
    "guidellm": json.dumps(
        {
            "benchmarks": [
                {
                    "requests": {
                        "successful": [
                            {"request_start_time": 1.5, "prompt_tokens": 7, "output_tokens": 3}
                        ],
                        "errored": [{}],
                    }
                }
            ]
        }
    ).encode(),
    "vllm-bench": json.dumps(
        {
            "num_prompts": 2,
            "total_input_tokens": 30,
            "input_lens": [10, 20],
            "output_lens": [1, 2],
            "start_times": [1000.5, 1000.75],
            "errors": ["", ""],
        }
    ).encode(),
    "servegen": b"0,0.2,1,Gamma,0.9,0.08\n600,0.1,4,Weibull,0.5,0.3\n",
}
"""By format name, some with a compression."""
