"""The rule by which classification metrics find out whether outputs are logits. A run keeps the rule it began with."""

from __future__ import annotations

from typing import Literal

MetricRule = Literal["guess", "loss"]
"""With "loss" a loss that takes logits says so, and metrics are given probabilities. With "guess", the rule of runs
that began earlier, torchmetrics guesses for each batch by itself."""
