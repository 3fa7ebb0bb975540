"""What is seen of failures and of a subscription's life, with nothing configured and with an application's tools."""

import logging
import signal
import subprocess
import sys
from contextlib import closing

import pytest

import lanelog
from lanelog import Client, Message
from lanelog.devserver import DevServer
from support.cli import Command
from support.pace import paced
from support.processes import Program
from support.waiting import Gate, Record, accept, events, eventually

pytestmark = pytest.mark.usefixtures("logged")


def record_of(caplog: pytest.LogCaptureFixture, name: str) -> logging.LogRecord:
    """The one record of an event."""
    (record,) = (each for each in list(caplog.records) if each.__dict__.get("event") == name)
    return record


@pytest.mark.thorough
def test_an_error_tracker_shows_a_dead_letter(lanelog_client: Client, lanelog_url: str) -> None:
    """Sentry without a line of configuration: one issue, with the traceback of the handler and the message's place."""
    lanelog_client.publish("orders", "order-7", b"{}")
    journal = Record()
    with closing(Program.start("tracked", "tracked.py", journal, url=lanelog_url)) as program:
        (line,) = program.said("tracked")
        program.terminate()
        assert program.ended() == 0
    event = line["tracked"]
    assert (event["level"], event["logger"]) == ("error", "lanelog.settler")
    assert event["logentry"]["message"] == "message.dead_lettered %s"  # what it groups by
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("KeyError", "'customer'")
    assert [frame["function"] for frame in exception["stacktrace"]["frames"]] == ["bill"]
    fields = {name: event["extra"][name] for name in ("topic", "key", "group", "offset", "attempt")}
    assert fields == {"topic": "orders", "key": "order-7", "group": "billing", "offset": 1, "attempt": 1}
    assert len([each for each in journal.items if each.event == "tracked"]) == 1


RAISES = """
import sys, lanelog
client = lanelog.connect(sys.argv[1])
done = __import__("threading").Event()
@client.subscriber("orders", "billing", max_deliveries=1, on_dead_letter=lambda message, why: done.set())
def bill(message):
    raise KeyError("caf\\udce9")
client.start()
assert done.wait(30)
client.close()
"""


