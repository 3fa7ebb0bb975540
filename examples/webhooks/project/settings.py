"""The settings: the database of LANELOG_URL, and the other system's address in WEBHOOK_URL."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

import pymysql

pymysql.install_as_MySQLdb()  # the driver that lanelog has brought

url = urlsplit(os.environ["LANELOG_URL"])  # mysql://user:password@host:3306/database
INSTALLED_APPS = ["lanelog.contrib.django", "catalog"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": unquote(url.path.removeprefix("/")),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname,
        "PORT": url.port or 3306,
        "OPTIONS": {"charset": "utf8mb4"},
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
WEBHOOK_URL = os.environ.get("WEBHOOK_URL", "http://127.0.0.1:9000/products")
