"""Any text as a URL, any text as a name: a valid value or ConfigurationError, and never a password that is shown."""

import logging
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lanelog
from lanelog._base.checks import check_name
from lanelog._base.payloads.codec import decode_payload, encode_payload
from lanelog._base.payloads.metadata import decode_metadata, encode_metadata
from lanelog._database.connection.driver import Driver
from lanelog._facts.engine.loop import loop_failed
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError

T = TypeVar("T")

SECRET = "hUnt3rZq7x"
"""What must not be shown; also as a part of a longer password."""

# Whatever a driver, a parser or a terminal might stumble over, more often than chance would bring it.
NASTY = "/?#@:&=%[]+;\\'\"` \t\n\x00\x7f\u00a0\u0301\u200f\u202e\u2028\ufeff\uff03\u2100\U0001f680é日"
STORABLE = st.text(st.characters(codec="utf-8", exclude_characters="\0"))

hostnames = st.from_regex(
    r"[a-z0-9]([a-z0-9_-]{0,20}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?){0,3}", fullmatch=True
)
hosts = st.one_of(hostnames, st.ip_addresses().map(str))
databases = STORABLE.filter(lambda name: 0 < len(name) <= 64 and name == name.strip())
paths = STORABLE.filter(bool)


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, str]:
    """A set of URL parameters that do not contradict each other."""
    found = draw(st.fixed_dictionaries({}, optional={"unix_socket": paths, "ssl_ca": paths, "ssl_cert": paths}))
    if "ssl_cert" in found and draw(st.booleans()):
        found["ssl_key"] = draw(paths)
    if draw(st.booleans()):
        found["ssl"] = "true"
    tls = bool(found.keys() & {"ssl", "ssl_ca", "ssl_cert"})
    if tls and draw(st.booleans()):
        found["ssl_verify"] = draw(st.sampled_from(["true", "False", "NO", "on", "0"]))
    return dict(draw(st.permutations(sorted(found.items()))))


def written(user: str, password: str, host: str, port: int | None, database: str, options: dict[str, str]) -> str:
    """The URL of these parts, percent-encoded as the README asks."""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
    return (
        f"mysql://{quote(user, safe='')}:{quote(password, safe='')}@{f'[{host}]' if ':' in host else host}"
        f"{'' if port is None else f':{port}'}/{quote(database, safe='')}{f'?{query}' if query else ''}"
    )


def texts_of(error: BaseException) -> str:
    """Everything of an exception, its causes and its frames that an application might print: locals as well."""
    found = []
    chain: BaseException | None = error
    while chain is not None:
        own = chain.__traceback__.tb_next if chain.__traceback__ else None  # without the frame of the test itself
        shown = traceback.TracebackException(type(chain), chain, own, capture_locals=True)
        found += [str(chain), repr(chain), repr(chain.args), repr(vars(chain)), *shown.format()]
        chain = chain.__cause__ or chain.__context__
    return "\n".join(found)


def outcome(function: Callable[..., T], *args: object) -> tuple[T | None, ConfigurationError | None]:
    """What a call gives, or how it is refused; any other exception passes through."""
    try:
        return function(*args), None
    except ConfigurationError as refused:
        return None, refused


def storable(text: str) -> bool:
    """Whether a text can be UTF-8: it has no lone surrogates."""
    return text.encode("utf-8", "ignore").decode() == text


def printed(error: BaseException | None) -> str:
    """An error as an application prints it."""
    return "" if error is None else f"{error} {error!r} {''.join(traceback.format_exception(error))}"


def shown_in(text: str, *secrets: str) -> list[str]:
    """Which of the secrets stand in a text, as they are or percent-encoded."""
    return [secret for secret in secrets if secret in text or quote(secret, safe="") in text]