@pytest.mark.thorough
def test_with_nothing_configured_the_traceback_is_on_the_terminal(lanelog_client: Client, lanelog_url: str) -> None:
    """Python's last resort prints it; text that no stream takes is escaped, and logging reports no fault of its own."""
    lanelog_client.publish("orders", "order-7", b"{}")
    command = [sys.executable, "-c", RAISES, lanelog_url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    assert done.stderr.count("Traceback (most recent call last):") == 2  # of the attempt, and of the dead letter
    assert done.stderr.count(r"KeyError: 'caf\udce9'") >= 2
    assert "handler.failed topic=orders key=order-7 group=billing offset=1 attempt=1" in done.stderr
    assert "message.dead_lettered topic=orders" in done.stderr
    assert "Logging error" not in done.stderr


DISABLED = """
import logging.config, sys, lanelog
client = lanelog.connect(sys.argv[1])
@client.subscriber("orders", "billing")
def bill(message):
    pass
@client.subscriber("orders", "shipping")
def ship(message):
    pass
logging.config.dictConfig({"version": 1})
client.start()
client.close()
"""


@pytest.mark.thorough
def test_loggers_that_the_application_has_disabled_are_reported_once(lanelog_url: str) -> None:
    """logging.config does so with every logger that was there before, unless it is told not to."""
    command = [sys.executable, "-c", DISABLED, lanelog_url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("loggers.disabled") == 1
    assert "lanelog.settler" in done.stderr
    assert "remedy='disable_existing_loggers=False'" in done.stderr


def fails(_message: Message) -> None:
    raise ValueError("no such branch")


def test_the_command_line_shows_the_traceback(lanelog_client: Client, lanelog_url: str) -> None:
    """`show` while the message waits and `dlq show` when it was given up, each line on its own; lists show none."""
    command = Command(lanelog_url)
    lanelog_client.publish("waits", "k", b"1")
    lanelog_client.publish("given-up", "k", b"1")
    patience = lanelog.RetryPolicy(wait=lambda _: 600.0)
    waits = lanelog_client.subscribe("waits", "g", fails, retry=patience)
    given_up = lanelog_client.subscribe("given-up", "g", fails, max_deliveries=1, history=True)
    eventually(lambda: waits.stats().retried == 1 and given_up.stats().dead_lettered == 1)
    eventually(lambda: lanelog_client.admin.lanes("waits", "g")[0].last_error)
    (letter,) = lanelog_client.admin.dead_letters("given-up")
    assert letter.reason == "ValueError: no such branch"
    for text in (command("show", "waits", "k", "1").stdout, command("dlq", "show", "given-up", "k", letter.id).stdout):
        assert "\n  ValueError: no such branch\n  Traceback (most recent call last):\n" in text
        assert text.endswith('in fails\n      raise ValueError("no such branch")\n')
    for verb in (("lanes", "waits", "g"), ("status",), ("history", "given-up", "g"), ("dlq", "list", "given-up")):
        text = command(*verb).stdout
        assert "ValueError: no such branch" in text
        assert "Traceback" not in text


def test_a_life_of_a_subscription_is_logged(lanelog_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """At INFO: the start, the lanes that came and went, in one event a turn, and the end."""
    lanelog_client.publish_many("t", [(f"k{number}", b"1") for number in range(8)])
    subscription = lanelog_client.subscribe("t", "g", accept, workers=3, order="serial")
    eventually(lambda: subscription.stats().acked == 8)
    assert subscription.stop()
    started = record_of(caplog, "subscription.started").__dict__
    fields = {name: started[name] for name in ("topic", "group", "workers", "order", "members")}
    assert fields == {"topic": "t", "group": "g", "workers": 3, "order": "serial", "members": 1}
    for name, held in (("lanes.acquired", 8), ("lanes.released", 0)):
        turns = [each.__dict__ for each in caplog.records if each.__dict__.get("event") == name]
        assert sum(turn["lanes"] for turn in turns) == 8
        assert turns[-1]["held"] == held
        assert all(turn["name"] == "lanelog.keeper" and 0 < len(turn["keys"]) <= 5 for turn in turns)
    drained = record_of(caplog, "subscription.drained").__dict__
    assert (drained["handled"], drained["acked"]) == (8, 8)
    names = list(dict.fromkeys(each.__dict__["event"] for each in caplog.records if each.name.startswith("lanelog.")))
    order = ["subscription.started", "lanes.acquired", "lanes.released", "subscription.drained", "subscription.stopped"]
    assert [name for name in names if name in order] == order


def test_an_end_that_takes_long_says_what_it_waits_for(
    lanelog_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Every five seconds, here sooner: a handler."""
    paced(lanelog_client, waited_seconds=0.1)
    gate = Gate()
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", gate)
    with gate:
        gate.reached()
        assert not subscription.stop(0.35)
    assert subscription.stop()
    said = events(caplog, "subscription.waited", logging.WARNING)
    assert len(said) >= 2
    assert "waits_for='handlers, or pulled messages that are not settled' running=1 lanes=1" in said[0]


@pytest.mark.thorough
def test_an_end_without_the_database_says_so(private_server: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    """After Ctrl-C, the terminal says that the end waits for the database."""
    with paced(lanelog.connect(private_server.url), waited_seconds=0.1) as client:
        client.migrate()
        client.publish("t", "k", b"1")
        subscription = client.subscribe("t", "g", accept)
        eventually(lambda: subscription.stats().acked == 1)
        private_server.kill()
        assert not subscription.stop(2)
        assert "waits_for='the database, which does not answer'" in events(caplog, "subscription.waited")[-1]
        private_server.restart()
    assert subscription.state == "stopped"


HOLDS = """
import sys, threading, lanelog
with lanelog.connect(sys.argv[1]) as client:
    @client.subscriber("t", "g")
    def handle(message):
        print("held", flush=True)
        threading.Event().wait(60)
    client.run()
"""


@pytest.mark.thorough
def test_a_second_ctrl_c_ends_without_a_traceback(lanelog_client: Client, lanelog_url: str) -> None:
    """In a script, in a `with` block of its client, and with a handler that goes on: exit status 130."""
    lanelog_client.publish("t", "k", b"1")
    command = [sys.executable, "-c", HOLDS, lanelog_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
        try:
            assert script.stdout.readline() == "held\n"
            script.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                script.wait(1.5)  # it drains
            script.send_signal(signal.SIGINT)
            _, stderr = script.communicate(timeout=15)
        finally:
            script.kill()
    assert script.returncode == 128 + signal.SIGINT
    assert "Traceback" not in stderr
