import math
import traceback
from datetime import timedelta
from typing import Any

import boto3
import pytest

from lanelog.config import ConnectConfig
from lanelog.contrib.aws import IamTokens
from lanelog.errors import ConfigurationError
from support.refusing import refused

URL = "mysql://root@127.0.0.1:3306/jobs"


class TestUrl:
    """ConnectConfig.from_url."""

    def test_a_full_url(self) -> None:
        """Every part lands in its field, percent-decoded."""
        config = ConnectConfig.from_url(
            "mysql://us%40er:p%2Fa%3Fs%23s%3A%25@db.example:3307/jobs%2D1"
            "?unix_socket=/run/my%26sql.sock&ssl_ca=/ca.pem&ssl_cert=/c.pem&ssl_key=/k.pem&ssl_verify=false"
        )
        assert (config.user, config.password) == ("us@er", "p/a?s#s:%")
        assert (config.host, config.port, config.database) == ("db.example", 3307, "jobs-1")
        assert config.unix_socket == "/run/my&sql.sock"
        assert (config.ssl_ca, config.ssl_cert, config.ssl_key) == ("/ca.pem", "/c.pem", "/k.pem")
        assert (config.tls, config.ssl_verify) == (True, False)

    def test_a_short_url(self) -> None:
        """Missing parts take the defaults, which the README's table pins; there is no TLS."""
        config = ConnectConfig.from_url("mysql://root@localhost/jobs")
        assert config == ConnectConfig(host="localhost", port=3306, user="root", password="", database="jobs")
        assert (config.tls, config.ssl_verify) == (False, True)

    def test_mariadb_is_the_same(self) -> None:
        """The two schemes name the same protocol, in any case."""
        assert ConnectConfig.from_url("MariaDB://root@127.0.0.1:3306/jobs") == ConnectConfig.from_url(URL)

    @pytest.mark.parametrize(
        ("scheme", "driver"),
        [
            ("mysql", "pymysql"),
            ("mariadb", "pymysql"),
            ("mysql+pymysql", "pymysql"),
            ("MariaDB+PyMySQL", "pymysql"),
            ("mysql+mysqldb", "mysqlclient"),
            ("mariadb+mysqldb", "mysqlclient"),
        ],
    )
    def test_the_url_of_sqlalchemy_serves_as_well(self, scheme: str, driver: str) -> None:
        """An application has one DATABASE_URL: its driver is used, unless `driver` says another one."""
        url = URL.replace("mysql", scheme, 1) + "?charset=UTF8MB4"
        assert ConnectConfig.from_url(url) == ConnectConfig.from_url(URL, driver=driver)
        assert ConnectConfig.from_url(url).safe_url() == URL
        assert ConnectConfig.from_url(url, driver="pymysql").driver == "pymysql"
        assert ConnectConfig.from_url(url, driver="mysqlclient").driver == "mysqlclient"

    def test_a_socket_needs_no_host(self) -> None:
        """An empty host is the local one."""
        config = ConnectConfig.from_url("mysql://root@/jobs?unix_socket=/run/mysqld.sock")
        assert (config.host, config.unix_socket) == ("127.0.0.1", "/run/mysqld.sock")

    def test_an_at_sign_in_the_password_is_understood(self) -> None:
        """The last @ of the authority separates the host, as everywhere."""
        assert ConnectConfig.from_url("mysql://u:p@ss@host/db").password == "p@ss"

    def test_none_reads_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """LANELOG_URL is read at the call, not at import."""
        monkeypatch.setenv("LANELOG_URL", URL)
        assert ConnectConfig.from_url(None) == ConnectConfig.from_url(URL)
        monkeypatch.setenv("LANELOG_URL", "mysql://root@other/jobs")
        assert ConnectConfig.from_url().host == "other"

    @pytest.mark.parametrize("value", [None, ""])
    def test_without_any_url(self, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
        """The error says what to set."""
        monkeypatch.delenv("LANELOG_URL", raising=False)
        if value is not None:
            monkeypatch.setenv("LANELOG_URL", value)
        assert "set LANELOG_URL=mysql://user:password@host:3306/database" in refused(ConnectConfig.from_url, None)

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("postgresql://u:hunter2@host/db", "must begin with mysql:// or mariadb://"),
            ("mysql+asyncmy://u:hunter2@host/db", "a driver that lanelog does not work with: write mysql+pymysql://"),
            ("mariadb+mariadbconnector://u:hunter2@host/db", "a driver that lanelog does not work with"),
            ("mysql+://u:hunter2@host/db", "a driver that lanelog does not work with"),
            ("postgresql+pymysql://u:hunter2@host/db", "must begin with mysql:// or mariadb://"),
            ("mysql+pymysql:u:hunter2@host/db", "a driver that lanelog does not work with"),
            ("mysql://u:hunter2@host/db?charset=latin1", "charset must be utf8mb4, or left out"),
            ("mysql://u:hunter2@host/db?charset=utf8mb4&charset=utf8mb4", "given once, as charset=value"),
            ("mysql://u:hunter2@host/db?charset=", "as charset=value"),
            ("u:hunter2@host/db", "must begin with mysql://"),
            ("mysql:u:hunter2@host/db", "must begin with mysql://"),
            ("", "must begin with mysql://"),
            ("mysql://u:hunter2@host", "must name one database: write mysql://"),
            ("mysql://u:hunter2@host/", "must name one database"),
            ("mysql://u:hunter2@host/a/b", "must name one database"),
            ("mysql://u:hunter2@host/%20db", "no white space around it"),
            ("mysql://u:hunter2@host/" + "d" * 65, "1 to 64 characters"),
            ("mysql://u:hunter2@host/d%00b", "NUL"),
            ("mysql://u:hunter2@host:/db", "port must be a number"),
            ("mysql://u:hunter2@host:0/db", "port must be a number"),
            ("mysql://u:hunter2@host:65536/db", "port must be a number"),
            ("mysql://u:hunter2@host:x/db", "port must be a number"),
            ("mysql://u:hunter2/db", "port must be a number"),
            ("mysql://u:hunter2/x@host/db", "percent-encode"),
            ("mysql://u:17?hunter2@host/db", "percent-encode"),
            ("mysql://u:17#hunter2@host/db", "percent-encode"),
            ("mysql://u:17/hunter2@host/db", "percent-encode"),
            ("mysql://u:hunter2@host/db#part", "percent-encode"),
            ("mysql://u:hunter2@[::1/db", "must begin with"),
            ("mysql://u:hunter2@[zz]/db", "must begin with"),
            ("mysql://u:hunter2\u2100@host/db", "must begin with"),
            ("mysql://u:hunter2@host/db\n", "white space or control"),
            ("mysql://u:hunt er2@host/db", "white space or control"),
            ("mysql://u:hunter2%ff@host/db", "the password in the URL is not valid UTF-8"),
            ("mysql://u:hunter2%00@host/db", "password must not contain NUL"),
            ("mysql://u:hunter2@host/db?ssl_caa=/x", "unknown URL parameter 'ssl_caa'; did you mean 'ssl_ca'?"),
            ("mysql://u:hunter2@host/db?zzz=1", "known are charset, liveness, ssl"),
            ("mysql://u:hunter2@host/db?pool_size=4", "unknown URL parameter 'pool_size'"),
            ("mysql://u:hunter2@host/db?ssl_ca", "as ssl_ca=value"),
            ("mysql://u:hunter2@host/db?ssl_ca=", "as ssl_ca=value"),
            ("mysql://u:hunter2@host/db?ssl_ca=/a&ssl_ca=/b", "given once"),
            ("mysql://u:hunter2@host/db?ssl=true&ssl_verify=maybe", "ssl_verify must be true or false"),
            ("mysql://u:hunter2@host/db?ssl_verify=false", "ssl_verify=false without TLS"),
            ("mysql://u:hunter2@host/db?ssl_key=/k", "ssl_key needs ssl_cert"),
            ("mysql://u:hunter2@host/db?ssl=false&ssl_ca=/ca", "ssl=false is without TLS, and ssl_ca and ssl_cert are"),
            (b"mysql://u:hunter2@host/db", "must be a str, not bytes"),
        ],
    )
    def test_a_wrong_url_is_explained_without_quoting_it(self, url: object, reason: str) -> None:
        """One line says what to write; the password is in no part of the error, its causes or its traceback."""
        with pytest.raises(ConfigurationError) as caught:
            ConnectConfig.from_url(url)  # type: ignore[arg-type]
        assert reason in str(caught.value)
        assert caught.value.__context__ is None
        # Not the frames: the source lines of this very test hold the URL.
        shown = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value)
        assert "hunter2" not in shown


