"""Quantities with units: what is read exactly, what is refused and with which words, and hostile strings."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simnet.base.units import bandwidth, format_bandwidth, format_bytes, format_seconds, seconds, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 ns", 1e-9),
        ("25 us", 25e-6),
        ("25 µs", 25e-6),
        ("25 \u03bcs", 25e-6),
        ("10 ms", 10e-3),
        ("10ms", 10e-3),
        ("  10   ms ", 10e-3),
        ("1.5e1 ms", 15e-3),
        (".5 s", 0.5),
        ("5. s", 5.0),
        ("3 min", 180.0),
        ("2 h", 7200.0),
        ("2 hours", 7200.0),
        ("1 d", 86400.0),
        ("3 milliseconds", 3e-3),
        ("0", 0.0),
        ("0.0", 0.0),
        (0, 0.0),
        (0.0, 0.0),
    ],
)
def test_seconds(text, expected):
    assert seconds(text) == pytest.approx(expected, rel=1e-15, abs=0)


@pytest.mark.parametrize(
    ("text", "bits_per_second"),
    [
        ("8 B/s", 64),
        ("7 Mb/s", 7e6),
        ("7 Mbit/s", 7e6),
        ("7 Mbps", 7e6),
        ("7 MB/s", 56e6),
        ("7 MBps", 56e6),
        ("7 megabytes/second", 56e6),
        ("25 Gbit/s", 25e9),
        ("25 Gbps", 25e9),
        ("1 GiB/s", 8 * 2**30),
        ("1 Gibit/s", 2**30),
        ("60 kbit/min", 1e3),
        ("0", 0),
    ],
)
def test_bandwidth_tells_bits_from_bytes(text, bits_per_second):
    assert bandwidth(text) == bits_per_second / 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64 MiB", 2**26), ("64 MB", 64e6), ("64 Mb", 8e6), ("64 Mbit", 8e6), ("3 bytes", 3), ("1 TiB", 2**40), (0, 0)],
)
def test_size(text, expected):
    assert size(text) == expected


NO_NUMBERS = "1e-999999999 s", "(1).__class__ s", "\uff11 s", "1 s s", "ms", "", "1" * 10_000 + " s", 10**100


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        *((seconds, one, ["not a number with a unit"]) for one in NO_NUMBERS),
        (seconds, 10, ["10 has no unit", "'10 ms'"]),
        (seconds, "10 mss", ["'mss'", "did you mean 'ms'", "Allowed"]),
        (bandwidth, "10 Gbits/sek", ["unknown unit 'Gbits/sek'", "Gbit/s"]),
        (bandwidth, "10 mbps", ["did you mean 'Mbps'", "Case matters"]),
        (size, "64 KB", ["did you mean 'kB'"]),
        (size, "64 GiBit", ["did you mean 'Gibit'", "Case matters"]),
        (seconds, "10 Ms", ["did you mean 'ms'"]),
        (seconds, "10 ds", ["unknown unit 'ds'"]),
        (bandwidth, "10 ms", ["'10 ms' is not a bandwidth", "'25 Gbit/s'"]),
        (bandwidth, "10 s/B", ["not a bandwidth"]),
        (seconds, "10 MB/s", ["not a time", "'10 ms'"]),
        (size, "10 s", ["not a size", "'64 MiB'"]),
        (seconds, "-1 ms", ["'-1 ms' is negative"]),
        (seconds, -1, ["negative"]),
        (seconds, "nan s", ["'nan s'"]),
        (seconds, "inf s", ["'inf s'"]),
        (seconds, math.inf, ["inf"]),
        (seconds, "1e400 s", ["too large"]),
        (seconds, "1e999999 s", ["1e999999 s"]),
        (seconds, "9**9**9 s", ["9**9**9 s"]),
        (seconds, "1,5 s", ["1,5 s"]),
        (seconds, True, ["True is not a time"]),
        (seconds, None, ["None is not a time"]),
        (seconds, ["1 s"], ["not a time"]),
    ],
)
def test_refusals_name_the_value_and_the_remedy(read, text, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        read(text)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message) < 300


@given(st.one_of(st.text(max_size=80), st.from_regex(r"\A[0-9.eE+*/() -]{1,30}[a-zA-Z/*]{0,10}\Z")))
@example("1e99999999999 s")
@example("10**10**10**10 s")
@example("1 s**99999999")
def test_any_text_is_read_or_refused(text):
    for read in (seconds, size, bandwidth):
        try:
            value = read(text)
        except ValueError:
            continue
        assert 0 <= value < math.inf


@given(st.decimals(min_value=0, max_value=10**9, places=6, allow_nan=False), st.sampled_from(["us", "ms", "s"]))
def test_reading_is_correctly_rounded(number, unit):
    exponent = {"us": -6, "ms": -3, "s": 0}[unit]
    assert seconds(f"{number} {unit}") == float(number.scaleb(exponent))


@pytest.mark.parametrize(
    ("write", "read", "largest"),
    [(format_seconds, seconds, 1e7), (format_bytes, size, 1e15), (format_bandwidth, bandwidth, 1e14)],
)
@given(data=st.data())
def test_tables_read_back_to_three_digits(write, read, largest, data):
    value = data.draw(st.one_of(st.just(0.0), st.floats(1e-3, largest)))
    assert read(write(value)) == pytest.approx(value, rel=0.005001)
    assert len(write(value)) <= 12


def test_tables_round_up_into_the_next_unit():
    assert [format_seconds(x) for x in (0.0123, 0.00099999, 90, -3.2)] == ["12.3 ms", "1 ms", "1.5 min", "-3.2 s"]
    assert [format_bytes(x) for x in (999.4, 999.6, 1e6)] == ["999 B", "1 kB", "1 MB"]
    assert [format_bandwidth(x) for x in (3.125e9, 125e6, 12.5e6)] == ["25 Gbit/s", "1 Gbit/s", "100 Mbit/s"]
    assert [format_seconds(math.inf), format_seconds(0)] == ["inf s", "0 s"]
