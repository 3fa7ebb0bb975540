"""The table of the original's acceptance suite in tests/README.md is complete and true."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LATER = "with administration"

NAMES = """
publish_and_subscribe per_partition_isolation partition_order_preserved multiple_partitions
visibility_timeout_and_retry idempotent_publish dedup_outlives_consumption concurrent_publishers crash_recovery
multiple_consumer_groups multiple_workers_in_group concurrent_subscribers dead_letter_queue
message_ordering_within_partition late_subscriber empty_topic_subscribe graceful_shutdown_during_processing
admin_list_topics admin_topic_stats admin_inspect_message admin_delete_and_purge admin_lag_after_partial_ack
admin_leases_and_offsets admin_reset_offset_and_release_lease rebalance_even_distribution subscriber_leaves
odd_partitions no_orphans more_subscribers_than_partitions no_starvation_uneven_split orphan_sweep idle_lease_release
in_flight_does_not_block_others postpone_blocks_until_due postpone_resets_retry_budget strict_serialization
groups_independent_state crash_after_reject_loses_nothing crash_after_retry_limit_loses_nothing
watermark_advances_contiguously collection_under_continuous_traffic
"""


def table() -> list[tuple[str, str, str]]:
    """Name, assertion and place of every row."""
    lines = (TESTS / "README.md").read_text().splitlines()
    begin = lines.index("| original test | what it asserts | where |") + 2
    rows = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        name, what, where = (cell.strip() for cell in line.strip("|").split(" | "))
        rows.append((name, what, where.strip("`")))
    return rows


def test_every_case_has_its_row() -> None:
    """Each name once, in the original's order, with what it asserts."""
    assert [name for name, _, _ in table()] == NAMES.split()
    assert all(what for _, what, _ in table())


def test_only_administration_is_still_to_come() -> None:
    """What has no test yet is a case of administration."""
    assert all(name.startswith("admin_") for name, _, where in table() if where == LATER)


@pytest.mark.parametrize(
    ("name", "where"), [pytest.param(name, where, id=name) for name, _, where in table() if where != LATER]
)
def test_the_named_file_has_the_test(name: str, where: str) -> None:
    """A function of that name, with a docstring, in the file that the row names."""
    functions = {
        node.name: node for node in ast.parse((TESTS / where).read_text()).body if isinstance(node, ast.FunctionDef)
    }
    assert ast.get_docstring(functions[f"test_{name}"])
