"""The value of the device's energy: a constant, or the caller's function that returns the current value."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from msgspec import Struct

from streamco.errors import ConfigError

__all__ = ["CurrentRate", "RateName", "RateSetting", "check_rate_setting"]

RateSetting = float | Callable[[], float]

_KEPT_S = 1.0

logger = logging.getLogger("streamco")


class RateName(Struct, frozen=True):
    """The name of a rate in errors and in the log.

    Args:
        mode: the mode that has the setting.
        setting: the setting's name.
        unit: the rate's unit.
    """

    mode: str
    setting: str
    unit: str

    def check(self, rate: object) -> float:
        """Validate a rate and return it.

        Raises:
            ConfigError: it isn't a rate.
        """
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= sys.float_info.max:
            raise ConfigError(f"{self.mode}: {self.setting}: expected {self.unit}, 0 or more, or a function, got {rate!r}")
        return float(rate)


def check_rate_setting(setting: object, name: RateName) -> None:
    """Check a setting without calling it.

    Raises:
        ConfigError: it is neither a rate nor a function.
    """
    if not callable(setting):
        name.check(setting)


class CurrentRate:
    """The current rate. If it is a function, it is called in the event loop, at most once a second; ``Race`` says what happens if it fails.

    Args:
        setting: the rate, or a function that returns it.
        name: its name and unit.
        now: the current time, in seconds on a monotonic clock.

    Raises:
        ConfigError: the setting isn't a rate, or the function raises or doesn't return one.
    """

    def __init__(self, setting: RateSetting, name: RateName, *, now: float) -> None:
        self.setting = setting
        self._name = name
        self._read_at = now
        self._has_warned = False
        try:
            self._rate = name.check(setting() if callable(setting) else setting)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{name.mode}: {name.setting}: expected a function that returns a rate, got {type(error).__name__}: {error}"
            ) from error

    def read(self, *, now: float) -> float:
        """Return the rate. A function is called again if its last call was at least a second ago; if it fails, the last rate is kept."""
        if callable(self.setting) and now - self._read_at >= _KEPT_S:
            self._read_at = now
            try:
                self._rate = self._name.check(self.setting())
            except Exception as error:  # noqa: BLE001  answers don't fail because a battery can't be read
                if not self._has_warned:
                    self._has_warned = True
                    text = "%s: the function failed (%s); the last rate, %g, is used as long as it fails"
                    logger.warning(text, self._name.setting, error, self._rate)
        return self._rate
