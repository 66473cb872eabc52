"""Model profiles against published counts and against figures that can be worked out by hand."""

import csv
import math
import re

import pytest

from simnet.cost_models.costs.models import load_model, model_names, transformer_flops

PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vit-l-16": 304_326_632,
    "bert-base": 109_482_240,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "vit-paper": 132_863_336,
    "llama3-8b": 8_030_261_248,
    # By hand: 12 L w^2 + 13 L w of blocks, w (50257 + 2048) and 2 w; 4 w^2 + 3 w i + 2 w a block, 2 x 32000 w and w.
    "bert-large": 335_141_888,
    "gpt-24x2048": 1_315_723_264,
    "gpt-32x4096": 6_658_404_352,
    "gpt-40x6144": 18_443_962_368,
    "llama-8x512": 58_073_600,
    "llama-24x2048": 1_339_082_752,
}
TENSORS = {"resnet18": 62, "resnet50": 161, "alexnet": 16, "vgg16": 32, "vit-paper": 22, "bert-base": 199, "gpt2": 148}
TENSORS["gpt2-xl"] = 580
TENSORS["bert-large"] = 391
TENSORS["llama3-8b"] = 291


def test_every_model_has_the_published_number_of_parameters():
    assert {name: load_model(name).parameters for name in model_names()} == PUBLISHED


def test_every_model_has_the_known_number_of_tensors():
    assert {name: len(load_model(name).layers) for name in TENSORS} == TENSORS
    # Class token, projection (2), positions, 24 blocks of 12, last norm (2), head (2).
    assert len(load_model("vit-l-16").layers) == 1 + 2 + 1 + 24 * 12 + 2 + 2


@pytest.mark.parametrize("name", model_names())
def test_layers_are_sound(name):
    layers = load_model(name).layers
    assert len({layer.name for layer in layers}) == len(layers)
    for layer in layers:
        assert layer.shape
        assert all(isinstance(side, int) and side >= 1 for side in layer.shape)
        assert layer.size == math.prod(layer.shape)


def test_names_are_matched_without_case_and_punctuation():
    for known in model_names():
        assert load_model(known.upper().replace("-", "_")) is load_model(known)
    assert load_model("ResNet-50") is load_model("resnet50")
    assert load_model("ViT-L/16") is load_model("vit_l_16") is load_model("vit-l-16")
    assert load_model("bert-base-uncased") is load_model("BERT base")
    assert load_model("GPT-2 small") is load_model("gpt2")
    assert load_model("GPT-2 1.5B") is load_model("gpt2-xl")
    assert load_model("BERT-large-uncased") is load_model("bert-large")
    assert load_model("Meta-Llama-3-8B") is load_model("Llama 3.1 8B") is load_model("llama3-8b")
    assert load_model("vit_large_16") is load_model("ViT-large-patch16-224") is load_model("vit-l-16")


@pytest.mark.parametrize(
    ("wrong", "right"), [("resnet51", "resnet50"), ("VGG-61", "vgg16"), ("berd-base", "bert-base")]
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=f"{wrong}.*did you mean '{right}'.*Allowed: alexnet"):
        load_model(wrong)
    with pytest.raises(ValueError, match="no model ''"):
        load_model("")


@pytest.mark.parametrize("name", model_names())
def test_every_compute_time_says_where_it_comes_from(name):
    profile = load_model(name)
    assert profile.compute == profile.times[0].seconds
    assert 0 < profile.backward_fraction < 1
    for time in profile.times:
        assert 1e-3 < time.seconds < 10
        assert time.batch >= 1
        assert len(time.source) > 20
        assert time.measured != ("estimate" in time.source or "implied" in time.source)


