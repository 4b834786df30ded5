import json
from dataclasses import asdict

import pytest

from sim.models import MODELS, ModelError, load_model

# Parameter counts that the models' publishers state (the safetensors index of each repository).
PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_248_023_552,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameters_are_the_published_ones(name, count):
    assert load_model(name).parameters() == count


def test_small_models_have_the_promised_sizes():
    assert load_model("tiny").parameters() == pytest.approx(15e6, rel=0.05)
    assert load_model("small").parameters() == pytest.approx(100e6, rel=0.05)


def test_kv_bytes_of_a_token():
    llama = load_model("llama-3.1-8b")
    assert llama.kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2
    assert llama.kv_bytes_per_token("fp8") == 2 * 32 * 8 * 128
    assert llama.kv_bytes_per_token(tp=4) == llama.kv_bytes_per_token() // 4
    # 16 GPUs: two hold a copy of each of the 8 heads
    assert llama.kv_bytes_per_token(tp=16) == llama.kv_bytes_per_token() // 8


def test_weight_bytes():
    llama = load_model("llama-3.1-8b")
    assert llama.weight_bytes() == 2 * llama.parameters()
    assert llama.weight_bytes("fp32") == 4 * llama.parameters()
    halves = 2 * llama.weight_bytes(tp=2)
    assert 0 < halves - llama.weight_bytes() < 1e6  # norms are on both
    quantised = llama.weight_bytes("fp8")
    assert quantised == llama.weight_bytes() - 32 * llama.layer_linear_parameters


@pytest.mark.parametrize("tp", [0, 3, 5, 64])
def test_tp_that_does_not_divide_is_refused(tp):
    with pytest.raises(ModelError, match="--tp"):
        load_model("llama-3.1-8b").weight_bytes(tp=tp)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ModelError, match=r"did you mean llama-3\.1-8b\?"):
        load_model("llama-3.1-8")
    with pytest.raises(ModelError, match=r"did you mean qwen3-32b\?"):
        load_model("Qwen/Qwen3-32")


CONFIGS = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_sliding_window": False,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        # as transformers 5 writes it
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "mistral-7b": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32768,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "sliding_window": None,
    },
}


def folder(tmp_path, **config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("name", CONFIGS)
def test_config_json_gives_the_built_in_model(name, tmp_path):
    read = asdict(load_model(folder(tmp_path, **CONFIGS[name])))
    known = asdict(MODELS[name])
    for field in ("name", "source"):
        read.pop(field), known.pop(field)
    assert read == known


def test_window_shortens_the_positions(tmp_path):
    model = load_model(folder(tmp_path, **{**CONFIGS["mistral-7b"], "sliding_window": 4096}))
    assert (model.sliding_window, model.max_positions) == (4096, 4096)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
        ({"hidden_size": "4096"}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be a whole number"),
        ({"hidden_act": "gelu"}, "only 'silu' is understood"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a positive number"),
        ({"num_key_value_heads": 5}, "32 heads cannot share 5 KV heads"),
    ],
)
def test_a_config_that_is_not_understood_says_which_field(change, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        load_model(folder(tmp_path, **{**CONFIGS["llama-3.1-8b"], **change}))


def test_broken_files(tmp_path):
    bad = tmp_path / "config.json"
    bad.write_text("{")
    with pytest.raises(ModelError, match="not a readable JSON file"):
        load_model(bad)
    bad.write_text("[]")
    with pytest.raises(ModelError, match="expected a JSON object"):
        load_model(bad)