class TestConnectOptions:
    """The keyword arguments of connect()."""

    def test_options_land_in_their_fields(self) -> None:
        """Every documented option is taken."""
        options: dict[str, Any] = {"pool_size": 3, "lane_idle_purge": 0, "max_payload_bytes": 10, "wake": False}
        options |= {"publish_timeout": 1.5, "connect_timeout": 2, "read_timeout": 20, "driver": "mysqlclient"}
        config = ConnectConfig.from_url(URL, **options)
        assert {name: getattr(config, name) for name in options} == options

    @pytest.mark.parametrize("option", ["publish_timeout", "lane_idle_purge", "connect_timeout", "read_timeout"])
    def test_durations_may_be_timedeltas(self, option: str) -> None:
        """A timedelta is kept as seconds."""
        given: dict[str, Any] = {option: timedelta(minutes=1, milliseconds=500)}
        assert getattr(ConnectConfig.from_url(URL, **given), option) == 60.5

    @pytest.mark.parametrize(
        ("option", "value", "reason"),
        [
            ("pool_size", 1, "pool_size must be 2 to"),
            ("pool_size", 2.0, "must be an int, not float"),
            ("pool_size", True, "must be an int, not bool"),
            ("pool_size", "8", "must be an int, not str"),
            ("publish_timeout", 0, "more than 0"),
            ("publish_timeout", True, "publish_timeout must be a number of seconds or a timedelta, not bool"),
            ("publish_timeout", math.nan, "finite number"),
            ("publish_timeout", math.inf, "finite number"),
            ("publish_timeout", 10**400, "too large"),
            ("publish_timeout", None, "not NoneType"),
            ("publish_timeout", timedelta(seconds=-1), "publish_timeout must be a finite number, more than 0"),
            ("connect_timeout", timedelta(days=366), "connect_timeout must be a finite number"),
            ("lane_idle_purge", -1, "at least 0"),
            ("max_payload_bytes", 0, "max_payload_bytes must be 1 to"),
            ("max_payload_bytes", 1 << 30, "max_payload_bytes must be 1 to"),
            ("connect_timeout", 0, "more than 0"),
            ("read_timeout", -math.inf, "finite number"),
            ("driver", "asyncmy", "driver must be one of pymysql, mysqlclient"),
            ("driver", None, "driver must be one of"),
            ("poolsize", 4, "unknown option of connect() 'poolsize'; did you mean 'pool_size'?"),
            ("password", b"hunter2", "password must be a str or a function that returns one, not bytes"),
        ],
    )
    def test_wrong_options_are_refused(self, option: str, value: object, reason: str) -> None:
        """Types and ranges are checked; a bool is no number."""
        text = refused(ConnectConfig.from_url, URL, **{option: value})
        assert reason in text
        assert "hunter2" not in text

    def test_tokens_of_a_host_are_asked_for_the_one_that_is_logged_in_to(self) -> None:
        """IAM signs host, port and user into a password. A server asks for it unencrypted, so TLS is enforced."""
        session = boto3.Session(aws_access_key_id="key", aws_secret_access_key="hunter2")  # boto3 asks nobody
        tokens = IamTokens(region="eu-central-1", session=session)
        text = refused(ConnectConfig.from_url, "mysql://app@db-1,db-2:3307/shop", password=tokens)
        assert text == "a token travels as it is: add ssl=true or ssl_ca=… to the URL"
        config = ConnectConfig.from_url("mysql://app@db-1,db-2:3307/shop?ssl=true", password=tokens)
        for address in config.addresses:
            given = config.at(address).login_password()
            assert given.startswith(f"{address}/?Action=connect&DBUser=app&")
            assert "X-Amz-Expires=900" in given
        assert "hunter2" not in repr(config) + repr(tokens)

    def test_a_password_is_given_once(self) -> None:
        """In the URL or as an option. An empty one in the URL is none."""
        text = refused(ConnectConfig.from_url, "mysql://root:hunter2@127.0.0.1/jobs", password="hunter2")
        assert "in the URL and in password=: leave one of them out" in text
        assert "hunter2" not in text
        config = ConnectConfig.from_url("mysql://root:@127.0.0.1/jobs", password=lambda: "hunter2")
        assert config.login_password() == "hunter2"
        assert "hunter2" not in repr(config)

    @pytest.mark.parametrize("field", ["host", "user", "password", "database", "unix_socket"])
    @pytest.mark.parametrize("value", [7, b"hunter2", "hunter2\0", "hunter2\ud800"])
    def test_texts_are_texts(self, field: str, value: object) -> None:
        """A field of the wrong type or with unusable characters is refused without being quoted."""
        text = refused(ConnectConfig, **{"database": "jobs", field: value})
        assert "hunter2" not in text

    def test_safe_url_shows_the_rest(self) -> None:
        """People see which server, database, socket and certificate."""
        url = "mysql://root@h:3306/jobs?unix_socket=/run/my.sock&ssl=true&ssl_ca=/ca.pem&ssl_verify=false"
        assert ConnectConfig.from_url(url).safe_url() == url

    @pytest.mark.parametrize("parameter", ["ssl=true", "ssl_ca=/ca.pem", "ssl_cert=/c.pem", "ssl=1", "ssl=ON"])
    def test_any_sign_of_tls_turns_it_on_verified(self, parameter: str) -> None:
        """A certificate authority alone is enough, and it is verified."""
        config = ConnectConfig.from_url(f"{URL}?{parameter}")
        assert (config.tls, config.ssl_verify) == (True, True)