class TestUrls:
    """ConnectConfig.from_url and lanelog.connect."""

    @pytest.mark.thorough
    @given(STORABLE, STORABLE, hosts, st.none() | st.integers(1, 65_535), databases, parameters())
    @example("u", "p", "::ffff:10.0.0.1", 3306, "d", {})
    def test_every_well_formed_url_is_understood(
        self, user: str, password: str, host: str, port: int | None, database: str, options: dict[str, str]
    ) -> None:
        """Each part lands in its field, whatever characters it has; safe_url leads back, without the password."""
        config = ConnectConfig.from_url(written(user, password, host, port, database, options))
        assert (config.user, config.password, config.host, config.port) == (user, password, host, port or 3306)
        assert config.database == database
        for name in ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key"):
            assert getattr(config, name) == options.get(name)
        assert config.ssl is ("ssl" in options)
        assert config.ssl_verify is (options.get("ssl_verify", "true") in {"true", "on"})
        safe = ConnectConfig.from_url(config.safe_url())
        assert safe == attrs.evolve(config, password="")

    @given(st.text(max_size=8), st.text(max_size=8), hosts, databases, parameters())
    def test_no_object_shows_the_password(
        self, before: str, after: str, host: str, database: str, options: dict[str, str]
    ) -> None:
        """Configuration, client and driver show no part of it in repr, str or safe_url."""
        password = f"{before}{SECRET}{after}".replace("\0", "").encode("utf-8", "replace").decode()
        url = written("ann", password, host, None, database, options)
        with lanelog.connect(url) as client:
            config = client.config
            assert config.password == password
            things: list[object] = [client, config, client._database, client._publisher, Driver(config)]
            for thing in things:
                assert not shown_in(f"{thing!r} {thing} {config.safe_url()}", SECRET, password or SECRET)
        assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - it is the password's way to a child process

    @given(st.data())
    def test_every_garbled_url_is_taken_or_refused(self, data: st.DataObject) -> None:
        """Up to four characters inserted, lost or replaced: a configuration or ConfigurationError; nothing is shown."""
        options = data.draw(parameters())
        url = written("ann", SECRET, data.draw(hosts), data.draw(st.none() | st.integers(1, 65_535)), "jobs", options)
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(url) - 1))
            lost = data.draw(st.integers(0, 1))
            url = url[:place] + data.draw(st.text(NASTY, max_size=2)) + url[place + lost :]
        config, refused = outcome(ConnectConfig.from_url, url)
        if refused is not None:
            assert not shown_in(texts_of(refused), SECRET)
        elif config is not None and SECRET in config.password:  # with its colon lost it is a part of the user's name
            assert not shown_in(repr(config) + config.safe_url(), SECRET)

    @given(st.one_of(st.text(), st.text(NASTY), st.text().map(lambda text: f"mysql://{text}")))
    @example("mysql://u:p@h:" + "9" * 5000 + "/d")
    @example("mysql://u:p@[fe80::1%25eth0]:3306/d")
    @example("mysql://u:p@[v1.x]/d")
    @example("mysql://u:p@[::1]x:3306/d")
    @example("mysql://u:p@h:٣٣٠٦/d")
    @example("mysql://u:p@h/d?" + "&".join(f"ssl_ca={n}" for n in range(2000)))
    @example("mysql://u:p@h/d?" + "a" * 100_000)
    @example("mysql://" + "u" * 100_000 + ":p@h/d")
    @example("mysql://u:p@" + "h" * 100_000 + "/d")
    @example("mysql://u:p@h/d?&")
    @example("mysql://u:p@h/d?=")
    @example("mysql://u:p@h/d?ssl=true;ssl_ca=/x")
    @example("mysql://\ud800:p@h/d")
    @example("mysql:///d")
    @example("mysql://:@/d")
    def test_any_text_is_taken_or_refused(self, text: str) -> None:
        """Never another exception, and one line to read."""
        config, refused = outcome(ConnectConfig.from_url, text)
        if config is not None:
            assert ConnectConfig.from_url(config.safe_url()).host == config.host
        else:
            assert "\n" not in str(refused)

    @pytest.mark.parametrize(
        "url",
        [
            "mysql://u:{}@h",
            "mysql://u:{}@h:x/d",
            "mysql://u:{}%ff@h/d",
            "mysql://u:{}%00@h/d",
            "mysql://u:{}@h/d?ssl_key=/k",
            "mysql://u:{}@h/d?ssl_verify=false",
            "mysql://u:{}@h/d?pool_size=1",
            "mysql://u:{}@h/" + "d" * 65,
            "mysql://u:1/{}@h/d",
            "http://u:{}@h/d",
        ],
    )
    def test_a_refused_url_is_in_no_local_of_the_librarys_frames(self, url: str) -> None:
        """Error trackers record the locals of every frame: the library's own have neither URL nor password."""
        with pytest.raises(ConfigurationError) as raised:
            lanelog.connect(url.format(SECRET))
        assert not shown_in(texts_of(raised.value), SECRET)

    @pytest.mark.parametrize("option", [{"pool_size": 0}, {"driver": "x"}, {"pool_sise": 3}, {"read_timeout": "1"}])
    def test_a_refused_option_does_not_show_the_url(self, option: dict[str, object]) -> None:
        """The URL is fine, what stands beside it is not; nothing of the URL is in the error."""
        with pytest.raises(ConfigurationError) as raised:
            lanelog.connect(f"mysql://u:{SECRET}@h/d", **option)
        assert not shown_in(texts_of(raised.value), SECRET)


class TestTexts:
    """Names, payloads, metadata and log lines."""

    @given(st.text(), st.sampled_from(["topic", "key", "group", "id"]))
    def test_names_stay_as_they_are(self, text: str, kind: str) -> None:
        """A name is neither normalised nor trimmed nor folded: it is taken as it is, or refused in one line."""
        name, refused = outcome(check_name, kind, text)
        assert name in (None, text)
        assert refused is None or (str(refused).startswith(kind) and str(refused).isprintable())

    @given(st.text(), st.dictionaries(st.text(), st.text()))
    def test_what_is_published_comes_back_or_is_refused_without_being_quoted(
        self, text: str, metadata: dict[str, str]
    ) -> None:
        """As text, inside JSON and as metadata, only lone surrogates cannot be stored."""
        for value in (SECRET + text, [SECRET + text], {SECRET + text: 1}):
            encoded, refused = outcome(encode_payload, value)
            assert (refused is None) is storable(text)
            if encoded is not None:
                assert decode_payload(*encoded, None) == value
            assert SECRET not in printed(refused)
        metadata["m"] = SECRET
        kept, refused = outcome(encode_metadata, metadata)
        assert (refused is None) is all(storable(each) for pair in metadata.items() for each in pair)
        assert kept is None or decode_metadata(kept) == metadata
        assert SECRET not in printed(refused)

    @given(st.text(), st.text())
    def test_one_event_is_one_line(self, key: str, value: str) -> None:
        """No line break, escape or lone surrogate of a name, an error or a reason reaches the log."""
        lines: list[str] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        logger, keep = logging.getLogger("lanelog"), Keep()
        logger.addHandler(keep)
        try:
            loop_failed(loop=key, error=ValueError(value), retriable=False, exc_info=None)
        finally:
            logger.removeHandler(keep)
        (line,) = lines
        assert line.isprintable()
