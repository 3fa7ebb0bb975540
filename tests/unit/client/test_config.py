import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lanelog
from lanelog.config import AckPolicy, Order, RetryPolicy, SubscriptionConfig, check_retention
from lanelog.errors import ConfigurationError
from support.refusing import refused

DURATIONS = [
    "poll_interval", "visibility_timeout", "max_handler_time", "unhealthy_after", "lease_duration", "lease_renewal",
    "retention", "history_retention", "dead_letter_retention",
]  # fmt: skip


class TestSubscriptionOptions:
    """SubscriptionConfig."""

    def test_options_have_names_and_stay(self) -> None:
        """No option is given by position, and a configuration in use cannot be changed under it."""
        with pytest.raises(TypeError):
            SubscriptionConfig("n")  # type: ignore[call-arg]
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            SubscriptionConfig().workers = 9  # type: ignore[misc]

    def test_the_name_is_host_and_process_at_construction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A forked child names itself, not its parent; a host with a long or empty name gets a valid one."""
        monkeypatch.setattr("socket.gethostname", lambda: "build-7")
        monkeypatch.setattr("os.getpid", lambda: 4711)
        assert SubscriptionConfig().name == "build-7-4711"
        assert SubscriptionConfig.from_options(name=None).name == "build-7-4711"
        monkeypatch.setattr("socket.gethostname", lambda: "h" * 250)
        assert len(SubscriptionConfig().name) <= 200
        monkeypatch.setattr("socket.gethostname", lambda: "")
        assert SubscriptionConfig().name == "host-4711"

    def test_an_order_and_an_ack_policy_may_be_words(self) -> None:
        """The member and its value mean the same; of an ack policy, its name as well."""
        for order in Order:
            assert SubscriptionConfig(order=order.value).order is SubscriptionConfig(order=order).order is order
        for policy in AckPolicy:
            for given_as in (policy, policy.value, policy.name):
                assert SubscriptionConfig(ack_policy=given_as).ack_policy is policy

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"name": ""}, "name must have 1 to"),
            ({"name": "x" * 201}, "at most 200 characters"),
            ({"name": 7}, "name must be a str"),
            ({"workers": 0}, "workers must be 1 to"),
            ({"workers": True}, "workers must be an int, not bool"),
            ({"workers": 1.0}, "workers must be an int, not float"),
            ({"order": "fifo"}, "order must be one of strict, serial, concurrent, not 'fifo'"),
            ({"order": None}, "order must be one of"),
            ({"order": []}, "order must be one of"),
            ({"lane_concurrency": 5}, "only for order='concurrent'; order is 'strict'"),
            ({"lane_concurrency": 5, "order": "serial"}, "only for order='concurrent'"),
            ({"lane_concurrency": 0, "order": "concurrent"}, "lane_concurrency must be 1 to"),
            ({"batch_size": 0}, "batch_size must be 1 to"),
            ({"prefetch": 0}, "prefetch must be 1 to"),
            ({"prefetch_bytes": 0}, "prefetch_bytes must be 1 to"),
            ({"poll_interval": 0}, "poll_interval must be a finite number, more than 0"),
            ({"poll_interval": math.nan}, "poll_interval must be a finite number"),
            ({"visibility_timeout": 0}, "visibility_timeout must"),
            ({"visibility_timeout": math.inf}, "visibility_timeout must"),
            ({"auto_extend": 1}, "auto_extend must be True or False, not int"),
            ({"max_handler_time": 0}, "max_handler_time must"),
            ({"lease_duration": 0}, "lease_duration must"),
            ({"lease_renewal": 0}, "lease_renewal must"),
            ({"lease_renewal": 15}, "lease_renewal (15) must be less than lease_duration (15)"),
            ({"lease_duration": 5}, "lease_renewal (5) must be less than lease_duration (5)"),
            ({"retry": 0}, "max_attempts must be 1 to"),
            ({"retry": True}, "retry must be a number of attempts or a lanelog.RetryPolicy, not bool"),
            ({"retry": 5.0}, "retry must be a number of attempts or a lanelog.RetryPolicy, not float"),
            ({"retry": None}, "write retry=5 or RetryPolicy(stop=…, wait=…)"),
            ({"max_deliveries": 0}, "max_deliveries must be 1 to"),
            ({"max_deliveries": True}, "max_deliveries must be an int, not bool"),
            ({"ack_policy": "auto"}, "AckPolicy.NACK_ON_ERROR"),
            ({"ack_policy": None}, "ack_policy must be one of"),
            ({"dead_letter_suffix": ""}, "dead_letter_suffix must have 1 to"),
            ({"dead_letter_suffix": "_dlq "}, "white space"),
            ({"dead_letter_suffix": 1}, "must be a str"),
            ({"on_dead_letter": "hook"}, "on_dead_letter must be callable"),
            (
                {"on_dead_letter": lambda _: None},
                "on_dead_letter must take 2 positional arguments, message and error: ",
            ),
            ({"start": "now"}, "'earliest', 'latest' or an aware datetime, not 'now'"),
            ({"start": "archive"}, "not 'archive': history comes into the log by `lanelog replay --target-group`"),
            ({"start": None}, "start must be"),
            ({"start": datetime(2026, 1, 1)}, "aware datetime"),  # noqa: DTZ001 - the naive one is refused
            ({"start": datetime(1969, 12, 31, tzinfo=UTC)}, "between the years 1970 and 9998"),
            ({"start": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))}, "between the years"),
            ({"start": []}, "start must be"),
            ({"retention": -1}, "retention must"),
            ({"retention": timedelta(seconds=-1)}, "retention must be a finite number, at least 0"),
            ({"retention": "5m"}, "retention must be a number of seconds or a timedelta, not str"),
            ({"retention": None}, "retention must be a number of seconds or a timedelta, not NoneType"),
            ({"dead_letter_retention": timedelta(0)}, "dead_letter_retention must be a finite number, more than 0"),
            ({"retention": math.inf}, "retention must"),
            ({"history": 1}, "history must be"),
            ({"history": True, "history_retention": 0}, "history_retention must be"),
            ({"middleware": print}, "middleware must be a tuple of callables"),
            ({"middleware": "abc"}, "middleware must be a tuple of callables"),
            ({"middleware": (print, None)}, "a middleware must be callable"),
            ({"middleware": (id,)}, "a middleware must take 2 positional arguments, message and call_next: "),
            ({"ack_policy": "ack_first", "retry": 7}, "retry is about a second attempt, and ACK_FIRST makes none"),
            ({"ack_policy": "ack_first", "max_deliveries": 3}, "max_deliveries is about a second attempt, and ACK_F"),
            ({"ack_policy": "ack_first", "max_deliveries": None}, "max_deliveries is about a second attempt"),
            ({"history_retention": 60}, "history_retention is only for history=True: add it, or leave"),
            ({"on_dead_letter": print, "dead_letter_suffix": None}, "on_dead_letter has no effect with dead_letter_s"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, Any], reason: str) -> None:
        """Every field is checked for type and range, and against the others."""
        assert reason in refused(SubscriptionConfig.from_options, **options)

    @pytest.mark.parametrize(
        "options",
        [
            {"order": "concurrent", "lane_concurrency": 1},
            {"lane_concurrency": 10},
            {"max_deliveries": None},
            {"dead_letter_suffix": None},
            {"on_dead_letter": print},
            {"start": "latest"},
            {"retention": 0},
            {"lease_duration": 2, "lease_renewal": 0.5},
            {"auto_extend": False},
            {"ack_policy": AckPolicy.REJECT_ON_ERROR, "max_deliveries": 3},
            {
                "ack_policy": AckPolicy.REJECT_ON_ERROR,
                "retry": RetryPolicy(max_attempts=7),
            },  # for Retry, nack(), time-outs and crashes
            {"max_handler_time": 60, "auto_extend": False},  # it bounds the silence of message.transaction(), too
            {"dead_letter_retention": 9, "dead_letter_suffix": None},  # for the letters that are there
            {"ack_policy": AckPolicy.ACK, "max_deliveries": None},
            {"ack_policy": AckPolicy.ACK_FIRST, "max_deliveries": 20, "on_dead_letter": print},
            {"ack_policy": AckPolicy.MANUAL, "retry": RetryPolicy(max_attempts=3)},
            {"history": False, "history_retention": 604800},
            {"history": True, "history_retention": 60},
        ],
    )
    def test_unusual_options_are_taken(self, options: dict[str, Any]) -> None:
        """The ends of the ranges are inside."""
        config = SubscriptionConfig.from_options(**options)
        assert {name: getattr(config, name) for name in options} == options

    def test_durations_may_be_timedeltas(self) -> None:
        """Every field that has seconds takes both, and keeps seconds."""
        names = [field.name for field in attrs.fields(SubscriptionConfig) if field.converter is not None]
        durations = [name for name in names if name in DURATIONS]
        assert durations == DURATIONS
        given = {name: 60.0 + number for number, name in enumerate(durations)} | {"lease_renewal": 1.5}
        as_timedelta = {name: timedelta(seconds=seconds) for name, seconds in given.items()}
        config = SubscriptionConfig.from_options(**as_timedelta, name="n", history=True)
        assert {name: getattr(config, name) for name in given} == given
        assert all(type(getattr(config, name)) is float for name in given)

    def test_a_retry_may_be_a_number_of_attempts(self) -> None:
        """The short form of a policy."""
        retry = SubscriptionConfig(retry=3).retry
        assert retry == RetryPolicy(max_attempts=3, wait=retry.wait, retry=retry.retry)
        assert [retry.decide(attempt=n, since_first=0.0, error=None) is None for n in (1, 2, 3)] == [False, False, True]

    def test_a_start_is_kept_in_utc(self) -> None:
        """An instant is one whatever its time zone."""
        noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
        start = SubscriptionConfig(start=noon).start
        assert isinstance(start, datetime)
        assert (start, start.tzinfo) == (noon, UTC)

    def test_middleware_may_be_a_list(self) -> None:
        """The list is kept as a tuple, which nobody changes later."""
        assert SubscriptionConfig(middleware=[print]).middleware == (print,)

    def test_an_unknown_option_names_the_closest(self) -> None:
        """A misspelt option is not ignored."""
        assert "'worker'; did you mean 'workers'?" in refused(SubscriptionConfig.from_options, worker=1)
        assert "known are ack_policy, " in refused(SubscriptionConfig.from_options, zzzz=1)

    @pytest.mark.thorough
    @given(
        st.dictionaries(
            st.sampled_from([field.name for field in attrs.fields(SubscriptionConfig)]),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers()),
            max_size=4,
        )
    )
    def test_any_values_are_taken_or_refused_in_the_tree(self, options: dict[str, Any]) -> None:
        """No value ends in anything but a configuration or a ConfigurationError."""
        try:
            config = SubscriptionConfig.from_options(**options)
        except ConfigurationError:
            return
        assert attrs.evolve(config) == config


def test_a_retention_covers_a_repeated_publish() -> None:
    """Twice the publish time-out, or explicitly nothing; in between, a repeated publish could be delivered twice."""
    for enough in (0, 60, 60.5, 300):
        check_retention(enough, 30.0)
    for short in (0.001, 30, 59.9):
        assert "at least twice publish_timeout (60 s)" in refused(check_retention, short, 30.0)


def test_importing_reads_no_environment_and_opens_nothing() -> None:
    """Importing is safe anywhere: a wrong LANELOG_URL is noticed at connect, not before."""
    queue = str(Path(lanelog.__file__).parents[1])
    code = "import lanelog.config"
    environment = {"PYTHONPATH": queue, "LANELOG_URL": "nonsense"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == ("", "")
