"""The deliberate bugs: what is replaced in which file, and by what."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One deliberate bug.

    Attributes:
        name: What goes wrong, in a few words.
        file: The file in the package.
        sound: The text that is replaced, which is there once.
        broken: What it is replaced by.
    """

    name: str
    file: str
    sound: str
    broken: str


def _in(file: str, **changes: tuple[str, str]) -> list[Mutant]:
    return [Mutant(name.replace("_", " "), file, sound, broken) for name, (sound, broken) in changes.items()]


MUTANTS: tuple[Mutant, ...] = (
    *_in(
        "scheduler.py",
        a_checkpoint_that_is_needed_is_deleted_if_it_is_reported_twice=(
            "if event.attempt in self.state.given_up and event.checkpoint is not None:",
            "if event.checkpoint is not None:",
        ),
        a_bundle_is_blamed_for_one_of_its_members=("elif order.width > 1:", "elif False:"),
        a_run_that_is_ended_does_not_wait_for_its_units=("return not state.assignments\n", "return True\n"),
        a_paused_run_ends=("state.search_ended and state.paused_at is None and", "state.search_ended and"),
        the_last_unit_but_one_is_final=("last = step == len(self._train)", "last = step >= len(self._train) - 1"),
        anybody_may_report_a_unit=(
            "return self.state.workers[event.worker] if event.worker in may_say else None",
            "return self.state.workers[event.worker]",
        ),
        a_paused_run_goes_on=("if state.ending or state.paused_at is not None:", "if state.ending:"),
        a_unit_that_was_withdrawn_is_waited_for=("self.state.orders[event.attempt].width -= 1", "pass"),
        time_goes_back=("state.now = max(state.now, event.at)", "state.now = event.at"),
        half_a_bundle_is_taken_for_a_whole_one=("if together and not order.open:", "if together:"),
        workers_are_told_too_much=("<= len(orders) <= self.settings.queue_ahead", "<= len(orders) <= 3"),
        plain_metrics_are_carried=("if needed and trial.trained else None", "if trial.trained else None"),
    ),
    *_in(
        "scheduling/blame.py",
        a_trial_fails_for_one_bad_worker=(
            'if len(strikes) >= most and self._also_elsewhere(worker, strikes):\n            times = f"{len(strikes)}'
            ' times in a row"\n            self._trials',
            'if len(strikes) >= most:\n            times = f"{len(strikes)} times in a row"\n            self._trials',
        ),
        a_success_clears_nothing=("worker.failures, worker.failed_loads = [], 0", "pass"),
        the_only_worker_stays_aside=(
            "if not doubted.doubters or not self._others(doubted):",
            "if not doubted.doubters:",
        ),
        the_only_worker_is_never_enough=("return not others or any(", "return any("),
    ),
    *_in(
        "scheduling/deaths.py",
        the_only_host_is_given_one_death_less=(
            "return len(counted) > settings.max_kills",
            "return len(counted) >= settings.max_kills",
        ),
        deaths_that_are_explained_count=("sum(not kill.explained for kill in kills)", "sum(1 for kill in kills)"),
        a_unit_may_kill_for_ever=("if len(kills) >= max(_MOST, settings.max_kills):", "if False:"),
        a_host_is_excused_for_ever=(
            "return kill.host == host and now - kill.at <= _TOGETHER",
            "return kill.host == host",
        ),
        chance_explains_little=("_BY_CHANCE = math.log(1e-6)", "_BY_CHANCE = math.log(1e-1)"),
    ),
    *_in(
        "scheduling/bundles.py",
        an_heir_loses_a_follower=("None, trial.followers[1:], []", "None, trial.followers[2:], []"),
        a_width_is_learnt_from_a_bundle_that_failed=(
            "if len(order.results) < order.width or order.width == 1:",
            "if order.width == 1:",
        ),
        an_epoch_ends_a_unit_early=("if not board.open[head.row]:", "if board.open[head.row] <= 1:"),
        strangers_stay_in_a_bundle=("if useless or member.kin != head.kin:", "if useless:"),
        who_leaves_begins_the_epoch_again=("for partition in trial.trained]", "for partition in ()]"),
    ),
    *_in(
        "scheduling/board.py",
        a_unit_that_is_taken_back_is_not_open=("self._open[trial] += len(columns)\n", "pass\n"),
        holders_are_only_counted_up=("+= 1 if held else -1", "+= 1"),
        a_trial_that_rests_is_free=("self._free[trial] = bool(self._active[trial])", "self._free[trial] = True"),
        who_has_done_all_comes_back=("self._skip[trial] = 1 if later else NEVER", "self._skip[trial] = 1"),
    ),
    *_in(
        "scheduling/evaluations.py",
        an_evaluation_that_did_not_happen_runs_on=(
            "evaluation.running -= 1\n        evaluation.todo.append",
            "evaluation.todo.append",
        ),
        an_epoch_is_reported_too_early=(
            "return not evaluation.todo and not evaluation.running",
            "return not evaluation.todo",
        ),
        the_last_unit_does_not_wait=('(merging == "states" and len(evaluation.todo) == 1)', "False"),
        sums_depend_on_who_is_first=('if merging == "carried" else sorted(evaluation.measured)', "if merging else []"),
    ),
    *_in(
        "scheduling/trials.py",
        the_first_epoch_is_the_best=(
            "objective is None or objective.better(value, than=trial.best_value):",
            "objective is None:",
        ),
        failures_are_never_forgotten=("setbacks.kills, setbacks.failures = [], []", "pass"),
        what_was_reported_is_never_deleted=(
            "state.delete(state.retention.exchange(trial.reported, evaluation.checkpoint))",
            "pass",
        ),
        the_search_hears_of_what_a_person_asked_for=(
            "heard = report.ended or not self._state.trials[report.trial].personal",
            "heard = True",
        ),
        the_store_fails_a_trial=('if event.blame == "store":', "if False:"),
    ),
    *_in(
        "scheduling/groups.py",
        what_no_group_can_train_is_grouped_again=("trial.kin in self.never or ", ""),
        a_trial_loses_groups_for_long=("_MOST_LOST = 2", "_MOST_LOST = 9"),
        groups_are_formed_that_never_meet=(
            "(self._on and (self._works or self._given_up < _HOPELESS))",
            "self._on",
        ),
        a_replay_has_other_ranks=(
            "return sorted(members, key=lambda member: visits.index(member[1]))",
            "return list(members)",
        ),
        a_replay_waits_for_partitions_at_one_worker=("if not self._scripted or self.are_loading:", "if True:"),
        the_fastest_of_a_group_is_compared=(
            "alone = max(costs.seconds_alone(trial.row,",
            "alone = min(costs.seconds_alone(trial.row,",
        ),
        an_estimate_is_never_corrected=("if estimated is not None:  # groups", "if False:  # groups"),
    ),
    *_in(
        "scheduling/teams.py",
        a_team_forgets_partitions=(
            "for layer in range(max(len(held[worker]) for worker in team)):",
            "for layer in range(min(len(held[worker]) for worker in team)):",
        ),
        a_team_trains_twice=(
            "return [member for member in self._teams.classes[number] if self._source.todo[trial, member[1]]]",
            "return list(self._teams.classes[number])",
        ),
        a_team_is_as_fast_as_its_fastest=(
            "[max(float(slow[worker] * sizes[column])",
            "[min(float(slow[worker] * sizes[column])",
        ),
        teams_across_hosts_are_not_told_apart=("for team in teams)\n    return", "for team in [])\n    return"),
    ),
    *_in(
        "scheduling/group_sizes.py",
        a_group_takes_the_worker_of_another_trial=(">= present\n", ">= 1\n"),
        sizes_change_for_nothing=("if alike[before] < margin * least:", "if False:"),
        large_groups_do_not_exclude_each_other=(
            "ends[2 * sizes > workers].sum()",
            "ends[2 * sizes > workers].max(initial=0.0)",
        ),
        those_that_train_alone_are_grouped=("in_time = ends <= until * (1 + 1e-9)", "in_time = ends <= np.inf"),
    ),
    *_in(
        "scheduling/efficiencies.py",
        the_first_group_counts_in_full=("log /= 2", "pass"),
        all_kin_are_corrected=("if other == kin:", "if True:"),
        larger_groups_are_as_efficient=("return 1.0 / (1.0 + overhead * (workers - 1))", "return math.exp(log)"),
    ),
    *_in(
        "scheduling/steering.py",
        a_running_unit_is_withdrawn=("if wanted and order is not orders[0]:", "if wanted:"),
        a_pause_counts_as_time=(
            "state.paused_for, state.paused_at = state.seconds_paused, None",
            "state.paused_at = None",
        ),
        clones_have_one_name=('while f"{root}-c{number}" in self._state.trials:', "while False:"),
        what_is_gone_is_resumed=("if trial.given_up and trial.latest is None:", "if False:"),
        a_replay_is_steered=("if self._state.settings.script and command.verb in", "if command.verb in () and"),
        a_stopped_trial_is_not_evaluated=("trial.until < trial.epoch and bool(trial.evaluations)", "False"),
    ),
    *_in(
        "scheduling/time_limits.py",
        what_is_usual_is_too_long=("_USUAL = 10.0", "_USUAL = 0.5"),
        short_units_have_no_time=(
            "return max(learnt, self._settings.least_timeout or 0.0) if learnt",
            "return learnt if learnt",
        ),
        what_was_ordered_early_has_no_limit=("if self._longest:\n", "if False:\n"),
        a_group_has_the_time_of_one=("return _USUAL * sum(each)", "return _USUAL * min(each) / len(each)"),
    ),
    *_in(
        "scheduling/holdings.py",
        copies_are_dropped_before_others_hold_them=(
            "if not all(partition in self._workers[name].holds for name in holders):",
            "if False:",
        ),
        partitions_are_loaded_twice=(
            "if partition not in worker.holds and partition not in worker.loading:",
            "if partition not in worker.holds:",
        ),
        the_first_worker_loads_all=("if not self._gathered and len(self.available()) < self._expected:", "if False:"),
    ),
    *_in(
        "scheduling/script.py",
        works_come_before_their_turn=(
            "while trial.waiting and script.turns[trial.works] <= done:",
            "while trial.waiting:",
        ),
        checkpoints_of_a_script_are_never_deleted=(
            "state.delete(state.retention.release(work.warm_start))  # it was kept for this",
            "pass",
        ),
        a_replay_ends_no_trial=("elif script.stopped:", "elif False:"),
        units_go_on_without_their_work=(
            "return script.turns[known] if known < len(script.turns) else len",
            "return len",
        ),
    ),
    *_in(
        "scheduling/forming.py",
        bundles_are_wider_than_they_may_be=(
            "if size + more <= min(quota, most) and spare",
            "if size + more <= quota + most and spare",
        ),
        fewer_bundles_than_workers=("spare = census.bundles - census.workers", "spare = census.bundles"),
        a_bundle_is_split_in_mid_epoch=(
            "if self._state.board.open[head.row] == self._state.board.columns]",
            "if self._state.board.open[head.row]]",
        ),
    ),
    *_in(
        "scheduling/workers.py",
        members_of_a_group_wait_for_the_dead=(
            "[AbandonUnit(name, attempt) for name in others if state.workers[name].live]",
            "[]",
        ),
        the_parent_of_a_unit_is_not_kept=("state.retention.hold(order.parent)", "pass"),
        a_bad_host_is_tried_as_often=("return seconds * 2.0 ** min(before, _MOST_DOUBLINGS)", "return seconds"),
        who_is_at_work_is_idle=(
            "if worker.live and not worker.retiring and not worker.queue:",
            "if worker.live and not worker.retiring:",
        ),
        what_was_dropped_counts_as_loaded=("if worker is not None and partition in worker.unwanted:", "if False:"),
    ),
    *_in(
        "eventlog.py",
        numbers_count_turns=("_replace(number=number + len(lines))", "_replace(number=number + len(turns))"),
        a_seal_under_joined_segments_counts=(
            "if is_covered(list_segments(self._store, self._folder), place):",
            "if False:",
        ),
        what_others_wrote_is_overlooked=("if unread and not from_others:", "if False:"),
        the_first_segment_is_tidied_up=("if (segment.term, segment.first) != START:", "if True:"),
        two_drivers_both_write=("raise self._taken(name) from error", "pass"),
        nobody_signs=("sign(lines[first], self._writer, turn.wall_clock)", 'sign(lines[first], "", turn.wall_clock)'),
        a_term_does_not_end=("self._place = place._replace(term=place.term + 1)", "self._place = place"),
    ),
)
