"""Calibration: measures a pair of models, fits its profile, and keeps profiles in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamco.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamco.calibration.measure import calibrate_pair
    from streamco.calibration.profile_store import load_profile, save_profile
    from streamco.profiles.pair_profile import PairProfile
    from streamco.profiles.profile import Profile

__all__ = ["PairProfile", "Profile", "calibrate_pair", "load_profile", "save_profile"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "streamco.calibration.measure": ("calibrate_pair",),
        "streamco.calibration.profile_store": ("load_profile", "save_profile"),
        "streamco.profiles.pair_profile": ("PairProfile",),
        "streamco.profiles.profile": ("Profile",),
    },
)
