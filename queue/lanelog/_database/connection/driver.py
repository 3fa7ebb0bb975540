"""Opens connections, and prepares them to behave alike on every server and with both drivers.

Of several hosts, opens them on the one that is the primary. Never pools, retries or interprets a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from copy import copy
from typing import Any, Final

from attrs import Factory, define, evolve, field, frozen

from lanelog._base.addresses import Address
from lanelog._database import codes
from lanelog._database.connection.awaited import AwaitedPackets
from lanelog._database.connection.login import CHARSET, COLLATION, Login, SecretText
from lanelog._database.server import primary, session_settings
from lanelog._database.server.choice import ChosenHost, HostChoice
from lanelog._database.server.incarnation import Incarnation, incarnation_of
from lanelog._database.server.server_facts import ServerFacts, refuse_imitation
from lanelog._database.translation import breaks_connection, translate
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError

SQL_MODE: Final = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
LOCK_WAIT_SECONDS: Final = 5
"""Seconds that a statement waits for a row lock. Shorter than a read time-out: after that the server would go on."""
SILENCE_SECONDS: Final = 15
"""Seconds after which the server drops a silent session. Otherwise a stopped process would hold its locks for hours."""
LATEST: Final = 2.0 * SILENCE_SECONDS
"""Seconds after which the server begins no statement that was sent on a connection since lost. It drops a session that
is silent, by its own steady clock, before the first byte and between the others. A server that was stopped runs the
statements that it had received, when it goes on."""

_UNLIMITED: Final = 2**64 - 1
# Global settings must not change what a statement means, and each of these can. Under a limit of two rows, for example,
# collection does not see the third group, and deletes messages that it has not read.
_MEANING: Final = {
    "sql_select_limit": _UNLIMITED,
    "max_join_size": _UNLIMITED,
    "sql_big_selects": 1,  # after max_join_size, which sets it
    "sql_safe_updates": 0,
    "sql_auto_is_null": 0,
    "unique_checks": 1,
    "foreign_key_checks": 1,
    "completion_type": 0,  # COMMIT begins no new transaction and ends no connection
    "max_sort_length": 4096,  # more bytes than any name has, so names are sorted whole
    "group_concat_max_len": 1 << 20,  # more bytes than any name has; MySQL's default is 1,024
}
_SETTINGS = (
    f"sql_mode = '{SQL_MODE}', innodb_lock_wait_timeout = {{lock_wait}}, wait_timeout = {SILENCE_SECONDS}, "
    f"net_read_timeout = {SILENCE_SECONDS}, "
    f"{', '.join(f'{name} = {value}' for name, value in _MEANING.items())}"
)
_SESSION = f"SET SESSION {_SETTINGS}, autocommit = {{autocommit}}"
# Before our last statements in a transaction that user code had, to undo its settings. (Not `timestamp`: hardened
# servers refuse every SET of it.)
# Autocommit is off already, unless user code has ended the transaction. Then ours are in another one, which is never
# committed.
_OURS_AGAIN = f"SET SESSION {_SETTINGS}, autocommit = 0, NAMES {CHARSET} COLLATE {COLLATION}"
# All settings of a new connection in one statement. In another database than the connection's the server refuses it:
# there is no autocommit 2.
_AS_NEW = (
    f"SET SESSION {_SETTINGS}, {{access}}_isolation = 'READ-COMMITTED', {{access}}_read_only = 0, "
    f"NAMES {CHARSET} COLLATE {COLLATION}, autocommit = IF(HEX(DATABASE()) = '{{database}}', {{autocommit}}, 2)"
)
# The facts about the server, and what it shows of the settings.
_FACTS = (
    "SELECT VERSION(), @@version_comment, @@max_allowed_packet, CONNECTION_ID(), DATABASE(), "
    f"{Incarnation.identity_in_sql(mariadb=None)}, {{settings}}"
)
# What a server that refused one of these says of itself.
_NAMED = "SELECT @@version_comment"
# Whether the connection is encrypted.
_CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"

_RENAMED_IN_MARIADB = (11, 1, 1)
"""Since this version of MariaDB, too, tx_isolation is called transaction_isolation."""

# PyMySQL has no name for this command: the server resets all that a session has set, locked and made, but its database.
_COM_RESET_CONNECTION: Final = 0x1F
# Attributes of a driver's connection that user code may change, and that change how statements are sent and answered.
_ATTRIBUTES: Final = (
    "charset",
    "collation",
    "converter",
    "cursorclass",
    "decoders",
    "encoders",
    "encoding",
    "_read_timeout",
    "_write_timeout",
)


@frozen
class OwnState:
    """The state of a connection in the driver: its session's number, and the attributes that user code may change.

    `number` is the session's number at the server. Another one means that user code has reconnected.
    """

    number: int
    attributes: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, raw: Any) -> OwnState:
        """Take it from a connection."""
        present = (name for name in _ATTRIBUTES if hasattr(raw, name))
        return cls(raw.thread_id(), {name: copy(getattr(raw, name)) for name in present})

    @property
    def cursorclass(self) -> Any:
        """The class of the cursors for our own statements."""
        return self.attributes["cursorclass"]


def _choice(driver: Driver) -> HostChoice:
    several = len(driver.config.addresses) > 1  # one host is never asked, and has no circle of references
    return HostChoice(driver.config.addresses, driver.config.connect_timeout, driver.ask if several else str)


@define(eq=False)
class Driver:
    """Opens the connections of one configuration. Thread-safe."""

    config: ConnectConfig
    lock_wait: int = LOCK_WAIT_SECONDS
    choice: HostChoice = field(default=Factory(_choice, takes_self=True), repr=False)
    """Which of the hosts its connections lead to. Drivers of one client share it."""
    beside: bool = False
    """Whether its time-outs are too short to judge a host: then it neither chooses nor leaves one."""
    opened: bool = field(default=False, init=False)
    """Whether a connection was ever ready to use: these settings are right, or were."""
    tried: bool = field(default=False, init=False)
    """Whether a connection was ever tried."""
    awaited: AwaitedPackets = field(factory=AwaitedPackets, init=False, repr=False)
    """The packets whose answers its connections await."""
    _logins: dict[Address, Login] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._logins = {address: Login(self.config.at(address)) for address in self.config.addresses}

    @property
    def greeted(self) -> bool:
        """Whether a server has ever answered. If not, wrong settings are likelier than a server that is down."""
        return any(login.greeted for login in self._logins.values())

    def open(self, *, autocommit: bool) -> tuple[Any, ServerFacts]:
        """Return a new connection, ready to use, and the facts about its server.

        If the chosen host of several fails, a new choice is made once. Raises the driver's errors, and
        ConfigurationError if no other attempt can succeed.
        """
        self.tried = True
        again = self.choice.several and not self.beside
        while True:
            chosen = self.choice.current(choosing=not self.beside)
            try:
                return self._open(chosen, autocommit=autocommit)
            except Exception as exc:
                if self.beside or not self.choice.several or not _fails_host(exc):
                    raise
                self.choice.leave(chosen.asked)
                if not again:
                    raise
                again = False

    def brief(self, *, connect: float, answer: float) -> Driver:
        """Return a driver for questions beside, with shorter time-outs. It leads to the same host."""
        config = self.config
        return Driver(
            evolve(
                config,
                connect_timeout=min(config.connect_timeout, connect),
                read_timeout=min(config.read_timeout, answer),
            ),
            choice=self.choice,
            beside=True,
        )

    def translate(self, exc: BaseException, facts: ServerFacts | None, *, committing: bool = False) -> LanelogError:
        """Return the error of lanelog's tree for a statement's, and leave a host that has failed.

        A lost connection may mean that the primary has crashed. It may be back, and another host have been promoted.
        """
        error = translate(exc, committing=committing)
        if facts is not None and not self.beside and breaks_connection(error):
            self.choice.leave(facts.asked)
        return error

    def _open(self, chosen: ChosenHost, *, autocommit: bool) -> tuple[Any, ServerFacts]:
        raw = self._logins[chosen.address].open()
        try:
            cursor = raw.cursor()
            facts = evolve(self._greet(raw, cursor, autocommit=autocommit), choice=chosen.number, asked=chosen.asked)
            if self.config.tls:
                _check_encryption(cursor)
            if self.choice.several:
                primary.check(cursor, facts, chosen.address)
                self.choice.check_same(chosen, incarnation_of(cursor, mariadb=facts.mariadb))
            self.limit(raw, self.config.read_timeout)
        except BaseException:
            raw.close()
            raise
        self.opened = True
        return raw, facts

    def ask(self, address: Address) -> str:
        """Return why a host is not the primary; empty if it is. Raises the driver's errors. In a thread of its own."""
        config = self.config.at(address)
        login = Login(evolve(config, read_timeout=min(config.read_timeout, config.connect_timeout)))
        try:
            with closing(login.open()) as raw:
                cursor = raw.cursor()
                facts = self._greet(raw, cursor, autocommit=True)
                return primary.disqualified(cursor, facts)
        finally:
            self._logins[address].greeted |= login.greeted

    def _greet(self, raw: Any, cursor: Any, *, autocommit: bool) -> ServerFacts:
        """Set the session, and read back in one round trip what the server is and what it has taken."""
        wanted: dict[str, object] = {
            session_settings.ISOLATION: "READ-COMMITTED",
            "sql_mode": SQL_MODE,
            "innodb_lock_wait_timeout": self.lock_wait,
            "autocommit": int(autocommit),
            **_MEANING,
            "wait_timeout": SILENCE_SECONDS,
            "net_read_timeout": SILENCE_SECONDS,
        }
        try:
            cursor.execute(_SESSION.format(lock_wait=self.lock_wait, autocommit=int(autocommit)))
            cursor.execute(_FACTS.format(settings=session_settings.column(wanted)))
        except Exception:
            # A server of another make may not know all of them.
            comment = None
            with suppress(Exception):
                cursor.execute(_NAMED)
                comment = cursor.fetchone()
            refuse_imitation(raw.get_server_info(), comment)
            raise
        version, comment, *row, settings = cursor.fetchone()
        refuse_imitation(version, comment)
        facts = ServerFacts.from_row((version, *row))
        facts.check()
        ignored = session_settings.not_taken(wanted, settings)
        if ignored.keys() - session_settings.SILENCE:
            raise ConfigurationError(
                session_settings.refusal(wanted, ignored, consequence="its statements would mean something else")
            )
        if not ignored:
            return facts
        consequence = "a process that stops would hold its locks for hours: publishing and handling are refused"
        return evolve(facts, locks_refused=session_settings.refusal(wanted, ignored, consequence=consequence))

    @staticmethod
    def limit(raw: Any, seconds: float) -> None:
        """Let the next answers take so long, if the driver can change that. mysqlclient cannot."""
        if hasattr(raw, "_read_timeout"):
            raw._read_timeout = seconds  # noqa: SLF001 - there is no public way

    @staticmethod
    def ping(raw: Any) -> None:
        """Ask the server for a sign of life. Raises the driver's errors."""
        # Older PyMySQL reconnects in ping unless an argument forbids it. mysqlclient's ping takes no argument.
        raw.ping(False) if hasattr(raw, "_sock") else raw.ping()  # noqa: FBT003

    def reclaim(self, raw: Any, state: OwnState) -> None:
        """Undo what user code has set on a connection, inside its transaction.

        One round trip, and one more if the driver's character set was changed.
        """
        if raw.encoding != state.attributes["encoding"]:
            raw.set_character_set(CHARSET, COLLATION)
        for name, value in state.attributes.items():
            setattr(raw, name, copy(value))
        raw.cursor().execute(_OURS_AGAIN.format(lock_wait=self.lock_wait))

    @staticmethod
    def commands(raw: Any) -> int | None:
        """How many commands were sent on a connection. None: mysqlclient does not count them."""
        return getattr(raw, "commands", None)

    def restore(self, raw: Any, facts: ServerFacts, state: OwnState, *, autocommit: bool, unused: bool) -> None:
        """Make a connection as new after user code had it, outside of a transaction. `unused`: it sent nothing.

        A reset ends temporary tables, user locks, table locks, prepared statements and variables. mysqlclient has no
        reset, so it logs in anew on the same connection. The last statement has all settings of a new connection.
        Raises the driver's errors, and ConfigurationError if user code has changed the connection itself.
        """
        if OwnState.of(raw) != state:
            raise ConfigurationError("the settings of the driver's connection were changed")
        if unused:
            return
        if self.config.driver == "pymysql":
            raw.command(_COM_RESET_CONNECTION, b"")
        else:
            config = self.config.at(self.choice.address(facts.choice))
            raw.change_user(config.user, SecretText(config.login_password()), config.database)
        raw.cursor().execute(
            _AS_NEW.format(
                lock_wait=self.lock_wait,
                access="tx" if facts.mariadb and facts.version < _RENAMED_IN_MARIADB else "transaction",
                database=facts.database.encode().hex().upper(),
                autocommit=int(autocommit),
            )
        )


def _fails_host(exc: Exception) -> bool:
    """Whether all hosts are asked again after this error of a new connection: after any, but a lack of connections."""
    error = translate(exc)
    return not isinstance(error, DatabaseError) or error.code not in codes.TOO_MANY


def _check_encryption(cursor: Any) -> None:
    """Refuse a connection without encryption: mysqlclient accepts one if it was built with MariaDB's library."""
    cursor.execute(_CIPHER)
    if not cursor.fetchone()[1]:
        raise ConfigurationError("the URL asks for TLS, and the server does not offer it")
