"""Random steps for the tests of cost models."""

from hypothesis import strategies as st

from serving.step import Features


@st.composite
def steps(draw, *, decodes_only=False, no_prefill=False):
    """The features of a step, packed or padded."""
    rows = draw(st.integers(0 if not decodes_only else 1, 600))
    context = draw(st.integers(0, 40_000))
    prompts = 0 if decodes_only or no_prefill else draw(st.integers(0, 5))
    chunks = [
        (draw(st.integers(1, 3000)), draw(st.sampled_from([0, 100, 16_000])))
        for _ in range(prompts)
    ]
    padding = draw(st.sampled_from([0, 0, 64]))
    tokens = sum(n for n, _ in chunks)
    pairs = sum(n * c + n * (n + 1) // 2 for n, c in chunks)
    extra = padding * prompts
    return Features(
        prefill_tokens=tokens,
        decode_tokens=rows,
        prefill_slots=tokens + extra,
        decode_slots=rows + draw(st.sampled_from([0, 0, 7])) if rows else 0,
        prefill_useful_pairs=pairs,
        prefill_computed_pairs=pairs + extra * 10,
        decode_useful_pairs=rows * (context + 1),
        decode_computed_pairs=rows * (context + 1),
        prefill_rows=prompts,
        decode_rows=rows,
        sampled_rows=rows + prompts,
        prefill_kv=sum(n + c for n, c in chunks) + extra,
        decode_longest=context + 1 + draw(st.sampled_from([0, 3, 20_000])) if rows else 0,
    )


def columns(*features):
    """The step table's columns of some steps."""
    import numpy as np

    return {
        name: np.array([getattr(f, name) for f in features], np.int64) for name in Features._fields
    }


def grown(f, k):
    """`k` decode steps in a row, by the definition of `CostModel.seconds_run`."""
    return [
        f._replace(
            decode_useful_pairs=f.decode_useful_pairs + i * f.decode_tokens,
            decode_computed_pairs=f.decode_computed_pairs + i * f.decode_rows,
            decode_longest=f.decode_longest + i,
        )
        for i in range(k)
    ]
