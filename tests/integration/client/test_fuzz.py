"""Text that breaks quoting, encodings and comparisons, through the whole library and a real server.

What is allowed comes back byte for byte, also through the dead letters; what is not is a ConfigurationError before any
statement is sent. What `publish` accepts in itself is in tests/unit/client/test_url_fuzz.py.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lanelog
from lanelog import Client, ConfigurationError, Outgoing
from lanelog._base.text import summary
from lanelog._engine.handler_error import MAX_BYTES, clip
from support.commands import commands_sent
from support.sql import one, rows
from support.waiting import Record, accept, eventually, raising

# Each is a name of its own: servers that fold case, width, accents or white space would take some for the same.
WORDS = """
' " ` \\ \\' \\\\ '' /* -- # ; \\x00 0x41 NULL null 0 00 -1 1e3 NaN % %s %% %(key)s {} {0} ${x} _ * ? :1
@x @@version {{x}} [1] a\\0b a\\nb "quoted" &lt; ../../etc a=b&c=d \\u0041 \\N key Key KEY kéy ke\u0301y K\u212ay
\uff4b\uff45\uff59 ﬁ fi ß ss SS İ i̇ \u0131 I 🚀 👩\u200d🚀 👩🚀 \U0001d54f 𐍈 \U0010ffff \U000f0000
🇩🇪 日本 日夲 한국 ㅎㅏㄴ
"""
NAMES = [
    *WORDS.split(),
    *("'; DROP TABLE queue_messages; -- x", "' OR '1'='1", "\\' OR 1=1 #", "1) OR (1=1", '{"a": 1}'),
    *("a b", "a  b", "a\u00a0b", "a\u2003b", "a\u200bb", "ab", "a\u00adb", "a\u2028b"),
    *("א ב", "\u202eevil", "evil\u200f", "\u202aab\u202c", "\ufeffbom", "bom", "\u200d", "\u0301", "\ufffd", "\uffff"),
    *("x" * 255, "日" * 255, "🚀" * 255, "'" * 255, "\\" * 255, "%" * 255, "e\u0301" * 127 + "e", "x" * 254, "X" * 255),
]
FORBIDDEN = [
    *("", " ", "a ", " a", "a\t", "\na", "a\u00a0", "\u2003a", "a\u2028", "x" * 256, "🚀" * 256, "é" * 256),
    *("\x00", "a\x00b", "a\x1fb", "a\x7fb", "a\x85b", "\ud800", "a\udfffb", "\ud83d\ude80"),
    *(None, b"a", 7, ["a"], True),
]

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=255).filter(
    lambda text: text == text.strip()
)
nasty_names = st.one_of(
    st.sampled_from(NAMES), st.text("'\"\\%`;-# \u0301é🚀", min_size=1).filter(lambda t: t == t.strip())
)
texts = st.text(st.characters(codec="utf-8"))
metadata = st.dictionaries(texts | nasty_names, texts | nasty_names, max_size=4)
messages = st.builds(
    lambda key, id, payload, metadata: Outgoing(key, payload, id=id, metadata=metadata),  # noqa: A006 - as it is called
    names | nasty_names,
    names | nasty_names,
    texts | nasty_names | st.binary(max_size=50) | st.lists(texts, max_size=3),
    metadata,
)
# The fixtures are the same for all examples on purpose: the server takes them all in.
on_one_server = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def stored_bytes(payload: object) -> bytes:
    """What `publish` makes of a payload."""
    if isinstance(payload, bytes):
        return payload
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def stored_metadata(item: Outgoing) -> dict[str, str]:
    """What `publish` makes of the metadata: bytes have no content type."""
    if isinstance(item.payload, bytes):
        return dict(item.metadata or {})
    kind = "text/plain; charset=utf-8" if isinstance(item.payload, str) else "application/json"
    return {**(item.metadata or {}), "content-type": kind}


def seen(message: lanelog.Message) -> tuple[Any, ...]:
    return message.topic, message.key, message.id, message.payload, dict(message.metadata), message.group


# -- what is allowed ---------------------------------------------------------------------------------------------------


def test_every_name_is_a_lane_of_its_own(lanelog_client: Client) -> None:
    """No two keys share a lane, no two ids are duplicates; both come back as they were, and so does the metadata."""
    assert len({*NAMES}) == len(NAMES)
    as_keys = lanelog_client.publish_many(
        "t", [Outgoing(name, name.encode(), id=name, metadata={name: name}) for name in NAMES]
    )
    as_ids = lanelog_client.publish_many("t", [Outgoing("one key", b"", id=name) for name in NAMES])
    assert {receipt.offset for receipt in as_keys} == {1}
    assert [receipt.offset for receipt in as_ids] == list(range(1, len(NAMES) + 1))
    record = Record()
    with lanelog_client.subscribe("t", "g", lambda message: record(seen(message))):
        found = record.wait(2 * len(NAMES), within=30)
    expected = [("t", name, name, name.encode(), {name: name}, "g") for name in NAMES]
    assert sorted(item for item in found if item[1] != "one key") == sorted(expected)
    assert [item[2] for item in found if item[1] == "one key"] == NAMES
    again = [lanelog_client.publish("t", name, b"", id=name) for name in NAMES]
    assert {receipt.duplicate for receipt in again} == {True}


@pytest.mark.thorough
@on_one_server
@given(st.lists(messages, min_size=1, max_size=12), st.booleans())
def test_messages_come_back_as_they_were_published(
    lanelog_client: Client, raw: Any, batch: list[Outgoing], in_transaction: bool
) -> None:
    """Key, id, payload and metadata; alone, in a batch, and in a caller's transaction."""
    rows(raw, "DELETE FROM queue_messages")
    rows(raw, "DELETE FROM queue_partitions")
    rows(raw, "DELETE FROM queue_offsets")
    if in_transaction:
        with lanelog_client.transaction() as connection:
            receipts = lanelog_client.publish_many("t", batch, connection=connection)
    else:
        receipts = [
            lanelog_client.publish("t", item.key, item.payload, id=item.id, metadata=item.metadata) for item in batch
        ]
    first: dict[tuple[str, str], tuple[Any, ...]] = {}
    for item, receipt in zip(batch, receipts, strict=True):
        place = (item.key, str(item.id))
        assert receipt.duplicate is (place in first)
        first.setdefault(place, (item.key, item.id, stored_bytes(item.payload), stored_metadata(item)))
    found = rows(raw, "SELECT partition_key, id, payload, metadata FROM queue_messages")
    assert sorted((row[:3] for row in found), key=repr) == sorted((value[:3] for value in first.values()), key=repr)
    for key, message_id, _, text in found:
        assert json.loads(text or "{}") == first[key, message_id][3]


@pytest.mark.thorough
@settings(on_one_server, max_examples=20)
@given(st.data())
def test_topics_groups_and_subscribers_may_have_any_name(lanelog_url: str, raw: Any, data: st.DataObject) -> None:
    """Names reach the handler and the tables unchanged; the subscriber's name stands in its leases."""
    # 200 characters leave room for the suffix and for what is added to a subscriber's name. Drawn before there are
    # loops, whose jitter would move Python's random numbers under Hypothesis.
    short = (names | nasty_names).map(lambda text: text[:200].strip()).filter(bool)
    topic, group, name = data.draw(short), data.draw(names | nasty_names), data.draw(short)
    for table in ("messages", "partitions", "offsets", "groups", "partition_leases", "subscriber_heartbeats"):
        rows(raw, f"DELETE FROM queue_{table}")
    record = Record()
    with lanelog.connect(lanelog_url) as client:
        client.publish(topic, "key", b"x", id="id")
        client.subscribe(topic, group, lambda message: record(seen(message)), name=name)
        assert record.wait(1) == [(topic, "key", "id", b"x", {}, group)]
        owner = one(raw, "SELECT leased_by FROM queue_partition_leases")
        assert owner.rpartition(":")[0] == name
        assert rows(raw, "SELECT consumer_group, topic FROM queue_groups") == [(group, topic)]


@pytest.mark.thorough
def test_dead_letters_keep_every_byte(lanelog_client: Client) -> None:
    """Topic, key, id, payload, metadata, group and reason of a rejected message, for every name there is."""
    reasons = [*NAMES, "a\x00b", " padded ", "line\nline", "\t", "\x7f", "q" * 5000]
    topic, group, suffix = "'t\\%s🚀", "g'\\%", "_'\\%s\u202e日"
    sent = [
        Outgoing(NAMES[n % len(NAMES)], f"payload {reason}", id=f"id {n}", metadata={reason: reason, "n": str(n)})
        for n, reason in enumerate(reasons)
    ]
    lanelog_client.publish_many(topic, sent)

    def handle(message: lanelog.Message) -> None:
        reason = reasons[int(message.metadata["n"])]
        if int(message.metadata["n"]) % 2:
            message.reject(reason)
        else:
            raise lanelog.Reject(reason)

    record = Record()
    with (
        lanelog_client.subscribe(topic, group, handle, dead_letter_suffix=suffix),
        lanelog_client.subscribe(f"{topic}{suffix}", "dead", record),
    ):
        found: list[lanelog.Message] = record.wait(len(sent), within=60)
    by_number = {int(message.metadata["n"]): message for message in found}
    assert len(found) == len(by_number) == len(sent)
    for number, (reason, item) in enumerate(zip(reasons, sent, strict=True)):
        message = by_number[number]
        assert (message.topic, message.key) == (f"{topic}{suffix}", item.key)
        assert message.payload == stored_bytes(item.payload)
        assert message.metadata == {**stored_metadata(item), "lanelog.original_id": item.id}
        letter = message.dead_letter
        assert (letter.original_topic, letter.group) == (topic, group)
        assert letter.last_error == clip(reason)


@pytest.mark.parametrize("reason", ["'\\%s\x00🚀 \ud800 lone", "\udfff" * 100_000])
@pytest.mark.parametrize("how", ["nack", "reject", "raise"])
def test_no_reason_prevents_the_settlement(lanelog_client: Client, raw: Any, reason: str, how: str) -> None:
    """Reasons are cut and escaped, never refused: often they are the text of somebody else's exception."""
    lanelog_client.publish("t", "k", b"x")

    def handle(message: lanelog.Message) -> None:
        if message.attempt > 1:
            return
        if how == "raise":
            raise RuntimeError(reason)
        if how == "nack":
            message.nack(delay=3600, reason=reason)
        else:
            message.reject(reason)

    wanted = reason.encode("utf-8", "backslashreplace").decode()
    wait = 3600.0
    patience = lanelog.RetryPolicy(wait=lambda _: wait)
    table = "queue_messages WHERE failed_group = 'g'" if how == "reject" else "queue_delivery_state WHERE acked = 0"
    look = f"SELECT last_error FROM {table} AND last_error IS NOT NULL"
    with lanelog_client.subscribe("t", "g", handle, retry=patience):
        error = eventually(lambda: one(raw, look))
    assert len(error.encode()) <= MAX_BYTES
    message = (summary(error) or "").removeprefix("RuntimeError: ")
    assert len(message) >= min(len(wanted), 2000)
    assert wanted.startswith(message.removesuffix("…"))


# -- a caller's connection ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,PIPES_AS_CONCAT"])
@pytest.mark.parametrize(
    "charset",
    [
        *("utf8mb4", "latin1"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("utf8", "ascii", "gbk", "big5", "sjis")),
    ],
)
def test_a_callers_connection_carries_a_text_or_refuses_it(
    lanelog_client: Client, open_raw: Any, raw: Any, charset: str, mode: str
) -> None:
    """With any character set and mode nothing arrives garbled, and a refused text leaves no hole."""
    connection = open_raw(charset=charset, autocommit=False)
    rows(connection, "SET SESSION sql_mode = %s", mode)
    texts = ["plain", "é", "日本", "🚀", "'\"\\%s", "ソ'", "誠'\\", "\u0301'"]
    sent: list[Outgoing] = []
    refused = 0
    for number, text in enumerate(texts):
        for item in (
            Outgoing(text, b"\xbf'\\", id=f"key {number}"),
            Outgoing("k", b"x", id=text),
            Outgoing("k", text, id=f"metadata {number}", metadata={text: text}),
        ):
            try:
                lanelog_client.publish_many("t", [item], connection=connection)
            except ConfigurationError as error:
                assert "utf8mb4" in str(error)  # noqa: PT017 - which of them are refused is the driver's to say
                refused += 1
            else:
                sent.append(item)
            connection.commit()
    sql = "SELECT partition_key, id, payload, metadata FROM queue_messages ORDER BY partition_key, `offset`"
    found = rows(raw, sql)
    assert sorted((row[:3] for row in found), key=repr) == sorted(
        ((item.key, item.id, stored_bytes(item.payload)) for item in sent), key=repr
    )
    assert [json.loads(row[3]) for row in found if row[3]] == [stored_metadata(item) for item in sent if item.metadata]
    heads = dict(rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE partition_key <> ''"))
    for key, head in heads.items():
        offsets = [row[0] for row in rows(raw, "SELECT `offset` FROM queue_messages WHERE partition_key = %s", key)]
        assert sorted(offsets) == list(range(1, head + 1))
    assert (refused == 0) is (charset == "utf8mb4")


# -- what is forbidden -------------------------------------------------------------------------------------------------


def ways_to_name(client: Client) -> dict[str, Callable[[Any], object]]:
    """Every text that the rules for names are about."""
    return {
        "topic": lambda name: client.publish(name, "k", b"x"),
        "topic of many": lambda name: client.publish_many(name, [("k", b"x")]),
        "topic of subscribe": lambda name: client.subscribe(name, "g", accept),
        "second topic": lambda name: client.subscribe(["t", name], "g", accept),
        "topic of deliveries": lambda name: client.deliveries(name, "g"),
        "key": lambda name: client.publish("t", name, b"x"),
        "key of many": lambda name: client.publish_many("t", [("k", b"x"), (name, b"x")]),
        "group": lambda name: client.subscribe("t", name, accept),
        "group of subscriber": lambda name: client.subscriber("t", name)(accept),
        "group of deliveries": lambda name: client.deliveries("t", name),
        "id": lambda name: client.publish("t", "k", b"x", id=name),
        "id of many": lambda name: client.publish_many("t", [Outgoing("k", b"x", id=name)]),
        "name": lambda name: client.subscribe("t", "g", accept, name=name),
        "dead_letter_suffix": lambda name: client.subscribe("t", "g", accept, dead_letter_suffix=name),
    }


MAY_BE_NONE = {"key", "key of many", "id", "id of many", "name", "dead_letter_suffix"}
LISTS = {"topic of subscribe", "topic of deliveries"}


def test_what_is_forbidden_costs_no_statement(lanelog_client: Client, raw: Any) -> None:
    """Names, payloads, metadata: each is refused before the server gets it, in a transaction too."""
    with commands_sent() as sent:
        lanelog_client.publish("t", "k", b"connected")
    assert sent
    bad: list[tuple[object, Any]] = [
        *[(payload, None) for payload in ("\ud800", ["\udfff"], {"\ud800": 1}, {1, 2}, float("nan"), object())],
        *[(b"x", pairs) for pairs in ({"\ud800": "a"}, {"a": "\udfff"}, {"a": 1}, {1: "a"}, "ab", [("a", "b")])],
        *[(b"x", {"a": "x" * 65_536}), (b"x" * 1_048_577, None), ("é" * 524_289, None)],
    ]
    with commands_sent() as sent:
        for where, call in ways_to_name(lanelog_client).items():
            for name in FORBIDDEN:
                if (name is None and where in MAY_BE_NONE) or (isinstance(name, list) and where in LISTS):
                    continue
                with pytest.raises(ConfigurationError):
                    call(name)
        for payload, pairs in bad:
            with pytest.raises(ConfigurationError):
                lanelog_client.publish("t", "k", payload, metadata=pairs)
            with pytest.raises(ConfigurationError):
                lanelog_client.publish_many("t", [("k", b"good"), Outgoing("k", payload, metadata=pairs)])
    assert sent == []
    with lanelog_client.transaction() as connection, commands_sent() as sent:
        for payload, pairs in bad:
            with pytest.raises(ConfigurationError):
                lanelog_client.publish("t", "k", payload, metadata=pairs, connection=connection)
        for name in FORBIDDEN:
            with pytest.raises(ConfigurationError):
                lanelog_client.publish(name, "k", b"x", connection=connection)  # type: ignore[arg-type]
            if name is None:
                continue  # no key: a job that needs no order
            with pytest.raises(ConfigurationError):
                lanelog_client.publish("t", name, b"x", connection=connection)  # type: ignore[arg-type]
        assert sent == []
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 1
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0


@pytest.mark.parametrize("options", [{"worker": 8}, {"order": "strict", "lane_concurrency": 4}, {"retention": 1}])
def test_bad_options_cost_no_statement(lanelog_client: Client, options: dict[str, Any]) -> None:
    """Each is named in the error, in all three ways to subscribe. `unit/client/test_config.py` has every bad option."""
    ways: tuple[Callable[..., object], ...] = (lanelog_client.subscribe, lanelog_client.deliveries)
    with commands_sent() as sent:
        for way in (*ways, lambda *args, **given: lanelog_client.subscriber(*args[:2], **given)(accept)):
            with pytest.raises(ConfigurationError, match=list(options)[-1]):
                way("t", "g", *([] if way == lanelog_client.deliveries else [accept]), **options)
    assert sent == []


def test_bad_handlers_cost_no_statement(lanelog_client: Client) -> None:
    """Nothing of it is left to run. Which handlers are bad is in `unit/client/test_handlers.py`."""
    with commands_sent() as sent:
        for bad in (None, "handler", 7):
            with pytest.raises(ConfigurationError, match="the handler must"):
                lanelog_client.subscribe("t", "g", bad)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="the handler must"):
                lanelog_client.subscriber("t", "g")(bad)  # type: ignore[type-var]
        with pytest.raises(ConfigurationError, match="nothing to run"):
            lanelog_client.run()
    assert sent == []


def test_a_topic_and_its_suffix_have_255_characters_together(lanelog_client: Client, raw: Any) -> None:
    """Characters, not bytes; the longest pair there is carries a dead letter."""
    topic, suffix = "🚀" * 150, "日" * 105
    with pytest.raises(ConfigurationError, match="suffix"):
        lanelog_client.subscribe(topic, "g", accept, dead_letter_suffix=suffix + "x")
    lanelog_client.subscribe("x" * 255, "g", accept, dead_letter_suffix=None)
    lanelog_client.publish(topic, "k", b"x")

    with lanelog_client.subscribe(topic, "g", raising(lanelog.Reject), dead_letter_suffix=suffix):
        eventually(lambda: one(raw, "SELECT topic FROM queue_messages WHERE failed_group = 'g'") == topic + suffix)
