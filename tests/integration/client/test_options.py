"""Options in every form that is allowed, on a real server, and what is refused before anything is written."""

import threading
from datetime import timedelta

import pytest

import lanelog


def test_durations_may_be_timedeltas_everywhere(lanelog_client: lanelog.Client) -> None:
    """From publishing to closing; a retry may be a number of attempts, the first one included."""
    moment = timedelta(milliseconds=20)
    attempts: list[int] = []
    done = threading.Event()

    def handle(message: lanelog.Message) -> None:
        attempts.append(message.attempt)
        message.extend(timedelta(minutes=1))
        raise lanelog.Retry(moment)

    subscription = lanelog_client.subscribe(
        "orders",
        "billing",
        handle,
        retry=3,
        visibility_timeout=timedelta(seconds=30),
        poll_interval=moment,
        on_dead_letter=lambda _message, _error: done.set(),
    )
    receipt = lanelog_client.publish("orders", "ann", b"", delay=moment, ttl=timedelta(hours=1))
    assert receipt.offset == 0
    assert done.wait(30)
    assert attempts == [1, 2, 3]
    assert subscription.stop(timedelta(seconds=30))
    redriven = lanelog_client.admin.redrive("orders", "billing", all=True, delay=timedelta(hours=1), dry_run=True)
    assert (redriven.messages, redriven.delay) == (1, 3600.0)
    assert lanelog_client.schedule("n", "0 2 * * *", "jobs", "k", b"", ttl=timedelta(hours=1)).ttl == 3600.0
    assert list(lanelog_client.deliveries("orders", "nobody", start="latest", timeout=timedelta(seconds=0.1))) == []
    assert lanelog_client.close(timedelta(seconds=30))


@pytest.mark.parametrize("timeout", ["5", True])
def test_a_wrong_timeout_closes_nothing(lanelog_client: lanelog.Client, timeout: object) -> None:
    """A wrong value is refused first; a negative timeout does not wait, and None waits."""
    subscription = lanelog_client.subscribe("orders", "billing", print)
    for end in (subscription.stop, lanelog_client.close):
        with pytest.raises(lanelog.ConfigurationError, match="timeout must be a number of seconds or a timedelta"):
            end(timeout)  # type: ignore[arg-type]
    assert subscription.state == "running"
    subscription.stop(-1.0)
    assert lanelog_client.close(None)


@pytest.mark.parametrize("scheme", ["mysql+pymysql", "mariadb+pymysql"])
def test_the_url_of_sqlalchemy_connects(lanelog_url: str, scheme: str) -> None:
    """An application has one DATABASE_URL."""
    with lanelog.connect(f"{scheme}{lanelog_url.removeprefix('mysql')}?charset=utf8mb4") as client:
        client.ping()
        assert client.publish("orders", "ann", "größe").offset == 1
