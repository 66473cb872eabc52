"""Model profiles against published counts and against figures that can be worked out by hand."""

import csv
import math

import pytest

from simnet.costs.models import Layer, model, names, transformer_flops

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
    assert {name: model(name).parameters for name in names()} == PUBLISHED


def test_every_model_has_the_known_number_of_tensors():
    assert {name: len(model(name).layers) for name in TENSORS} == TENSORS
    # Class token, projection (2), positions, 24 blocks of 12, last norm (2), head (2).
    assert len(model("vit-l-16").layers) == 1 + 2 + 1 + 24 * 12 + 2 + 2


@pytest.mark.parametrize("name", names())
def test_layers_are_sound(name):
    layers = model(name).layers
    assert len({layer.name for layer in layers}) == len(layers)
    for layer in layers:
        assert layer.shape
        assert all(isinstance(side, int) and side >= 1 for side in layer.shape)
        assert layer.size == math.prod(layer.shape)


@pytest.mark.parametrize(
    ("name", "index", "layer"),
    [
        ("resnet18", 0, Layer("conv1.weight", (64, 3, 7, 7))),
        ("resnet18", 21, Layer("layer2.0.downsample.0.weight", (128, 64, 1, 1))),
        ("resnet50", 3, Layer("layer1.0.conv1.weight", (64, 64, 1, 1))),
        ("resnet50", 12, Layer("layer1.0.downsample.0.weight", (256, 64, 1, 1))),
        ("resnet50", -2, Layer("fc.weight", (1000, 2048))),
        ("alexnet", 10, Layer("classifier.1.weight", (4096, 9216))),
        ("vgg16", 24, Layer("features.28.weight", (512, 512, 3, 3))),
        ("vgg16", 26, Layer("classifier.0.weight", (4096, 25088))),
        ("vit-l-16", 3, Layer("encoder.pos_embedding", (1, 197, 1024))),
        ("bert-base", -1, Layer("pooler.dense.bias", (768,))),
        ("gpt2", 4, Layer("h.0.attn.c_attn.weight", (768, 2304))),
    ],
)
def test_single_tensors_stand_where_the_reference_implementation_has_them(name, index, layer):
    assert model(name).layers[index] == layer


def test_names_are_matched_without_case_and_punctuation():
    for known in names():
        assert model(known.upper().replace("-", "_")) is model(known)
    assert model("ResNet-50") is model("resnet50")
    assert model("ViT-L/16") is model("vit_l_16") is model("vit-l-16")
    assert model("bert-base-uncased") is model("BERT base")
    assert model("GPT-2 small") is model("gpt2")


@pytest.mark.parametrize(
    ("wrong", "right"), [("resnet51", "resnet50"), ("VGG-61", "vgg16"), ("berd-base", "bert-base")]
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=f"{wrong}.*did you mean '{right}'.*Allowed: alexnet"):
        model(wrong)
    with pytest.raises(ValueError, match="no model ''"):
        model("")


@pytest.mark.parametrize("name", names())
def test_every_compute_time_says_where_it_comes_from(name):
    profile = model(name)
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
        profile = model(ours[name])
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


def test_estimates_stay_below_the_peak_of_the_device():
    peak = 15.7e12
    flops = {"bert-base": (8, 128, 12, 768), "gpt2": (4, 1024, 12, 768, 50257), "vit-l-16": (32, 197, 24, 1024)}
    flops["gpt2-xl"] = (1, 1024, 48, 1600, 50257)
    for name, shape in flops.items():
        assert 0.4 < transformer_flops(*shape) / model(name).compute / peak < 0.8
