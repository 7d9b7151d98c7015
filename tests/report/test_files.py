import os
from pathlib import Path

import pytest

from pdmodel.errors import InputError
from pdmodel.report.files import check_target, write_whole


def test_writes_and_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"one")
    path.chmod(0o640)
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]


def test_a_new_file_follows_the_mask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_whole(Path(os.devnull), b"x")
    assert Path(os.devnull).is_char_device()


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match=r"a: cannot be written \(No space left on device\)"):
        write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "is a folder; expected a file name"),
        ("missing/a.json", "no such folder"),
        ("file/a.json", "is not a folder"),
        ("x" * 300 + ".json", "the name of the file is too long: 'xxxx"),
    ],
)
def test_targets_that_cannot_be(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=words):
        check_target(tmp_path / name)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write everywhere, so the answer of the system is given here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=r"a\.json: permission denied"):
        check_target(tmp_path / "a.json")
