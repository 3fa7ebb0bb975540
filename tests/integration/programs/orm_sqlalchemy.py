"""A worker whose handler is that of docs/howto/orm.md for SQLAlchemy."""

from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog

listen()
say_what_is_logged()
with lanelog.connect(CONFIG["url"]) as client:
    url = CONFIG["url"].replace("mysql://", f"mysql+{CONFIG['driver']}://").replace("mysqlclient", "mysqldb")
    names = {"client": client, "url": url}
    exec(CONFIG["code"], names)  # noqa: S102 - the page's example
    say("ready")
    heard("finish").wait()
names["Session"].remove()  # type: ignore[attr-defined]
names["engine"].dispose()  # type: ignore[attr-defined]
