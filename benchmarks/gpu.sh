#!/bin/sh
# Everything that needs a GPU, in under 8 minutes on one H200: tests of what runs there, figures
# against the device's limits, a trace under four policies, a profile; last, a short table.
#
#   benchmarks/gpu.sh OUT                  OUT: a folder for the results
#   benchmarks/gpu.sh OUT cpu              the same with a tiny model on the CPU, to try the script
#
# Then `python -m benchmarks.gpu_agreement OUT`, here or elsewhere, holds the simulation against it.
#
# It needs the packages of `pip install .[executor]` and pytest, and nothing from the network.
# OUT gets table.txt, log.txt, figures.json, profile.parquet, profile.json and records.tar.gz.
set -u
cd "$(dirname "$0")/.." || exit
OUT=$(mkdir -p "${1:?give a folder for the results}" && cd "$1" && pwd) || exit
DEVICE=${2:-cuda} PYTHON=${PYTHON:-python3} LIMIT=${LIMIT:-470}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
RECORDS=$(mktemp -d) BEGIN=$(date +%s) FAILED=0
trap 'rm -rf "$RECORDS"' EXIT
: >"$OUT/log.txt"
: >"$OUT/table.txt"

missing=$("$PYTHON" - <<'PY'
from importlib.util import find_spec
needed = ("numpy pandas pyarrow scipy pydantic yaml rich simpy typer zstandard matplotlib torch "
          "mypy_extensions safetensors pytest hypothesis transformers")
print(" ".join(name for name in needed.split() if find_spec(name) is None))
PY
) || exit
test -z "$missing" || { echo "not installed for $PYTHON: $missing" >&2; exit 2; }

if [ "$DEVICE" = cuda ]; then
    "$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' ||
        { echo "PyTorch finds no CUDA GPU; to try the script: $0 OUT cpu" >&2; exit 2; }
    MODEL=llama-3.1-8b TESTS="-m gpu" FIGURES=""
    TRACE="--limit 128 --rate-scale 4 --max-model-len 2048"
    GRID="--full --repeats 3 --max-step-tokens 8192 --max-model-len 9000"
else
    MODEL=tiny TESTS="-k cpu-continuous" FIGURES="--small --repeats 3"
    TRACE="--limit 20 --offline --max-model-len 512"
    GRID="--repeats 3 --max-step-tokens 512 --max-model-len 1024"
fi

# stage NAME COMMAND...: runs it in what is left of the time, and keeps what it says
stage() {
    name=$1 from=$(date +%s)
    shift
    left=$((LIMIT - from + BEGIN))
    if [ "$left" -lt 5 ]; then
        code="no time left"
    else
        { echo; echo "== $name"; } >>"$OUT/log.txt"
        timeout -k 5 "$left" "$@" >"$OUT/said" 2>>"$OUT/log.txt"
        code=$?
        cat "$OUT/said" >>"$OUT/log.txt"
    fi
    test "$code" = 0 || FAILED=1
    line=$(printf '%-28s %-14s %4d s' "$name" "exit $code" "$(($(date +%s) - from))")
    echo "$line"
    echo "$line" >>"$OUT/table.txt"
}

lengthwise() { echo "$PYTHON" -m lengthwise "$@"; }
on="--model $MODEL --device $DEVICE"

# the words of these variables are meant to be split
# shellcheck disable=SC2086,SC2046
{
    stage tests "$PYTHON" -m pytest -q -rs tests/executor/test_gpu.py $TESTS
    tail -n 1 "$OUT/said" | tee -a "$OUT/table.txt"
    stage figures "$PYTHON" -m benchmarks.gpu_figures $on $FIGURES --json
    cp "$OUT/said" "$OUT/figures.json"
    for policy in static dynamic-padding continuous chunked-prefill; do
        stage "execute $policy" $(lengthwise execute chat --policy $policy $on $TRACE) \
            --scale-lengths auto --out "$RECORDS/$policy" --json
    done
    stage profile $(lengthwise profile $on $GRID) --out "$OUT/profile.parquet" --force --json
}
rm -f "$OUT/said"
tar -czf "$OUT/records.tar.gz" -C "$RECORDS" .
"$PYTHON" -m benchmarks.gpu_table "$OUT/figures.json" "$RECORDS" >>"$OUT/table.txt" || FAILED=1
echo
cat "$OUT/table.txt"
echo "results: $OUT, $(($(date +%s) - BEGIN)) s"
exit $FAILED
