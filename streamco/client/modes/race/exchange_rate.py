"""The exchange rate of a race: a constant, or a function of the caller's that says what the device's energy is worth by now."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from streamco.errors import ConfigError

__all__ = ["CurrentRate", "RateSetting", "check_rate_setting"]

RateSetting = float | Callable[[], float]

_KEPT_S = 1.0

logger = logging.getLogger("streamco")


def check_rate_setting(setting: object) -> None:
    """Check a setting without calling it.

    Raises:
        ConfigError: it is neither a rate nor a function.
    """
    if not callable(setting):
        _check_rate(setting)


class CurrentRate:
    """The exchange rate as it is now. A function is called in the event loop, at most once a second; see ``Race`` for what its errors do.

    Args:
        setting: US dollars per million GFLOPs, or a function that returns them.
        now: seconds, monotonic.

    Raises:
        ConfigError: the setting is no rate, or the function raises or returns none.
    """

    def __init__(self, setting: RateSetting, *, now: float) -> None:
        self.setting = setting
        self._read_at = now
        self._has_warned = False
        try:
            self._rate = _check_rate(setting() if callable(setting) else setting)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"race: exchange_rate: expected a function that returns a rate, got {type(error).__name__}: {error}"
            ) from error

    def read(self, *, now: float) -> float:
        """Return the rate: what the function returned within the last second, or returns now, or returned when it last worked."""
        if callable(self.setting) and now - self._read_at >= _KEPT_S:
            self._read_at = now
            try:
                self._rate = _check_rate(self.setting())
            except Exception as error:  # noqa: BLE001  answers don't fail because a battery can't be read
                if not self._has_warned:
                    self._has_warned = True
                    logger.warning(
                        "exchange_rate: the function failed (%s); the last rate, %g, is used as long as it fails", error, self._rate
                    )
        return self._rate


def _check_rate(rate: object) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not (math.isfinite(rate) and rate >= 0):
        raise ConfigError(f"race: exchange_rate: expected US dollars per million GFLOPs, 0 or more, or a function, got {rate!r}")
    return float(rate)
