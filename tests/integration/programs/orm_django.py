"""A worker whose handler is that of docs/howto/orm.md for Django, or a publisher within `atomic()`."""

from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog
from lanelog.config import ConnectConfig

if CONFIG["driver"] == "pymysql":
    import pymysql

    pymysql.install_as_MySQLdb()  # type: ignore[no-untyped-call]

import django
from django.conf import settings
from django.db import connection, models, transaction

config = ConnectConfig.from_url(CONFIG["url"])
settings.configure(
    USE_TZ=True,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.mysql",
            "NAME": config.database,
            "USER": config.user,
            "PASSWORD": config.password or "",
            "HOST": config.unix_socket or config.host,
            "PORT": config.port,
            "OPTIONS": {"charset": "utf8mb4"},
            **CONFIG.get("settings", {}),
        }
    },
)
django.setup()


class Order(models.Model):  # noqa: DJ008 - never shown
    state = models.CharField(max_length=16)
    bills = models.IntegerField(default=0)

    class Meta:  # noqa: D106 - Django's
        app_label = "shop"
        db_table = "orders"


def publishes() -> None:
    """Publish by the page's example, and outside of `atomic()`."""
    exec(CONFIG["code"], names)  # noqa: S102 - the page's example
    with transaction.atomic():
        client.publish("orders", "order-8", {"id": 8}, connection=connection)
        transaction.set_rollback(True)
    try:
        client.publish("orders", "order-9", {"id": 9}, connection=connection)
    except lanelog.ConfigurationError as error:
        say("refused", error=str(error))


listen()
say_what_is_logged()
with lanelog.connect(CONFIG["url"]) as client:
    names = {"client": client, "Order": Order, "say": say}
    if CONFIG.get("publishes"):
        publishes()
    else:
        exec(CONFIG["code"], names)  # noqa: S102 - the page's example
        say("ready")
        heard("finish").wait()
connection.close()