def test_a_url_may_name_several_hosts() -> None:
    """Each has a port of its own, and the same account and database."""
    config = ConnectConfig.from_url("mysql://app:a%2Cb@db-1,db-2:3307,[::1]:3308/shop?ssl=true")
    assert [str(address) for address in config.addresses] == ["db-1:3306", "db-2:3307", "[::1]:3308"]
    assert (config.user, config.password, config.database, config.tls) == ("app", "a,b", "shop", True)
    assert config.safe_url() == "mysql://app@db-1:3306,db-2:3307,[::1]:3308/shop?ssl=true"
    assert config.address() == "db-1:3306,db-2:3307,[::1]:3308"
    alone = config.at(config.addresses[1])
    assert (alone.host, alone.port, alone.addresses, alone.password) == ("db-2", 3307, (config.addresses[1],), "a,b")


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("db-1,", "before and behind each comma"),
        (",db-2", "before and behind each comma"),
        ("db-1,,db-3", "before and behind each comma"),
        ("db-1,:3307", "before and behind each comma"),
        ("db-1,db-2:0", "port must be a number"),
        ("db-1:x,db-2", "port must be a number"),
        ("db-1,db-1:3306", "names one host twice"),
    ],
)
def test_hosts_that_cannot_be_read_are_refused(hosts: str, why: str) -> None:
    """A host that is missing by a slip would be found out at the next failover."""
    with pytest.raises(ConfigurationError, match=why):
        ConnectConfig.from_url(f"mysql://app:secret@{hosts}/shop")


def test_a_socket_leads_to_one_server() -> None:
    """A socket beside several hosts would leave all but one unused."""
    with pytest.raises(ConfigurationError, match="unix_socket leads to one server"):
        ConnectConfig.from_url("mysql://app@db-1,db-2/shop?unix_socket=/run/mysqld.sock")


def test_the_url_may_say_that_no_session_takes_locks() -> None:
    """Commands and Spark jobs have no other way to say it."""
    config = ConnectConfig.from_url("mysql://app@db/shop?liveness=lease")
    assert (config.by_lock, config.safe_url()) == (False, "mysql://app@db:3306/shop?liveness=lease")
    assert ConnectConfig.from_url("mysql://app@db/shop").by_lock
    with pytest.raises(ConfigurationError, match="liveness must be one of lock, lease"):
        ConnectConfig.from_url("mysql://app@db/shop?liveness=none")
