"""The options of the data source: what is understood, and what is refused in one line before anything happens."""

import json
from typing import Any

import pytest

from lanelog.errors import ConfigurationError
from lanelog.spark.source.options import DatabaseAddress, parse_read, parse_write
from support.refusing import refused

URL = "mysql://root@127.0.0.1:3306/jobs"


def read(streaming: bool | None = False, **options: str) -> Any:
    return parse_read({"url": URL, **{name.lower(): value for name, value in options.items()}}, streaming=streaming)


def test_options_are_found_in_any_case() -> None:
    """Spark hands names over in lower case; people write them as in the Kafka connector."""
    options = read(subscribe="b, a", minPartitions="4", failOnDataLoss="FALSE", includePayload="false")
    assert options.topics == ("a", "b")
    assert (options.min_partitions, options.fail_on_data_loss, options.include_payload) == (4, False, False)
    assert parse_read({"URL": URL, "SubscribePattern": "a.*"}).pattern == "a.*"


def test_defaults() -> None:
    """A batch reads everything, a stream what is new; both fail on data loss and include payloads."""
    options = read(subscribe="t")
    assert (options.table, options.starting, options.ending) == ("messages", "earliest", "latest")
    assert (options.min_partitions, options.max_offsets) == (1, None)
    assert (options.fail_on_data_loss, options.include_payload) == (True, True)
    assert read(streaming=True, subscribe="t").starting == "latest"


def test_offsets_are_read_from_json() -> None:
    """Topic, key, next offset; -2 is earliest, -1 latest; what a stream's checkpoint holds is understood, too."""
    checkpoint = json.dumps({"": 1, "t": {"": 1_700_000_000_000, "k": 7, "l": 1}})
    assert read(subscribe="t", startingOffsets=checkpoint).starting == {"t": {"k": 7, "l": 1}}
    assert read(subscribe="t", endingOffsets='{"t": {"k": -1}}').ending == {"t": {"k": -1}}
    assert read(streaming=True, subscribe="t", startingOffsets='{"t": {"k": -2}}').starting == {"t": {"k": -2}}
    empty = dict.fromkeys(("startingOffsets", "endingOffsets"), '{"t": {"k": 4}, "u": {"k": 7}}')
    assert read(subscribe="t,u", **empty).ending == {"t": {"k": 4}, "u": {"k": 7}}
    apart = {"startingOffsets": '{"t": {"k": 4, "l": -2}}', "endingOffsets": '{"t": {"k": -1, "m": 2}, "u": {"k": 2}}'}
    assert read(subscribe="t,u", **apart).starting == {"t": {"k": 4, "l": -2}}


SHAPE = "must be earliest, latest or JSON"
GROUP = "a group starts at its watermark"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscibe": "t"}, "'subscibe' where table=messages is read as a batch; did you mean 'subscribe'"),
        ({"nonsense": "t", "subscribe": "t"}, "unknown option 'nonsense'"),
        ({}, "give subscribe"),
        ({"subscribe": "t", "subscribePattern": "t"}, "exclude each other"),
        ({"subscribe": "t", "startingOffsets": "earliest", "startingTimestamp": "5"}, "exclude each other"),
        ({"subscribe": "t", "groupId": "g", "startingOffsets": "earliest"}, GROUP),
        ({"subscribe": "t", "groupId": "g", "startingTimestamp": "5"}, GROUP),
        ({"subscribe": "t", "table": "MESSAGES", "groupId": "g", "startingTimestamp": "5"}, GROUP),
        ({"subscribe": "t", "startingOffsets": "latest"}, "reads nothing"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, "reads nothing"),
        ({"subscribe": "t", "endingOffsets": '{"t": {"k": -2}}'}, "reads nothing"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"k": -1}}'}, "cannot be latest"),
        (
            {"subscribe": "t", "startingOffsets": '{"t": {"k": 4}}', "endingOffsets": '{"t": {"k": 2}}'},
            "endingOffsets ends at 2 in lane 't' 'k', where startingOffsets begins at 4",
        ),
        ({"subscribe": "t", "startingOffsets": "now"}, SHAPE),
        ({"subscribe": "t", "startingOffsets": '{"t": 5}'}, SHAPE),
        ({"subscribe": "t", "startingOffsets": '{"t": {"k": 0}}'}, SHAPE),
        ({"subscribe": "t", "startingOffsets": '{"t": {"k": true}}'}, SHAPE),
        ({"subscribe": "t", "startingOffsets": "[1]"}, SHAPE),
        ({"subscribe": "t", "minPartitions": "0"}, "minPartitions must be a whole number, at least 1"),
        ({"subscribe": "t", "startingTimestamp": "yesterday"}, "startingTimestamp must be a whole number"),
        ({"subscribe": "t", "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"subscribe": "t,"}, "topic in subscribe must have 1 to 255 characters"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"subscribe": "t", "table": "queue_messages"}, "table must be one of messages, delivery_state"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "unknown option 'maxoffsetspertrigger'"),
        ({"table": "offsets", "startingOffsets": "earliest"}, "unknown option"),
        ({"streaming": True, "subscribe": "t", "endingOffsets": "latest"}, "unknown option 'endingoffsets'"),
        ({"streaming": True, "table": "offsets"}, "a stream reads messages"),
        ({"streaming": True, "subscribe": "t", "maxOffsetsPerTrigger": "0"}, "at least 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    """Options without an effect are refused, too; one line names them. A stream has no end, and no other table."""
    assert said in refused(read, **options)


def test_a_write_takes_the_address_alone() -> None:
    """No other option is accepted, except those that Spark hands every sink."""
    assert parse_write({"url": URL, "checkpointlocation": "/tmp/x", "queryname": "q"}).url == URL  # noqa: S108
    with pytest.raises(ConfigurationError, match="unknown option 'topic' where written; known are passwordEnv, url"):
        parse_write({"url": URL, "topic": "t"})


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANELOG_URL of the driver; without either, one line says so."""
    monkeypatch.setenv("LANELOG_URL", URL)
    assert parse_write({}).url == URL
    monkeypatch.delenv("LANELOG_URL")
    with pytest.raises(ConfigurationError, match="LANELOG_URL"):
        parse_write({})


def test_the_password_may_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is read where a connection is made, and is in no repr; a second one in the URL is one too many."""
    address = parse_write({"url": "mysql://app@db/jobs", "passwordEnv": "JOBS_PASSWORD"})
    with pytest.raises(ConfigurationError, match="'JOBS_PASSWORD', which is not set in this process"):
        address.config()
    monkeypatch.setenv("JOBS_PASSWORD", "s3cret/#@")
    assert address.config().password == "s3cret/#@"
    assert "s3cret" not in repr(address) + repr(address.config())
    assert "0ther" not in repr(parse_write({"url": "mysql://app:0ther@db/jobs"}))
    twice = refused(DatabaseAddress(url="mysql://app:0ther@db/jobs", password_env="JOBS_PASSWORD").config)
    assert ("leave one of them out" in twice, "0ther" in twice) == (True, False)
    # On the driver already, not in each task.
    assert "s3cret" not in refused(parse_write, {"url": "postgres://app:s3cret@db/jobs"})
