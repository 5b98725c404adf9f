"""What the documentation promises, where, and what shows it.

A statement is a part of a page, word by word; line breaks do not count. A test is a node id
without parameters, or a module. A run is the name of a tool in `reliability_page.TOOLS`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """One promise.

    Args:
        text: the promise, in one sentence.
        stated: pages with the words that make the promise.
        tests: tests that fail when it is broken.
        runs: tools whose runs would find that.
    """

    text: str
    stated: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]
    runs: tuple[str, ...] = ()


PROMISES: dict[str, tuple[Promise, ...]] = {
    "How a job ends": (
        Promise(
            "The exit code is 0 if and only if all workers of the last round succeeded.",
            (
                ("docs/errors.md", "all workers of this node succeeded"),
                (
                    "docs/engines.md",
                    "So 0 means that all workers of the last round have succeeded.",
                ),
            ),
            (
                "tests/engines/test_ending.py::test_all_combinations_of_three_nodes",
                "tests/engines/test_driver.py::test_a_node_that_is_lost_while_it_saves_is_not_a_success",
                "tests/engines/test_local.py::test_an_end_while_a_worker_still_saves_is_not_a_success",
            ),
            ("simulate", "soak"),
        ),
        Promise(
            "All nodes of a job end with the same code, whichever notices the cause first.",
            (
                (
                    "docs/errors.md",
                    "all nodes of a job end with the same code, whichever of them notices the "
                    "cause first",
                ),
            ),
            ("tests/e2e/test_codes_of_nodes.py",),
            ("simulate", "soak"),
        ),
        Promise(
            "The exit code of a failed job is that of the worker that failed first.",
            (
                ("README.md", "It exits with the worker's code."),
                ("docs/errors.md", "the exit code of the worker that failed first, on any node"),
            ),
            (
                "tests/e2e/test_launching.py::test_the_exit_code_is_the_first_failing_workers_own",
                "tests/process/test_failure.py::test_the_exit_code_is_that_of_the_first_failure",
            ),
            ("simulate", "soak"),
        ),
        Promise(
            "All reports of a job name the same first cause.",
            (
                (
                    "README.md",
                    "The whole job has one attempt number, one restart budget, and one first "
                    "cause in all reports.",
                ),
            ),
            (
                "tests/e2e/test_multi_node.py::test_a_failure_anywhere_restarts_or_ends_all",
                "tests/e2e/test_causes.py::test_a_killed_worker_is_the_cause_of_its_peers_errors",
                "tests/membership/test_any_order.py::test_nodes_agree_and_settle_after_random_events",
            ),
            ("simulate",),
        ),
        Promise(
            "A failure is reported once, also with `--on`.",
            (("README.md", "plaunch reports once which rank failed first"),),
            (
                "tests/e2e/test_announcing.py::test_a_failure_is_reported_once",
                "tests/engines/test_driver.py::test_the_first_failure_is_reported_once",
            ),
        ),
        Promise(
            "A failure that is only a consequence of another one is not the cause.",
            (
                ("docs/membership.md", "comes after every other one that began no more than ten"),
                (
                    "docs/membership.md",
                    "errors of its peers about broken connections never become the cause",
                ),
            ),
            (
                "tests/process/test_consequences.py",
                "tests/e2e/test_causes.py::test_a_lost_node_is_named_while_its_peers_wait",
            ),
            ("simulate",),
        ),
        Promise(
            "A failure, an error or a verdict that began a stop stays the cause.",
            (("docs/stopping.md", "it stays the cause, whatever signals follow"),),
            (
                "tests/e2e/test_stopping.py::"
                "test_ctrl_c_during_a_failure_skips_the_grace_and_the_failure_stays_the_cause",
            ),
            ("simulate",),
        ),
        Promise(
            "A job that is over stays over: its run id is answered with the verdict.",
            (("docs/membership.md", "A job that is over stays over"),),
            (
                "tests/membership/test_lost_data.py::test_a_job_that_is_over_stays_over",
                "tests/e2e/test_multi_node.py::"
                "test_a_node_that_comes_when_others_have_finished_is_not_needed",
            ),
            ("simulate",),
        ),
        Promise(
            "What cannot be used is refused before anything starts, with exit code 2.",
            (
                ("README.md", "plaunch refuses contradictions and misspelt names before anything"),
                ("docs/errors.md", "cannot be used; no worker was started"),
            ),
            (
                "tests/e2e/test_launching.py::"
                "test_bad_input_is_one_line_and_exit_code_2_before_anything_starts",
                "tests/fuzzing/test_corpora.py",
            ),
            ("fuzz",),
        ),
    ),
    "Worlds and restarts": (
        Promise(
            "At most one world of a job trains; workers of two rounds never run at once.",
            (
                ("docs/stopping.md", "so workers of two rounds never use the same devices"),
                (
                    "docs/membership.md",
                    "it waits for the workers of every member of the previous round",
                ),
            ),
            (
                "tests/membership/test_stopping.py::test_workers_of_two_rounds_never_run_at_once",
                "tests/process/stopping/test_ends_of_launches.py::"
                "test_a_second_generation_never_meets_the_first",
                "tests/e2e/test_multi_node.py::"
                "test_no_round_begins_while_a_node_that_leaves_still_saves",
            ),
            ("simulate", "soak"),
        ),
        Promise(
            "There is one history of a job, which all nodes read in the same order.",
            (("docs/membership.md", "All nodes read it in the same order, and no node can miss"),),
            (
                "tests/membership/test_any_order.py::test_nodes_agree_and_settle_after_random_events",
                "tests/membership/test_simulated_jobs.py::test_nothing_is_wrong_with_a_hundred_jobs",
            ),
            ("simulate",),
        ),
        Promise(
            "A failure costs one restart of the whole job.",
            (("docs/restarts.md", "decides once, for the whole job"),),
            (
                "tests/membership/test_restarts.py",
                "tests/membership/test_lost_data.py::test_an_attempt_counts_before_its_round_is_formed",
            ),
            ("simulate",),
        ),
        Promise(
            "The loss of the store's data costs one restart, and resets no budget.",
            (
                ("docs/membership.md", "So the loss costs one restart."),
                ("docs/membership.md", "So no budget is reset"),
            ),
            (
                "tests/membership/test_lost_data.py",
                "tests/e2e/test_multi_node.py::test_a_restarted_host_does_not_reset_the_budget",
                "tests/e2e/test_store_deaths.py",
            ),
            ("simulate",),
        ),
        Promise(
            "What follows the loss of a node is in a table.",
            (("docs/restarts.md", "the first row that matches decides. *Room* is whether"),),
            ("tests/membership/test_lost_nodes.py",),
            ("simulate",),
        ),
        Promise(
            "Nodes that leave, stop requests and requested restarts are not failures.",
            (
                (
                    "docs/restarts.md",
                    "Nodes that leave, stop requests and restarts that a plugin requests are not "
                    "failures.",
                ),
            ),
            (
                "tests/membership/test_lost_nodes.py::test_a_node_that_leaves_is_not_lost",
                "tests/e2e/test_plaunchctl.py::"
                "test_a_requested_restart_is_not_counted_and_signals_reach_ranks",
            ),
            ("simulate",),
        ),
        Promise(
            "All ranks of a world see the same attempt, round and sizes.",
            (
                (
                    "docs/elastic-training.md",
                    "All ranks of a world see the same attempt, round and sizes.",
                ),
            ),
            (
                "tests/e2e/test_multi_node.py::test_ranks_follow_the_nodes_index_size_and_role",
                "tests/fault_injection/test_chaos_jobs.py",
            ),
            ("simulate", "soak"),
        ),
        Promise(
            "A training continues after its last checkpoint.",
            (("README.md", "the training continues after the last saved epoch"),),
            (
                "tests/e2e/test_examples.py::test_a_killed_worker_costs_at_most_an_epoch",
                "tests/engines/test_every_engine.py::"
                "test_a_training_learns_and_continues_when_a_node_is_lost",
            ),
        ),
    ),
    "Nothing is left, nothing is lost": (
        Promise(
            "When a job is over, no process of it is left.",
            (("docs/stopping.md", "plaunch ends everything that the job started"),),
            (
                "tests/process/stopping/test_ends_of_launches.py",
                "tests/process/stopping/test_forking_processes.py::test_nothing_escapes",
                "tests/e2e/test_chaos_launches.py::test_a_launch_leaves_nothing",
            ),
            ("soak",),
        ),
        Promise(
            "If the launcher is killed, its guard kills what the job has started.",
            (("docs/stopping.md", "It then kills everything that belongs to the job"),),
            (
                "tests/process/stopping/test_guard.py::"
                "test_nothing_outlives_a_launcher_that_is_killed",
                "tests/process/stopping/test_guard.py::"
                "test_a_launcher_is_killed_while_it_starts_workers",
                "tests/process/stopping/test_guard.py::"
                "test_a_launcher_is_killed_while_it_stops_workers",
            ),
            ("soak", "fuzz"),
        ),
        Promise(
            "A process that does not belong to the job never gets a signal.",
            (("docs/stopping.md", "so a foreign process never gets a signal"),),
            (
                "tests/process/stopping/test_tree.py::"
                "test_those_of_the_job_are_found_and_no_others",
                "tests/process/stopping/test_tree.py::test_a_signal_goes_to_the_very_process_only",
                "tests/process/stopping/test_guard.py::"
                "test_a_process_that_has_got_a_workers_number_is_spared",
            ),
        ),
        Promise(
            "All output of a worker is on the console and in its file before plaunch ends.",
            (
                (
                    "README.md",
                    "All output of a worker is on the console and in its file before plaunch ends.",
                ),
            ),
            (
                "tests/e2e/test_chaos_tee.py",
                "tests/e2e/test_chaos_console.py::test_a_reader_that_pauses_gets_everything",
                "tests/engines/test_delivery.py::test_a_paused_reader_gets_all",
                "tests/engines/test_many_lines.py::test_all_lines_arrive_in_order",
            ),
            ("soak", "fuzz"),
        ),
        Promise(
            "A slow console does not slow down training, and memory stays bounded.",
            (("README.md", "A slow console does not slow down training"),),
            (
                "tests/e2e/test_chaos_console.py",
                "tests/e2e/test_chaos_tee.py::"
                "test_gigabytes_pass_through_a_launcher_that_stays_small",
            ),
        ),
        Promise(
            "With `--on`, nothing is left on any node, even if the command is killed.",
            (("docs/engines.md", "So nothing is left on any node, even if the command is killed"),),
            (
                "tests/engines/test_every_engine.py::test_nothing_is_left_if_the_command_is_killed",
                "tests/fault_injection/test_chaos_engine_jobs.py",
            ),
            ("soak",),
        ),
    ),
    "Stops and signals": (
        Promise(
            "Every way to stop workers has the same steps and the same grace period.",
            (
                ("README.md", "The same grace period applies to every way of stopping workers."),
                ("docs/stopping.md", "plaunch stops workers in the same steps for every reason"),
            ),
            (
                "tests/process/stopping/test_stop_sequence.py",
                "tests/process/stopping/test_ends_of_launches.py::"
                "test_workers_that_ignore_the_signal_are_killed",
            ),
            ("simulate",),
        ),
        Promise(
            "The first signal gives the exit code, and a repeated SIGTERM is one stop.",
            (
                ("docs/stopping.md", "The first signal gives the exit code"),
                ("docs/stopping.md", "A repeated SIGTERM does not skip the grace period at once"),
            ),
            (
                "tests/agent/test_signals.py",
                "tests/e2e/test_stopping.py::test_signals_to_a_suspended_launcher_are_one_request",
                "tests/e2e/test_stopping.py::test_keys_of_a_terminal",
            ),
        ),
        Promise(
            "A signal that is passed on reaches each worker once.",
            (("docs/stopping.md", "each worker gets it once"),),
            (
                "tests/membership/test_any_order.py::"
                "test_a_signal_reaches_each_node_once_in_any_order",
                "tests/e2e/test_multi_node.py::"
                "test_a_notice_to_all_launchers_reaches_each_worker_once",
            ),
        ),
        Promise(
            "A worker that survives SIGKILL ends the job with 114, and none follows it.",
            (("docs/stopping.md", "It never starts other workers on such a host."),),
            (
                "tests/process/test_supervised.py::"
                "test_an_unkillable_worker_is_named_and_not_waited_for",
                "tests/agent/test_agent.py::"
                "test_a_worker_that_cannot_be_ended_is_not_followed_by_another",
            ),
            ("simulate",),
        ),
    ),
    "Bounds": (
        Promise(
            "No node can block the others for longer than a table says.",
            (("docs/membership.md", "No node can block the others for longer than this"),),
            (
                "tests/membership/test_stopping.py::test_it_is_not_awaited_beyond_its_deadline",
                "tests/membership/test_lost_data.py::"
                "test_a_member_that_does_not_come_back_delays_the_round_as_long_as_a_lost_one",
            ),
            ("simulate",),
        ),
        Promise(
            "A lost store ends all nodes after a time-out, with their workers.",
            (("docs/architecture.md", "workers continue for `unreachable_timeout`"),),
            (
                "tests/e2e/test_multi_node.py::test_a_lost_store_ends_the_nodes_after_a_timeout",
                "tests/e2e/test_etcd_nodes.py::test_a_lost_server_ends_the_nodes_after_a_timeout",
                "tests/e2e/test_partition.py",
            ),
            ("simulate",),
        ),
        Promise(
            "Plugins are called with a time limit, and cannot delay a stop.",
            (("docs/architecture.md", "each implementation runs on a thread with a time limit"),),
            ("tests/e2e/test_evil_plugins.py",),
        ),
        Promise(
            "Records of failures are bounded, however many workers fail.",
            (
                (
                    "docs/membership.md",
                    "These records stay below a fixed size, however many workers",
                ),
            ),
            (
                "tests/membership/test_failures.py::test_the_largest_summary_is_bounded",
                "tests/membership/test_failures.py::"
                "test_a_job_of_512_nodes_and_4096_failures_has_a_verdict",
            ),
            ("fuzz",),
        ),
        Promise(
            "A round costs a node the same with two or ten thousand others.",
            (
                (
                    "docs/membership.md",
                    "A round costs a node the same with two or ten thousand others",
                ),
            ),
            (
                "tests/membership/test_membership.py::"
                "test_operations_per_node_do_not_depend_on_the_number_of_nodes",
            ),
        ),
    ),
    "The store of a job": (
        Promise(
            "A connection's input or error ends that connection, and no other.",
            (("docs/store.md", "causes an unexpected error in the server is ended, and no other"),),
            (
                "tests/job_store/test_server.py",
                "tests/job_store/test_store_fuzzer.py::test_no_frame_is_a_finding",
                "tests/fuzzing/test_corpora.py",
            ),
            ("fuzz",),
        ),
        Promise(
            "No operation is carried out twice, however often a connection breaks.",
            (("docs/store.md", "the session is resumed, and no operation is carried out twice"),),
            ("tests/job_store/test_client.py",),
        ),
        Promise(
            "The memory of the server, and the time of a turn, are bounded.",
            (("docs/store.md", "the server's process takes at most `MAX_MEMORY` bytes"),),
            ("tests/job_store/test_limits.py", "tests/job_store/test_store_fuzzer.py"),
        ),
        Promise(
            "Without the token, nothing is read, written or kept.",
            (("docs/store.md", "so a stranger receives nothing to try tokens on"),),
            (
                "tests/job_store/test_attacks.py",
                "tests/e2e/test_multi_node.py::"
                "test_the_token_refuses_other_clients_and_stays_secret",
            ),
        ),
    ),
    "Security": (
        Promise(
            "Records of other nodes are checked; data of other nodes is never executed.",
            (
                ("docs/security.md", "plaunch rejects anything else with an error that names"),
                ("docs/security.md", "never executes or unpickles it"),
            ),
            (
                "tests/membership/test_records.py",
                "tests/membership/test_mutations.py",
                "tests/fuzzing/test_corpora.py",
            ),
            ("fuzz",),
        ),
        Promise(
            "Text from outside cannot control a terminal, nor look like a message of plaunch.",
            (("docs/security.md", "So each text is made safe where plaunch reads it"),),
            ("tests/test_boundaries.py", "tests/test_texts.py", "tests/fuzzing/test_corpora.py"),
            ("fuzz",),
        ),
        Promise(
            "Secrets appear in no command line, log, message, event or worker.",
            (("docs/security.md", "plaunch does not pass variables named"),),
            (
                "tests/e2e/test_etcd_nodes.py::test_the_password_stays_secret",
                "tests/e2e/test_multi_node.py::"
                "test_the_token_refuses_other_clients_and_stays_secret",
                "tests/process/test_marks.py::"
                "test_the_guard_that_is_a_program_of_its_own_gets_no_secret",
            ),
        ),
        Promise(
            "What a worker prints is never taken for a report of its agent.",
            (("docs/security.md", "a line that looks like a report of an agent is text"),),
            (
                "tests/engines/test_local.py::"
                "test_a_line_that_a_worker_prints_is_no_report_of_its_agent",
                "tests/engines/test_record_mutations.py::test_no_output_is_a_finding",
            ),
            ("fuzz",),
        ),
        Promise(
            "plaunchctl serves the user of the launch and root only.",
            (("docs/security.md", "the kernel authenticates them"),),
            ("tests/e2e/test_plaunchctl.py::test_another_user_is_refused",),
        ),
    ),
    "Drop-in": (
        Promise(
            "Scripts run unchanged: options and environment are torchrun's.",
            (("docs/index.md", "so your scripts run unchanged"),),
            (
                "tests/e2e/test_drop_in.py",
                "tests/e2e/test_callers.py",
                "tests/docs/test_compatibility.py",
            ),
        ),
        Promise(
            "The launcher does not import torch.",
            (("docs/architecture.md", "The launcher does not import torch"),),
            ("tests/e2e/test_launching.py::test_torch_is_never_imported_by_the_launcher",),
        ),
        Promise(
            "Each plugin folder but the built-in ones can be removed.",
            (("docs/architecture.md", "and a launch still works without its features"),),
            ("tests/e2e/test_removal.py",),
        ),
    ),
}