def test_published_compute_times_are_those_of_the_fact_sheet(shared):
    ours = {"ResNet18": "resnet18", "ResNet50": "resnet50", "AlexNet": "alexnet", "ViT": "vit-paper"}
    with (shared / "papers" / "data" / "artopk_model_constants.csv").open(newline="") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert rows.keys() == ours.keys()
    for name, row in rows.items():
        profile = load_model(ours[name])
        assert profile.parameters == int(row["params_reproducing_paper_numbers"])
        plotted, implied = profile.times
        assert plotted.seconds == pytest.approx(float(row["t_compute_ms_Fig1a"]) / 1e3)
        assert implied.seconds == pytest.approx(float(row["t_compute_ms_implied_by_Tables_III_IV_DERIVED"]) / 1e3)
        assert plotted.batch == int(row["per_worker_batch"])


def test_operations_of_a_transformer_match_a_count_matrix_by_matrix():
    batch, tokens, layers, width, vocabulary = 3, 16, 2, 8, 50
    per_block = sum(
        2 * tokens * inputs * outputs
        for inputs, outputs in [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    )
    attention = 2 * (2 * tokens * tokens * width)
    forward = layers * (per_block + attention) + 2 * tokens * width * vocabulary
    assert transformer_flops(batch, tokens, layers, width, vocabulary) == 3 * batch * forward


# Sequences of an iteration, their tokens, blocks, width, and rows of the output layer.
ESTIMATES = {
    "bert-base": (8, 128, 12, 768, 0),
    "gpt2": (4, 1024, 12, 768, 50257),
    "gpt2-xl": (1, 1024, 48, 1600, 50257),
    "gpt-24x2048": (1, 512, 24, 2048, 50257),
    "gpt-32x4096": (1, 512, 32, 4096, 50257),
    "gpt-40x6144": (1, 512, 40, 6144, 50257),
    "llama-8x512": (1, 256, 8, 512, 32000),
    "llama-24x2048": (1, 256, 24, 2048, 32000),
    "vit-l-16": (32, 197, 24, 1024, 0),
}
# Seconds, sequences and share of back-propagation as published.
MEASURED = {"vgg16": (0.0835, 16, (83.5 - 26.2) / 83.5), "bert-large": (8 / 39.43, 8, 2 / 3)}
IMPLIED = {"llama3-8b": (2 * 8192 / 5762, 2, 2 / 3)}


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates_are_operations_at_the_rate_of_bert_large(name):
    batch, tokens, layers, width, vocabulary = ESTIMATES[name]
    # Operations of BERT-large for a sequence of 128 tokens: three passes, of 2 for each weight and 4 for attention.
    sequence = 3 * 24 * (2 * 128 * 12 * 1024**2 + 4 * 128**2 * 1024)
    # Sequences per second, as published for batches of 8 and of 32.
    rate = sequence * (39.43 if batch * tokens <= 8 * 128 else 46.78)
    weights = 12 * layers * width**2 + width * vocabulary
    operations = 3 * batch * (2 * tokens * weights + 4 * layers * tokens**2 * width)
    profile = load_model(name)
    assert profile.compute == pytest.approx(operations / rate, rel=1e-12)
    assert profile.batch == batch
    assert f"{batch} sequences of {tokens} tokens at the {rate / 1e12:.1f} TFLOP/s" in profile.source
    assert profile.backward_fraction == 2 / 3
    assert len(profile.times) == 1


@pytest.mark.parametrize("name", [*MEASURED, *IMPLIED])
def test_compute_times_are_those_of_their_sources(name):
    profile, (seconds, batch, backward) = load_model(name), (MEASURED | IMPLIED)[name]
    assert (profile.compute, profile.batch) == (pytest.approx(seconds, rel=1e-12), batch)
    assert profile.backward_fraction == pytest.approx(backward, rel=1e-12)
    assert [one.measured for one in profile.times] == [name in MEASURED]


def test_every_compute_time_is_held_to_its_source():
    of_paper = {"alexnet", "resnet18", "resnet50", "vit-paper"}
    assert {*ESTIMATES, *MEASURED, *IMPLIED, *of_paper} == set(model_names())
    assert {load_model(name).backward_fraction for name in of_paper} == {2 / 3}


def test_output_layers_of_gpt_alone_share_weights_with_the_input():
    assert {name: load_model(name).tied for name in model_names() if load_model(name).tied} == {
        name: ("wte.weight",) for name in model_names() if name.startswith("gpt")
    }


def test_names_count_on_as_in_the_reference_implementation():
    def places(name, pattern):
        found = (re.fullmatch(pattern, layer.name) for layer in load_model(name).layers)
        return [one[1] for one in found if one]

    # Convolution, activation, and a pooling after each stage.
    assert places("vgg16", r"features\.(\d+)\.weight") == [
        str(one) for one in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
    ]
    assert places("vit-paper", r"features\.(\d+)\.weight") == [str(one) for one in (0, 3, 6, 8, 11, 13, 16, 18)]
    assert places("resnet18", r"(layer.*)\.conv1\.weight") == [f"layer{i}.{j}" for i in range(1, 5) for j in range(2)]
    counts = dict(zip(range(1, 5), (3, 4, 6, 3), strict=True))
    assert places("resnet50", r"(layer.*)\.conv3\.weight") == [
        f"layer{i}.{j}" for i in counts for j in range(counts[i])
    ]
    assert places("resnet50", r"layer1\.0\.(.*)\.bias") == ["bn1", "bn2", "bn3", "downsample.1"]
    for name, pattern, layers in (
        ("vit-l-16", r"encoder\.layers\.encoder_layer_(\d+)\.ln_1\.weight", 24),
        ("bert-large", r"encoder\.layer\.(\d+)\.attention\.self\.key\.weight", 24),
        ("gpt2-xl", r"h\.(\d+)\.mlp\.c_fc\.weight", 48),
        ("llama3-8b", r"model\.layers\.(\d+)\.mlp\.up_proj\.weight", 32),
    ):
        assert places(name, pattern) == [str(index) for index in range(layers)]


@pytest.mark.parametrize(
    ("model", "tensor", "shape"),
    [
        ("bert-base", "encoder.layer.3.intermediate.dense.weight", (3072, 768)),
        ("bert-base", "encoder.layer.3.output.dense.weight", (768, 3072)),
        ("gpt2", "h.3.attn.c_attn.weight", (768, 2304)),
        ("gpt2", "h.3.attn.c_attn.bias", (2304,)),
        ("gpt2", "h.3.attn.c_proj.weight", (768, 768)),
        ("gpt2", "h.3.mlp.c_fc.weight", (768, 3072)),
        ("gpt2", "h.3.mlp.c_proj.weight", (3072, 768)),
        ("gpt2", "h.3.mlp.c_proj.bias", (768,)),
        ("llama3-8b", "model.layers.3.self_attn.q_proj.weight", (4096, 4096)),
        ("llama3-8b", "model.layers.3.self_attn.k_proj.weight", (1024, 4096)),
        ("llama3-8b", "model.layers.3.self_attn.v_proj.weight", (1024, 4096)),
        ("llama3-8b", "model.layers.3.mlp.up_proj.weight", (14336, 4096)),
        ("llama3-8b", "model.layers.3.mlp.down_proj.weight", (4096, 14336)),
        ("vit-l-16", "encoder.layers.encoder_layer_3.self_attention.in_proj_weight", (3072, 1024)),
        ("vit-l-16", "encoder.layers.encoder_layer_3.mlp.0.weight", (4096, 1024)),
        ("vit-l-16", "encoder.layers.encoder_layer_3.mlp.3.weight", (1024, 4096)),
        ("resnet50", "layer2.0.conv1.weight", (128, 256, 1, 1)),
        ("resnet50", "layer2.0.conv2.weight", (128, 128, 3, 3)),
    ],
)
def test_shapes_of_a_block_are_those_of_the_reference_implementation(model, tensor, shape):
    assert {layer.name: layer.shape for layer in load_model(model).layers}[tensor] == shape
