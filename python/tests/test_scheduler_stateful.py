"""Any order of events: the scheduler keeps the rules, repeats itself, and comes to an end."""

from __future__ import annotations

import os

import pytest
from fast_tier import drawn
from hypothesis import HealthCheck, settings
from scheduler_rules import PeopleRules, SearchRules, UnitRules, WorkerRules

EXAMPLES = int(os.environ.get("CEREBRO_STATEFUL_EXAMPLES", "0")) or drawn(50)


class SchedulerMachine(SearchRules, PeopleRules, WorkerRules, UnitRules):
    """Plays search, people and backend against a scheduler, fairly and unfairly."""


pytestmark = pytest.mark.timeout(1500)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
