"""The rule by which classification metrics find out whether outputs are logits. A run keeps the rule it began with."""

from __future__ import annotations

from typing import Literal

MetricRule = Literal["guess", "loss", "rows"]
"""With "rows" a loss that takes logits says so, and metrics are given probabilities; where the loss does not say it,
outputs are logits if any row of the evaluation has one outside [0, 1].

Runs that began earlier keep theirs. With "loss", torchmetrics guesses for each batch where the loss does not say it.
With "guess" it does so always.
"""
