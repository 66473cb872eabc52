"""Encodings of indices and values: messages come back, bytes are theirs, and every scheme heeds or refuses a code."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commands
from gradients import KINDS, gradients_of
from simnet.cost_models.calibration.device import profile_yaml
from simnet.cost_models.costs.devices import KernelMethod, load_device
from simnet.cost_models.costs.encodings import (
    INDEX_CODES,
    VALUE_CODES,
    encoded_index_bytes,
    encoded_value_bytes,
)
from simnet.policies import Candidate
from simnet.policies.candidate import closed_form
from simnet.scenario import load
from simnet.sparsifier_models import create, names
from simnet.sparsifier_models.codes import (
    Encoding,
    decode_indices,
    decode_values,
    encode_indices,
    encode_values,
    read_back,
)
from simnet.sparsifier_models.conformance import check
from simnet.sparsifier_models.selection import top_k
from simnet.sparsifier_models.wire import Wire
from simnet.studies.assumptions import with_codes

EXACT = "float32"
ADDED_UP = {"float32", "float16", "bfloat16"}
# Schemes whose messages are no pairs of index and value, or have codes of their own.
OWN_FORM = {
    "dense",
    "fp16",
    "qsgd",
    "signsgd",
    "powersgd",
    "demo",
    "sparseloco",
    "muloco",
    "int8ring",
    "arctopk",
    "omnireduce",
    "thc",
    "qgz",
    "loco",
    "sdp4bit",
    "onebitadam",
    "zerooneadam",
}
REDUCED = {"artopk", "cltk", "deft", "exdyna", "hardthreshold", "micro", "randomk", "sage", "uniontopk"}
SUMS_ON_THE_WAY = {"spardl"}
FORWARDED = {"gtopk", "oktopk", "topkdsa"}
GATHERED = {"topk", "lwtopk", "mstopk", "topka", "gaussiank", "sidco", "dgc", "redsync", "ef21"}


def made(scheme, **options):
    layers = {"layers": [400, 800, 1300]}
    needed = {"lwtopk": layers, "powersgd": layers, "ef21": {"start": "zero"}}.get(scheme, {})
    return create(scheme, 4, 2500, 0.04, **needed, **options)


def selection(n, k, seed, clustered=False):
    rng = np.random.default_rng(seed)
    within = max(k, n // 50) if clustered else n
    return np.sort(rng.choice(within, k, replace=False)) + (n - within)


def values_of(k, seed, kind="heavy"):
    return gradients_of(kind, 1, max(k, 1), seed)[0, :k]


# Messages


@given(
    st.sampled_from([1, 7, 8, 4095, 4096, 4097, 65_536, 65_537, 300_000]),
    st.sampled_from([0.0, 0.0005, 0.03, 0.4, 1.0]),
    st.booleans(),
    st.integers(0, 99),
)
def test_indices_come_back_to_the_bit_and_take_the_bytes_that_are_counted(n, share, clustered, seed):
    indices = selection(n, int(share * n), seed, clustered)
    for code in INDEX_CODES:
        data = encode_indices(indices, n, code)
        found, nbytes = decode_indices(data, n, code)
        np.testing.assert_array_equal(found, indices)
        assert nbytes == data.size == Wire(4, 4, 4, False, Encoding(code, EXACT)).indices(indices, (0, n))[0]


@given(st.integers(0, 70), st.sampled_from([*KINDS, "huge"]), st.integers(0, 99))
def test_values_come_back_as_everybody_reads_them(k, kind, seed):
    values = values_of(k, seed, kind)
    for code in VALUE_CODES:
        data = encode_values(values, code)
        assert data.size == encoded_value_bytes(code, k)
        read = read_back(values, code)
        np.testing.assert_array_equal(decode_values(data, k, code).view(np.uint32), read.view(np.uint32))
        assert np.isfinite(read).all()
        assert read.dtype == np.float32
    np.testing.assert_array_equal(read_back(values, EXACT).view(np.uint32), values.view(np.uint32))


def test_differences_are_leb128():
    """Held to a plain loop, at the lengths where a byte more begins."""
    gaps = [0, 1, 127, 128, 129, 16_383, 16_384, (1 << 21) - 1, 1 << 21, (1 << 28) - 1, 1 << 28]
    indices, expected = np.cumsum(gaps[1:]), []
    for gap in gaps[1:]:
        while gap >= 128:
            expected.append(gap % 128 + 128)
            gap //= 128
        expected.append(gap)
    data = encode_indices(indices, int(indices[-1]) + 1, "delta")
    assert data.tolist() == [len(indices), 0, 0, 0, *expected]
    np.testing.assert_array_equal(decode_indices(data, 1 << 31, "delta")[0], indices)


def test_blocks_and_bitmaps_are_laid_out_as_described():
    indices = np.array([5, 4095, 4096, 9000])
    short = encode_indices(indices, 70_000, "int16")
    assert short[:8].view(np.uint32).tolist() == [4, 0]
    assert short[8:].view(np.uint16).tolist() == [5, 4095, 4096, 9000]
    packed = encode_indices(indices, 10_000, "packed12")
    assert packed[:6].view(np.uint16).tolist() == [2, 1, 1]
    assert packed[6:].tolist() == [5, 0xF0, 0xFF, 0, 9000 - 8192 << 4 & 0xF0, (9000 - 8192) >> 4]
    bits = encode_indices(np.array([0, 9]), 12, "bitmap")
    assert bits.tolist() == [1, 2]


def test_auto_is_the_shortest_and_says_which():
    n = 200_000
    chosen = {}
    for k in (0, 10, 1000, 15_000, 60_000):
        indices = selection(n, k, k)
        lengths = {code: encode_indices(indices, n, code).size for code in INDEX_CODES if code != "auto"}
        data = encode_indices(indices, n, "auto")
        assert data.size == 1 + min(lengths.values())
        chosen[k] = INDEX_CODES[data[0]]
        assert lengths[chosen[k]] == min(lengths.values())
    assert chosen[1000] == "delta"
    assert chosen[60_000] == "bitmap"


def test_a_bitmap_is_shorter_than_indices_of_four_bytes_above_one_entry_in_32():
    n = 320_000
    for k, shorter in ((9999, False), (10_001, True)):
        assert (encoded_index_bytes("bitmap", n, k) < encoded_index_bytes("int32", n, k)) is np.bool_(shorter)


@pytest.mark.parametrize("n", [100, 128, 20_000, 2**21, 2**28, 3 * 2**28])
@pytest.mark.parametrize("k", [1, 3, 90])
def test_differences_take_as_long_as_uniform_gaps_do(n, k):
    drawn = sum((1 - k / n) ** (2**bits - 1) for bits in (7, 14, 21, 28))
    assert encoded_index_bytes("delta", n, k) == pytest.approx(4 + k * (1 + drawn), rel=1e-9)


# Schemes


def test_each_scheme_is_of_one_kind_here():
    assert sorted([*OWN_FORM, *REDUCED, *SUMS_ON_THE_WAY, *FORWARDED, *GATHERED]) == sorted(names())


def heeded(scheme, option):
    """Return the codes that a scheme can have, and those that it refuses."""
    every = INDEX_CODES if option == "indices" else VALUE_CODES
    if scheme in OWN_FORM or (scheme == "randomk" and option == "indices"):
        known = ()
    elif option == "values" and scheme in REDUCED | SUMS_ON_THE_WAY:
        known = ADDED_UP if scheme in REDUCED else {EXACT}
    else:
        known = every
    return [one for one in every if one in known], [one for one in every if one not in known]


@pytest.mark.parametrize("option", ["indices", "values"])
@pytest.mark.parametrize("scheme", names())
def test_every_scheme_heeds_a_code_or_refuses_it_in_words(scheme, option):
    known, refused = heeded(scheme, option)
    for code in refused:
        with pytest.raises(ValueError, match=rf"{scheme}: {option} cannot be '{code}': \w+ \w+ \w+"):
            made(scheme, **{option: code})
    batches = [gradients_of("heavy", 4, 2500, seed) for seed in range(2)]
    plain = [made(scheme).exchange(one) for one in batches[:1]]
    for code in known:
        exchanges = check(lambda code=code: made(scheme, **{option: code}), batches)
        model, same = made(scheme, **{option: code}), exchanges[0].schedule == plain[0].schedule
        # Numbers of entries are int32, whatever the width of an index.
        assert same == (code in ("int32", "float32")), code
        np.testing.assert_array_equal(exchanges[0].selected, plain[0].selected)
        if option == "indices" or code == EXACT:
            np.testing.assert_array_equal(exchanges[0].update, plain[0].update)
        else:
            assert not np.array_equal(exchanges[0].update, plain[0].update)
        lengthy = load_device("v100").seconds(exchanges[0].kernels, 4) - load_device("v100").seconds(
            plain[0].kernels, 4
        )
        assert (lengthy >= 0).all()
        assert lengthy.any() == (not same)
        assert not model.traits.fixed_volume or code not in ("auto", "delta") or scheme == "spardl"


@pytest.mark.parametrize("values", VALUE_CODES)
@pytest.mark.parametrize("indices", ["auto", "packed12", "delta"])
def test_what_is_decoded_is_what_all_apply_and_the_rest_stays(indices, values):
    model, n = made("topk", indices=indices, values=values), 2500
    for seed in range(2):
        corrected = gradients_of("normal", 4, n, seed) + model.residual
        exchange = model.exchange(gradients_of("normal", 4, n, seed))
        total, nbytes = np.zeros(n, dtype=np.float32), []
        for row in corrected:
            chosen = top_k(row, model.k)
            message = encode_indices(chosen, n, indices), encode_values(row[chosen], values)
            nbytes.append(sum(part.size for part in message))
            places, _ = decode_indices(message[0], n, indices)
            read = decode_values(message[1], model.k, values)
            total[places] += read
            row[places] -= read
        np.testing.assert_array_equal(exchange.update, total / np.float32(4))
        np.testing.assert_array_equal(model.residual, corrected)
        assert exchange.schedule.rounds[0].nbytes.tolist() == nbytes


def test_indices_that_are_broadcast_or_padded_take_their_own_bytes():
    gradients = gradients_of("heavy", 4, 2500, 1)
    for code in ("auto", "delta", "bitmap", "int16"):
        for scheme in ("artopk", "cltk"):
            model = made(scheme, indices=code)
            exchange = model.exchange(gradients)
            chosen = top_k(gradients[int(exchange.stats["broadcaster"])], model.k)
            assert exchange.schedule.rounds[0].nbytes.tolist() == [encode_indices(chosen, 2500, code).size]
        model = made("uniontopk", indices=code)
        longest = max(encode_indices(top_k(row, model.k), 2500, code).size for row in gradients)
        rounds = model.exchange(gradients).schedule.rounds
        assert {nbytes for one in rounds if one.phase == "indices" for nbytes in one.nbytes.tolist()} == {longest}


def test_merged_messages_take_the_bytes_of_what_they_hold():
    gradients = gradients_of("heavy", 4, 2500, 2)
    model = made("gtopk", indices="delta", values="4bit")
    tree = [one for one in model.exchange(gradients).schedule.rounds if one.phase == "tree"]
    for src, nbytes in zip(tree[0].src, tree[0].nbytes, strict=True):
        chosen = top_k(gradients[src], model.k)
        values = encode_values(gradients[src, chosen], "4bit")
        assert nbytes == encode_indices(chosen, 2500, "delta").size + values.size
    model = made("oktopk", indices="delta")
    exchange = model.exchange(gradients)
    threshold, cuts = exchange.stats["threshold"], [*map(int, exchange.stats["region_offsets"]), 2500]
    for one in exchange.schedule.rounds:
        for src, dst, nbytes in zip(one.src, one.dst, one.nbytes, strict=True) if one.phase == "split" else ():
            part = gradients[src, cuts[dst] : cuts[dst + 1]]
            inside = np.flatnonzero(np.abs(part) > np.float32(threshold[src]))
            assert nbytes == encode_indices(inside, part.size, "delta").size + encode_values(part[inside], EXACT).size


SORTED = "topk_layer"
"""What sorts indices where nobody measured that."""


def test_encoding_takes_time_before_the_messages_and_decoding_after_them():
    gradients = gradients_of("heavy", 4, 2500, 5)

    def passes(**options):
        """Return the kernels before the first message, and after it, of `topk`; their methods, and those in place."""
        exchange = made("topk", **options).exchange(gradients)
        early = [one for one in exchange.kernels if one.before == 0]
        late = [one for one in exchange.kernels if one.before > 0]
        own = [one.method for one in exchange.kernels if one.instead]
        return *([one.method for kernel in part for one in kernel.passes] for part in (early, late)), own

    selects, adds, _ = passes()
    for options, encodes, decodes, own in (
        ({"indices": "int32"}, [], [], []),
        ({"indices": "int64"}, ["cast"], ["cast"], ["encode_int64", "decode_int64"]),
        ({"indices": "int16"}, [SORTED, "cast"], ["cast"], ["sort", "encode_int16", "decode_int16"]),
        ({"indices": "bitmap"}, [SORTED, "cast", "scatter"], ["scan"], ["sort", "encode_bitmap", "decode_bitmap"]),
        ({"indices": "delta"}, [SORTED, "norm", "cast"], ["norm", "cast"], ["sort", "encode_delta", "decode_delta"]),
        ({"values": "float16"}, ["cast"], ["cast"], ["encode_float16", "decode_float16"]),
        ({"values": "4bit"}, ["norm", "cast"], ["cast"], ["encode_4bit", "decode_4bit"]),
    ):
        early, late, names = passes(**options)
        assert early == [*selects[:-1], *encodes, selects[-1]], options
        assert late == [*decodes, *adds], options
        assert names == own
    # Entries that a scan finds are in order.
    assert "sort" not in [one.method for one in made("sage", indices="delta").exchange(gradients).kernels]
    # A receiver reads each message; a bitmap has a bit for every entry.
    kernels = made("topk", indices="bitmap").exchange(gradients).kernels
    read = next(one for one in kernels if one.method == "decode_bitmap")
    assert (float(read.entries), read.launches) == (2500, 4)
    assert [(one.method, float(one.entries), one.launches) for one in read.instead] == [("scan", 2500 / 32, 4)]


@pytest.mark.parametrize("options", [{"indices": "delta", "values": "4bit"}, {"indices": "bitmap", "values": "1bit"}])
def test_measured_codes_take_what_was_measured_and_others_what_their_passes_take(options):
    gradients = gradients_of("heavy", 4, 2500, 5)
    device = load_device("cpu")
    kernels = made("topk", **options).exchange(gradients).kernels
    one_by_one = [part for kernel in kernels for part in kernel.passes]
    assert {one.method for one in one_by_one} <= set(device.methods)
    np.testing.assert_array_equal(device.seconds(kernels, 4), device.seconds(one_by_one, 4))
    own = [one for one in kernels if one.instead]
    # A second an entry, and 1,000 a launch.
    slow = KernelMethod(1000.0, 0.0, "made up", 1.0, known="measured")
    measured = replace(device, methods={**device.methods, **{one.method: slow for one in own}})
    for one in own:
        entries = 2500 if "bitmap" in one.method else 100
        launches = 4 if one.method.startswith("decode") else 1
        expected = launches * (1000.0 + entries)
        np.testing.assert_allclose(measured.once(one), expected)
        np.testing.assert_allclose(measured.seconds([one], 4), expected)
        assert device.once(one).max() < 1
    rest = [one for one in kernels if not one.instead]
    np.testing.assert_allclose(
        measured.seconds(kernels, 4), measured.seconds(own, 4) + device.seconds(rest, 4), rtol=1e-12
    )
    # With twice as many entries, so have the passes.
    scaled = [one.scaled(2) for one in kernels]
    assert [np.asarray(part.entries).tolist() for one in scaled for part in one.passes] == [
        (2 * np.asarray(one.entries)).tolist() for one in one_by_one
    ]


def test_it_is_said_how_the_costs_of_codes_are_known(tmp_path):
    device = load_device("cpu")
    delta = KernelMethod(1e-6, 0, "mine", 1e-9, known="measured")
    mine = replace(device, name="mine", methods={**device.methods, "encode_delta": delta})
    (tmp_path / "mine.yaml").write_text(profile_yaml(mine))
    fields = [
        "job.iterations=2", "job.scale=100000", f"job.device={tmp_path / 'mine.yaml'}",
        "exchanges={AG: {scheme: topk, indices: delta, values: 8bit}, dense: {scheme: dense}}", "policies={}",
    ]  # fmt: skip
    sets = [word for one in fields for word in ("--set", one)]
    out = commands.wide("run", "quickstart", *sets, "--out", tmp_path / "run", *commands.NO_PAGE)
    codes = json.loads((tmp_path / "run" / "summary.json").read_text())["device"]["codes"]
    assert codes == {
        "sort": "as topk_layer", "encode_delta": "measured", "encode_8bit": "as norm and cast",
        "decode_delta": "as norm and cast", "decode_8bit": "as cast",
    }  # fmt: skip
    assert "; codes: sort as topk_layer, encode_delta measured, encode_8bit as norm and cast" in " ".join(out.split())
    without = load("quickstart", ["exchanges={AG: {scheme: topk}}", "policies={}"]).config.exchanges
    assert "codes" not in with_codes(device, without.values(), 4)


def test_a_sample_has_the_bytes_of_the_whole_model():
    """A tenth of the entries at the same density; bitmaps and counts exactly, gaps alike."""
    whole, sample = gradients_of("normal", 2, 400_000, 0), gradients_of("normal", 2, 40_000, 0)
    for indices in INDEX_CODES:
        for values in ("float32", "4bit", "1bit"):
            options = {"indices": indices, "values": values}
            large = create("topk", 2, 400_000, 0.02, **options).exchange(whole).schedule.bytes_sent().sum()
            small = create("topk", 2, 40_000, 0.02, scale=10, **options).exchange(sample).schedule.bytes_sent().sum()
            assert small == pytest.approx(large, rel=0.005 if indices in ("auto", "delta") else 1e-9)


# Closed forms


def test_closed_forms_have_the_bytes_of_the_schemes():
    n, c, P = 100_000, 0.03, 4
    gradients = gradients_of("normal", P, n, 0)
    for scheme, option, codes in (
        ("topk", "indices", INDEX_CODES), ("topk", "values", VALUE_CODES), ("mstopk", "values", VALUE_CODES),
        ("artopk", "indices", INDEX_CODES), ("artopk", "values", sorted(ADDED_UP)),
        ("randomk", "values", sorted(ADDED_UP)),
    ):  # fmt: skip
        for code in codes:
            cost = closed_form(Candidate("one", scheme, {option: code}))
            expected = float(cost(0.0, 1.0, 4.0 * n, c, P))
            exchange = create(scheme, P, n, c, **{option: code}).exchange(gradients)
            # Without latency, the busiest worker of each round.
            found = sum(one.nbytes.max() for one in exchange.schedule.rounds)
            assert found == pytest.approx(expected, rel=0.01 if code in ("auto", "delta") else 1e-9), (scheme, code)
