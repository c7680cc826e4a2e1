"""Measured behaviour as data: the measurements that policies plan with, and their JSON file."""

from __future__ import annotations

from streamco.profiles.distributions import LengthDistribution, RemainingLength, TTFTDistribution
from streamco.profiles.pair_profile import PairProfile
from streamco.profiles.profile import PROFILE_VERSION, DeviceSpeed, Link, ModelShape, Prices, Profile

__all__ = [
    "PROFILE_VERSION",
    "DeviceSpeed",
    "LengthDistribution",
    "Link",
    "ModelShape",
    "PairProfile",
    "Prices",
    "Profile",
    "RemainingLength",
    "TTFTDistribution",
]
