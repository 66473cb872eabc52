"""Files from elsewhere are read with care."""

import gzip
import os

import pytest

import needs
from simnet.base.errors import InputError
from simnet.base.file_io import read_text


def test_text_is_read_up_to_the_limit_and_not_beyond(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe")
    assert read_text(file, file.stat().st_size) == "grüße"
    with pytest.raises(InputError, match=r"a.txt: is larger than 9 bytes"):
        read_text(file, 9)


def test_what_is_no_text_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r": is not a file$"):
        read_text(tmp_path, 9)
    with pytest.raises(InputError, match="there is no such file"):
        read_text(tmp_path / "none", 9)
    (tmp_path / "latin").write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(InputError, match="is not UTF-8 text: byte 2 is 0xfc"):
        read_text(tmp_path / "latin", 9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"text"), "compressed by gzip; unpack it first"),
        ("text".encode("utf-16"), "UTF-16; convert it to UTF-8 first"),
    ],
    ids=["gzip", "UTF-16"],
)
def test_what_is_packed_or_encoded_otherwise_is_named(tmp_path, content, message):
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(InputError, match=f"is not UTF-8 text: it is {message}"):
        read_text(tmp_path / "log", 99)


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        read_text(tmp_path / ("a" * 5000), 9)


@needs.posix
def test_a_pipe_does_not_hang_the_run(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        read_text(tmp_path / "pipe", 9)
