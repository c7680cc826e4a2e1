"""Profiles in files: whole or not at all, and errors that name the file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from streamco.calibration.profile_store import load_profile, save_profile
from streamco.errors import ConfigError
from streamco.profiles import DeviceSpeed, Profile, TTFTDistribution

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
    with pytest.raises(ConfigError, match=r"phone.json: expected to write a profile, got: No space left on device"):
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
    with pytest.raises(ConfigError, match=r"phone.json: expected a writable folder, got: No such file or directory"):
        save_profile(PROFILE, tmp_path / "none" / "phone.json")


@pytest.mark.skipif(sys.platform == "win32", reason="no file modes")
def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    save_profile(PROFILE, path)
    assert path.stat().st_mode & 0o077 == 0
