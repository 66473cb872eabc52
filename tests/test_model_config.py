"""Models of which the ``config.json`` of transformers is given, or the number of parameters, through commands."""

import json

import pytest

from commands import NO_PAGE, did, refused
from simnet.cost_models.costs.models import load_model
from simnet.scenario import load

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
BERT = {
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
LLAMA3_8B = LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": None}
LLAMA3_8B |= {"tie_word_embeddings": False}
MISTRAL_7B = LLAMA3_8B | {"model_type": "mistral", "vocab_size": 32000}
QWEN2_HALF_B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
# As their publishers count them; Llama 3.2 1B, BERT-base and GPT-2 without output layers of their own.
COUNTS = [
    (LLAMA, 1_235_814_400),
    (LLAMA3_8B, 8_030_261_248),
    (MISTRAL_7B, 7_241_732_096),
    (QWEN2_HALF_B, 494_032_768),
    (GPT2, 124_439_808),
    (GPT2 | {"tie_word_embeddings": False}, 124_439_808 + 50257 * 768),
    (GPT2 | {"n_inner": 1536}, 124_439_808 - 12 * (2 * 768 * 1536 + 1536)),
    (BERT, 109_482_240),
    # A bias of each output of a projection: 2,048, 512, 512 and 2,048; and 8,192 twice, and 2,048.
    (LLAMA | {"attention_bias": True}, 1_235_814_400 + 16 * 5120),
    (LLAMA | {"mlp_bias": True}, 1_235_814_400 + 16 * 18432),
]
JOB = """
workers: 4
network: {topology: {star: {latency: 1 ms, bandwidth: 10 Gbit/s}}}
job: {MODEL, scale: 100000, density: 100 %, iterations: 2, compute: {mean: 1 s}, device: ideal}
exchanges: {dense: {scheme: dense}}
"""


@pytest.fixture
def written(tmp_path):
    def write(config):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config, indent=1))
        return path

    return write


@pytest.mark.parametrize(("config", "count"), COUNTS)
def test_a_step_of_a_config_has_the_published_number_of_parameters(config, count, written):
    said = did("step", "--model", written(config), "--sharding", "ddp", "--workers", 2, "--compute", "1 s", "--json")
    assert json.loads(said.stdout)["parameters"] == count


def test_the_tensors_of_a_known_model_are_those_of_its_config(written):
    for name, config in (("gpt2", GPT2), ("bert-base", BERT), ("llama3-8b", LLAMA3_8B)):
        read = load_model(str(written(config)))
        assert read.layers == load_model(name).layers
        assert read.tied == (() if name != "gpt2" else ("wte.weight",))


def test_the_shipped_case_is_read_everywhere(shared, tmp_path):
    path = shared / "cases" / "models" / "hf_config.json"
    words = ("choose", "--model", path, "--workers", 8, "--compute", "1 s", "--schemes", "topk", "--json")
    assert json.loads(did(*words).stdout)["question"]["parameters"] == 1_235_814_400
    # Nobody says how long it computes, and nothing is invented.
    assert "is not known without the tokens of a sample (job.tokens)" in refused("choose", "--model", path)
    asked = did("step", "--strategy", "diloco", "--model", path, "--compute", "1 s", "--json")
    assert json.loads(asked.stdout)["parameters"] == 1_235_814_400
    fields = "job.scale=100000", "job.iterations=1", "job.gradients={synthetic: {like: digits}}", "job.compute=1 s"
    did("convert", "base", tmp_path / "made", "--to", "trace", "--model", path, "--workers", 2,
        *(word for one in fields for word in ("--set", one)))  # fmt: skip
    step = refused("step", "--model", path, "--sharding", "ddp")
    assert "job.compute: is missing" in step
    assert len(step.splitlines()) == 1


