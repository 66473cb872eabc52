"""Files from elsewhere are read with care."""

import os

import pytest

from simnet.errors import InputError
from simnet.reading import read_text


def test_text_is_read_up_to_the_limit_and_not_beyond(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe")
    assert read_text(file, file.stat().st_size) == "grüße"
    with pytest.raises(InputError, match=r"a.txt: is larger than 9 bytes"):
        read_text(file, 9)


def test_what_is_no_text_file_is_refused_by_the_name_the_user_gave(tmp_path):
    with pytest.raises(InputError, match=r"^mine: is not a file$"):
        read_text(tmp_path, 9, shown="mine")
    with pytest.raises(InputError, match="there is no such file"):
        read_text(tmp_path / "none", 9)
    (tmp_path / "latin").write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(InputError, match="is not UTF-8 text: byte 2 is 0xfc"):
        read_text(tmp_path / "latin", 9)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang_the_run(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        read_text(tmp_path / "pipe", 9)
