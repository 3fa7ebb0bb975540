"""The settings of a connection: the URL, the time-outs, the size of the pool.

Opens nothing, and reads LANELOG_URL only when there is no URL. The password stands in no repr, URL, error or traceback,
even if the URL is malformed.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from attrs import evolve, field, frozen

from lanelog._base.addresses import Address, HostTokens, address_option, networks_option
from lanelog._base.checks import boolean, check_middleware, check_options, duration, integer, seconds
from lanelog._base.payloads.codec import Codec, codec_option
from lanelog.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from urllib.parse import SplitResult

    from attrs import Attribute

    from lanelog._base.addresses import Network, UdpAddress

URL_VARIABLE: Final = "LANELOG_URL"
DRIVERS: Final = ("pymysql", "mysqlclient")
LIVENESS: Final = ("lock", "lease")

_FORM = "mysql://user:password@host:3306/database"
_HOSTS = "the URL must name a host before and behind each comma: write mysql://app@db-1,db-2:3307/shop"
_SCHEMES: Final = {
    "mysql": None,
    "mariadb": None,
    "mysql+pymysql": "pymysql",
    "mariadb+pymysql": "pymysql",
    "mysql+mysqldb": "mysqlclient",
    "mariadb+mysqldb": "mysqlclient",
}
"""The allowed schemes, and the driver that each names. SQLAlchemy calls mysqlclient by its module, MySQLdb."""

_CHARSET = "utf8mb4"
_PARAMETERS = ("unix_socket", "ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify", "liveness", "charset")
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_DATABASE_MAX = 64
PAYLOAD_MAX = 512 * 1024 * 1024
"""Bytes. A payload travels as hex, and no packet is larger than 1 GiB."""
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")
_TIMEOUT_MAX = 31_536_000.0  # PyMySQL's own bound


def _text(_: Any, attribute: Attribute[Any], value: object) -> str:
    # No message quotes the value: one of the fields is the password.
    if not isinstance(value, str):
        raise ConfigurationError(f"{attribute.name} must be a str, not {type(value).__name__}")
    if _UNUSABLE.search(value):
        raise ConfigurationError(f"{attribute.name} must not contain NUL characters or lone surrogates")
    return value


def _password(instance: Any, attribute: Attribute[Any], value: object) -> None:
    if not callable(value) and not isinstance(value, HostTokens):
        if not isinstance(value, str):
            raise ConfigurationError(
                f"password must be a str or a function that returns one, not {type(value).__name__}"
            )
        _text(instance, attribute, value)


def _path(instance: Any, attribute: Attribute[Any], value: object) -> None:
    if value is None:
        return
    _text(instance, attribute, value)
    if not value:
        raise ConfigurationError(f"{attribute.name} must be a path, not empty")


def _database(instance: Any, attribute: Attribute[Any], value: object) -> None:
    name = _text(instance, attribute, value)
    if not 0 < len(name) <= _DATABASE_MAX or name != name.strip():
        raise ConfigurationError(
            f"the database name must have 1 to {_DATABASE_MAX} characters and no white space around it: write {_FORM}"
        )


def _driver(_: Any, __: Attribute[Any], value: object) -> None:
    if value not in DRIVERS:
        raise ConfigurationError(f"driver must be one of {', '.join(DRIVERS)}, not {value!r}")


def _liveness(_: Any, __: Attribute[Any], value: object) -> None:
    if value not in LIVENESS:
        raise ConfigurationError(f"liveness must be one of {', '.join(LIVENESS)}, not {value!r}")


def _middleware(value: object) -> tuple[Callable[..., object], ...]:
    return check_middleware(value, "publication")


@frozen(kw_only=True)
class ConnectConfig:
    """Where the database is, and how long its answers may take. Durations are seconds.

    If `tls` is true, the server's certificate and name are verified against `ssl_ca` or the system's authorities,
    unless `ssl_verify` is False.
    """

    host: str = field(default="127.0.0.1", validator=_text)
    port: int = field(default=3306, validator=integer(least=1, most=65_535))
    others: tuple[Address, ...] = ()
    """The hosts behind the first one in the URL. One of all is the primary."""
    user: str = field(default="", validator=_text)
    password: str | Callable[[], str] | HostTokens = field(default="", repr=False, validator=_password)
    database: str = field(validator=_database)
    unix_socket: str | None = field(default=None, validator=_path)
    ssl: bool = field(default=False, validator=boolean)
    ssl_ca: str | None = field(default=None, validator=_path)
    ssl_cert: str | None = field(default=None, validator=_path)
    ssl_key: str | None = field(default=None, validator=_path)
    ssl_verify: bool = field(default=True, validator=boolean)
    pool_size: int = field(default=8, validator=integer(least=2, most=10_000))
    publish_timeout: float = field(default=30.0, converter=seconds, validator=duration(above=True))
    lane_idle_purge: float = field(default=600.0, converter=seconds, validator=duration())
    max_payload_bytes: int = field(default=1_048_576, validator=integer(least=1, most=PAYLOAD_MAX))
    connect_timeout: float = field(default=5.0, converter=seconds, validator=duration(above=True, most=_TIMEOUT_MAX))
    read_timeout: float = field(default=30.0, converter=seconds, validator=duration(above=True, most=_TIMEOUT_MAX))
    driver: str = field(default="pymysql", validator=_driver)
    liveness: str = field(default="lock", validator=_liveness)
    wake: bool = field(default=True, validator=boolean)
    wake_address: UdpAddress | None = field(default=None, converter=address_option)
    wake_networks: tuple[Network, ...] = field(default=(), converter=networks_option)
    codec: Codec | None = field(default=None, repr=False, eq=False, validator=codec_option)
    middleware: tuple[Callable[..., object], ...] = field(default=(), converter=_middleware, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.ssl_key is not None and self.ssl_cert is None:
            raise ConfigurationError("ssl_key needs ssl_cert: give the certificate that the key belongs to")
        if isinstance(self.password, HostTokens) and not self.tls:
            raise ConfigurationError("a token travels as it is: add ssl=true or ssl_ca=… to the URL")
        if not self.ssl_verify and not self.tls:
            raise ConfigurationError("ssl_verify=false without TLS has no meaning: add ssl=true, or leave it out")
        if self.others and self.unix_socket is not None:
            raise ConfigurationError("unix_socket leads to one server: leave it out, or all hosts but one")
        if len(set(self.addresses)) <= len(self.others):
            raise ConfigurationError("the URL names one host twice: name each once")
        for option in ("wake_address", "wake_networks"):
            if getattr(self, option) and not self.wake:
                raise ConfigurationError(f"{option} is for hints, and wake=False disables them: leave one of them out")

    @property
    def by_lock(self) -> bool:
        """Whether sessions may take locks of the server (`GET_LOCK`)."""
        return self.liveness == "lock"

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted: `ssl` is true, or `ssl_ca` or `ssl_cert` was given."""
        return self.ssl or self.ssl_ca is not None or self.ssl_cert is not None

    @classmethod
    def from_url(cls, url: str | None = None, **options: Any) -> ConnectConfig:
        """Read a URL.

        User, password, database and parameters are percent-decoded. A URL of SQLAlchemy is valid, too. Its
        `mysql+pymysql://` or `mysql+mysqldb://` (or `mariadb+…`) chooses the driver, unless `driver` is among the
        options. Its `charset=utf8mb4` has no effect, because lanelog always uses that.

        Args:
            url: `mysql://user:password@host:3306/database?unix_socket=…&ssl_ca=…`. None: the URL in LANELOG_URL.
                Several hosts: `mysql://app@db-1,db-2:3307/shop`. The one that is the primary is used.
            **options: The keyword arguments of `lanelog.connect`.

        Raises:
            ConfigurationError: The URL or an option is not valid. The error quotes no part of the URL, except the name
                of a parameter.
        """
        try:
            return cls(**{**_read(url, options), **options})
        except ConfigurationError as exc:
            # Error trackers show the locals of its frames, and URL and password are among them.
            refused = exc.with_traceback(None)
        del url, options
        raise refused

    def login_password(self) -> str:
        """Return the password for a login that begins now. A function is called for each.

        Raises:
            ConfigurationError: The function has returned something else than a str.
            DatabaseError: The function has raised. It is retriable, because what gives passwords may be away, too.
        """
        if isinstance(self.password, str):
            return self.password
        try:
            found: object = (
                self.password.token(self.host, self.port, self.user)
                if isinstance(self.password, HostTokens)
                else self.password()
            )
        except Exception as exc:  # its text may quote what no log should have
            why = f"no login without a password, and its function has failed ({type(exc).__name__})"
            raise DatabaseError(why, retriable=True) from exc
        kind, usable = type(found).__name__, isinstance(found, str) and not _UNUSABLE.search(found)
        if usable:
            return str(found)
        del found  # error trackers show the locals of each frame
        raise ConfigurationError(
            f"the function of password= must return a str without NUL characters and lone surrogates (got: {kind})"
        )

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All hosts, in the order of the URL."""
        return (Address(self.host, self.port), *self.others)

    def at(self, address: Address) -> ConnectConfig:
        """Return the settings for one of the hosts alone."""
        return evolve(self, host=address.host, port=address.port, others=()) if self.others else self

    def address(self) -> str:
        """Return where connections go, for people: `127.0.0.1:3306`, several with commas, or the path of the socket."""
        return self.unix_socket or ",".join(map(str, self.addresses))

    def safe_url(self) -> str:
        """Return the URL without the password, for people: `mysql://root@127.0.0.1:3306/jobs`."""
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        hosts = ",".join(map(str, self.addresses))
        parameters = [
            f"{name}={quote(str(value).lower() if isinstance(value, bool) else value, safe='/')}"
            for name in _PARAMETERS
            if name != "charset" and (value := getattr(self, name)) != getattr(_DEFAULTS, name)
        ]
        query = f"?{'&'.join(parameters)}" if parameters else ""
        return f"mysql://{user}{hosts}/{quote(self.database, safe='')}{query}"


_DEFAULTS = ConnectConfig(database="any")
_OPTIONS = (
    "password",
    "pool_size",
    "publish_timeout",
    "lane_idle_purge",
    "max_payload_bytes",
    "connect_timeout",
    "read_timeout",
    "driver",
    "liveness",
    "wake",
    "wake_address",
    "wake_networks",
    "codec",
    "middleware",
)


def _read(url: object, options: Iterable[str]) -> dict[str, Any]:
    check_options("option of connect()", options, _OPTIONS)
    if url is None:
        url = os.environ.get(URL_VARIABLE)
        if not url:
            raise ConfigurationError(f"no URL: pass one, or set {URL_VARIABLE}={_FORM}")
    found = _parse(url)
    if found.get("password") and "password" in options:
        raise ConfigurationError("the password is in the URL and in password=: leave one of them out")
    return found


def _parse(url: object) -> dict[str, Any]:
    """Take the URL apart. Every error is raised outside of an `except`: otherwise its context would carry the URL."""
    if not isinstance(url, str):
        raise ConfigurationError(f"the URL must be a str, not {type(url).__name__}: write {_FORM}")
    if not url.isprintable() or " " in url:
        raise ConfigurationError("the URL must not contain white space or control characters: percent-encode them")
    url, others = _further_hosts(url)
    parts = _split(url)
    if parts is None or not url.lower().startswith(f"{parts.scheme}://") or parts.scheme not in _SCHEMES:
        if url.lower().startswith(("mysql+", "mariadb+")):
            raise ConfigurationError(
                "the URL names a driver that lanelog does not work with: write mysql+pymysql://, mysql+mysqldb:// "
                "(that is mysqlclient), or mysql:// without a driver"
            )
        raise ConfigurationError(f"the URL must begin with mysql:// or mariadb://: write {_FORM}")
    # A "/", "?" or "#" in the password ends the authority early and leaves its "@" behind.
    if "@" in parts.path or "@" in parts.query or "#" in url:
        raise ConfigurationError('the URL is ambiguous: percent-encode "/", "?", "#" and "@" within its parts')
    found: dict[str, Any] = {
        **_place(parts, others),
        "database": _database_of(parts),
        **_parameters(parts.query),
    }
    driver = _SCHEMES[parts.scheme]
    if driver is not None:
        found["driver"] = driver
    for name, encoded in (("user", parts.username), ("password", parts.password)):
        if encoded is not None:
            found[name] = _decoded(f"the {name} in the URL", encoded)
    return found


def _further_hosts(url: str) -> tuple[str, list[str]]:
    """Return the URL with its first host alone, and the texts of the others."""
    begin = url.find("//") + 2
    end = next((at for at in range(begin, len(url)) if url[at] in "/?#"), len(url))
    begin = max(begin, url.rfind("@", begin, end) + 1)
    first, *others = url[begin:end].split(",")
    return url[:begin] + first + url[end:], others


def _place(parts: SplitResult, others: list[str]) -> dict[str, Any]:
    """Return the options that say where the database is."""
    found: dict[str, Any] = {"port": _port(parts)}
    if parts.hostname:
        found["host"] = parts.hostname
    elif others:
        raise ConfigurationError(_HOSTS)
    if others:
        found["others"] = tuple(map(_address, others))
    return found


def _address(text: str) -> Address:
    parts = _split(f"//{text}")
    if parts is None or not parts.hostname:
        raise ConfigurationError(_HOSTS)
    return Address(parts.hostname, _port(parts))


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port is None and not parts.netloc.endswith(":"):
        return _DEFAULTS.port
    if not port:
        raise ConfigurationError(f"the URL's port must be a number from 1 to 65535: write {_FORM}")
    return port


def _database_of(parts: SplitResult) -> str:
    name = parts.path.removeprefix("/")
    if not name or "/" in name:
        raise ConfigurationError(f"the URL must name one database: write {_FORM}")
    return _decoded("the database in the URL", name)


def _decoded(what: str, text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    raise ConfigurationError(f"{what} is not valid UTF-8 after percent-decoding")


def _parameters(query: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in query.split("&") if query else ():
        name, separator, encoded = pair.partition("=")
        check_options("URL parameter", [name], _PARAMETERS)
        value = _decoded(f"the URL parameter {name}", encoded)
        if not separator or not value or name in found:
            raise ConfigurationError(f"the URL parameter {name} must be given once, as {name}=value")
        if name in {"ssl", "ssl_verify"}:
            if value.lower() not in _BOOLEANS:
                raise ConfigurationError(f"the URL parameter {name} must be true or false")
            found[name] = _BOOLEANS[value.lower()]
        else:
            found[name] = value
    if found.get("ssl") is False and not found.keys().isdisjoint(("ssl_ca", "ssl_cert")):
        raise ConfigurationError("ssl=false is without TLS, and ssl_ca and ssl_cert are for TLS: leave one of them out")
    if str(found.pop("charset", _CHARSET)).lower() != _CHARSET:
        raise ConfigurationError(
            f"the URL parameter charset must be {_CHARSET}, or left out: the tables hold any text, and so must the line"
        )
    return found