def test_a_job_takes_a_config_that_lies_beside_it_and_keeps_a_copy(written, tmp_path):
    written(LLAMA)
    (tmp_path / "job.yaml").write_text(JOB.replace("MODEL", "model: config.json"))
    did("run", tmp_path / "job.yaml", *NO_PAGE, "--out", tmp_path / "run")
    (kept,) = (tmp_path / "run" / "inputs").iterdir()
    assert kept.name.endswith("config.json")
    assert load(tmp_path / "job.yaml").build().job.source.true_parameters == 1_235_814_400
    (tmp_path / "config.json").unlink()
    did("run", tmp_path / "run" / "scenario.lock.yaml", *NO_PAGE, "--out", tmp_path / "again")
    assert "there is no such file" in refused("run", tmp_path / "job.yaml", *NO_PAGE, "--out", tmp_path / "more")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            LLAMA | {"model_type": "falcon"},
            "is 'falcon'; Allowed: bert, gpt2, llama, mistral, qwen2; of others, a number",
        ),
        ({"hidden_size": 5}, "model_type: is missing; it says which model this is"),
        ({name: value for name, value in LLAMA.items() if name != "vocab_size"}, "vocab_size: is missing"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers: must be a whole number from 1 to 10,000, got"),
        (LLAMA | {"hidden_size": 10**12}, "hidden_size: must be a whole number from 1 to 1,073,741,824, got"),
        (LLAMA | {"hidden_size": "2048"}, "hidden_size: must be a whole number"),
        (LLAMA | {"hidden_size": True}, "hidden_size: must be a whole number"),
        (LLAMA | {"hidden_size": 10**9, "intermediate_size": 10**9}, "parameters, at most 1e+13 are allowed"),
        (LLAMA | {"num_key_value_heads": 7}, "num_key_value_heads: must divide num_attention_heads, 32, got 7"),
        (LLAMA | {"head_dim": None, "hidden_size": 2049}, "num_attention_heads: must divide hidden_size, 2,049, got"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings: must be true or false, got 'yes'"),
        (MISTRAL_7B | {"num_key_value_heads": None}, "num_key_value_heads: is missing"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention: must be false"),
        ('{"model_type": "gpt2", "model_type": "bert"}', "model_type"),
        ("[1, 2]", "is not a config.json of transformers: it has no fields"),
        ('{"model_type": ', "config.json"),
        ("{" + " " * 2**16 + "}", "is larger than 65,536 bytes"),
        ('{"a": ' + "[" * 500 + "]" * 500 + "}", "nested"),
    ],
)
def test_configs_that_cannot_be_are_refused_in_a_line(config, said, written):
    found = refused("choose", "--model", written(config), "--workers", 8)
    assert said in found
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize("model_type", [["llama"], {"a": 1}, 3, True])
def test_a_model_type_that_is_no_text_is_refused(model_type, written):
    assert "model_type: is " in refused("choose", "--model", written(LLAMA | {"model_type": model_type}))


@pytest.mark.parametrize(
    ("text", "count"), [("7B", 7 * 10**9), ("350M", 350 * 10**6), ("64k", 64000), ("1.5B", 15 * 10**8), ("1000", 1000)]
)
def test_parameters_are_written_as_people_say_them(text, count, tmp_path):
    said = json.loads(did("step", "--strategy", "diloco", "--model", text, "--compute", "1 s", "--json").stdout)
    assert said["parameters"] == count
    (tmp_path / "job.yaml").write_text(JOB.replace("MODEL", f"parameters: {text}"))
    assert load(tmp_path / "job.yaml").config.job.parameters == count


def test_a_job_of_7b_sends_28_gb(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.replace("MODEL", "parameters: 7B"))
    did("run", tmp_path / "job.yaml", *NO_PAGE, "--out", tmp_path / "run")
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["policies"]["dense"]
    # A ring of four sends 2 x 3/4 of 28 GB from each worker, in each of 2 iterations.
    assert found["total_bytes_sent_B"] == pytest.approx(2 * 4 * 1.5 * 28e9, rel=0.01)
    assert json.loads(did("choose", "--model", "7B", "--json").stdout)["question"]["parameters"] == 7 * 10**9


@pytest.mark.parametrize("text", ["7 GB", "-1", "0", "0.5", "seven", "1e9", "1.5", "100T", "nan", ""])
def test_what_is_no_number_of_parameters_is_refused(text, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.replace("MODEL", f"parameters: '{text}'"))
    assert "job.parameters: must be" in refused("run", tmp_path / "job.yaml", "--out", tmp_path / "run")
