"""Profiles in files: whole or not at all, and errors that name the file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from streamco.calibration.profile_store import add_ratings, added_ratings, begin_profile, load_profile, save_profile
from streamco.errors import ConfigError
from streamco.profiles import DeviceSpeed, Profile, TTFTDistribution
from streamco.profiles.rated_answer import RatedAnswer

PROFILE = Profile(name="phone", device=DeviceSpeed.from_rates(31.32, 13.93), server_ttft=TTFTDistribution.from_samples([0.2, 0.4]))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    save_profile(PROFILE, path)
    assert load_profile(path) == PROFILE
    assert load_profile(str(path)) == PROFILE


def test_saving_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    path.write_bytes(b"old")
    save_profile(PROFILE, path)
    assert load_profile(path) == PROFILE
    assert [entry.name for entry in tmp_path.iterdir()] == ["phone.json"]


def test_a_link_to_a_profile_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "phone.json", tmp_path / "link.json"
    save_profile(PROFILE, path)
    link.symlink_to(path)
    save_profile(replace(PROFILE, name="renamed"), link)
    assert (link.is_symlink(), load_profile(path).name) == (True, "renamed")


def test_a_folder_that_is_none_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="its folder doesn't exist"):
        begin_profile(tmp_path / "file" / "phone.json")


def test_fields_of_a_later_version_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    later = json.loads(PROFILE.to_json()) | {"name": "old", "colour": {"screen": [1, 2.5, None]}, "quality": {"device": 0.3}}
    path.write_text(json.dumps(later))
    save_profile(PROFILE, path)
    assert load_profile(path) == PROFILE, "what this version knows is replaced"
    assert json.loads(path.read_bytes())["colour"] == {"screen": [1, 2.5, None]}
    save_profile(replace(load_profile(path), name="renamed"), path)
    assert json.loads(path.read_bytes())["colour"] == {"screen": [1, 2.5, None]}


DEEP = b'{"version": 1, "colour": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    path.write_bytes(DEEP)
    with pytest.raises(ConfigError, match=r"phone\.json: expected a profile in JSON"):
        load_profile(path)


@pytest.mark.parametrize("content", [DEEP, b"[1]", b"{", b"\xff", b'{"version": 2, "colour": 1}', b'{"colour": 1}'])
def test_of_a_file_that_holds_no_profile_nothing_stays(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    path.write_bytes(content)
    save_profile(PROFILE, path)
    assert path.read_bytes() == PROFILE.to_json()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "phone.json"
    save_profile(PROFILE, path)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match=r"phone.json: the profile can't be written: No space left on device"):
        save_profile(Profile(name="other"), path)
    assert load_profile(path) == PROFILE
    assert [entry.name for entry in tmp_path.iterdir()] == ["phone.json"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.json: expected a readable profile, got: No such file or directory"):
        load_profile(tmp_path / "none.json")


def test_a_file_that_holds_no_profile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"version": 1, "device": {"seconds_per_token": "fast"}}')
    with pytest.raises(ConfigError, match=r"bad.json: expected a profile in JSON, got: Expected `float`.*device.seconds_per_token"):
        load_profile(path)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(ConfigError, match=r"huge.json: expected a profile of at most 16777216 bytes"):
        load_profile(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"phone.json: its folder can't be written to: No such file or directory"):
        save_profile(PROFILE, tmp_path / "none" / "phone.json")


def rated(number: int) -> RatedAnswer:
    return RatedAnswer(mean=0.5, tenth=0.1, median=0.5, tokens=3, is_complete=True, prompt_tokens=number, good=True)


def test_ratings_are_added_to_those_that_the_file_has_by_now(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    assert begin_profile(path) == begin_profile(None) == Profile()
    changes = {"name": PROFILE.name, "device": PROFILE.device, "server_ttft": PROFILE.server_ttft}
    assert add_ratings([rated(1)], path, changes) == 1
    assert add_ratings([rated(2)], path) == 2
    assert load_profile(path) == replace(PROFILE, ratings=(rated(1), rated(2)))
    assert add_ratings([rated(number) for number in range(999)], path, {"name": "other"}) == 1000
    kept = begin_profile(path)
    assert (kept.name, kept.ratings) == ("other", (rated(2), *(rated(number) for number in range(999))))


@pytest.mark.parametrize(("former", "now"), [((0, 4), (0, 6)), ((0, 4), (2, 6)), ((0, 4), (4, 6)), ((0, 0), (4, 6)), ((0, 6), (0, 6))])
def test_the_ratings_of_a_program_are_those_after_what_it_began_with(former: tuple[int, int], now: tuple[int, int]) -> None:
    ratings = [rated(number) for number in range(6)]
    assert added_ratings(ratings[slice(*former)], ratings[slice(*now)]) == ratings[max(former[1], now[0]) :]


def test_a_folder_that_can_not_be_written_is_named_at_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"phone\.json: its folder doesn't exist"):
        begin_profile(tmp_path / "none" / "phone.json")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"phone\.json: its folder isn't writable"):
        begin_profile(tmp_path / "phone.json")


@pytest.mark.skipif(sys.platform == "win32", reason="no file modes")
def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    save_profile(PROFILE, path)
    assert path.stat().st_mode & 0o077 == 0
