"""How much slower units are when more cores of a host are at work: they share caches, memory and power. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.values import Option, Setting


class Contention:
    """What was found from two pilots with as many threads: one worker alone, and as many as the host has cores for.

    Args:
        profiles: What was measured, by setting.

    Attributes:
        slowdown: How many times longer a unit takes when the host is full; 1.0 if that was not measured.
        cores: The cores that were at work then.
    """

    def __init__(self, profiles: Mapping[Setting, Profile]) -> None:
        self.slowdown, self.cores = 1.0, 1
        for setting, alone in profiles.items():
            full = max((other for other in profiles if other.threads == setting.threads), key=lambda one: one.at_once)
            if setting.at_once == 1 < full.at_once:
                self.slowdown = max(1.0, _ratio(alone, profiles[full]))
                self.cores = full.at_once * full.threads

    def factor(self, option: Option, measured: Setting) -> float:
        """Return by how much units of an option are slower than those that were measured.

        Args:
            option: The option.
            measured: What its units were measured with.
        """
        return self._at(option.at_once * option.threads) / self._at(measured.at_once * measured.threads)

    def _at(self, cores: int) -> float:
        if self.cores == 1:
            return 1.0
        return 1.0 + (self.slowdown - 1.0) * min(1.0, (cores - 1) / (self.cores - 1))


def _ratio(alone: Profile, full: Profile) -> float:
    """Return how many times longer batches took, by those configurations that both have measured."""
    known = {kin: params for kin, params in full.configurations.items() if kin in alone.configurations}
    ratios = [full.cost("train", params).batch / alone.cost("train", params).batch for params in known.values()]
    return median(ratios) if ratios else 1.0
