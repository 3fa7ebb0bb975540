"""A worker whose handler is that of docs/howto/orm.md for SQLAlchemy, or a publisher within a session's transaction."""

from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog


def publishes() -> None:
    """Publish by the page's example, in a session that is rolled back, and without a transaction."""
    exec(CONFIG["code"], names)  # noqa: S102 - the page's example
    with names["Session"](names["engine"]) as session:  # type: ignore[operator]
        client.publish("orders", "order-8", {"id": 8}, connection=session)
    try:
        client.publish("orders", "order-9", {"id": 9}, connection=names["engine"])
    except lanelog.ConfigurationError as error:
        say("refused", error=str(error))


listen()
say_what_is_logged()
with lanelog.connect(CONFIG["url"]) as client:
    url = CONFIG["url"].replace("mysql://", f"mysql+{CONFIG['driver']}://").replace("mysqlclient", "mysqldb")
    names = {"client": client, "url": url}
    if CONFIG.get("publishes"):
        publishes()
    else:
        exec(CONFIG["code"], names)  # noqa: S102 - the page's example
        say("ready")
        heard("finish").wait()
        if hasattr(names["Session"], "remove"):
            names["Session"].remove()
names["engine"].dispose()  # type: ignore[attr-defined]
