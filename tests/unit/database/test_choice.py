"""Which of several hosts a client uses, by what each has said of itself."""

import logging
import threading
from collections.abc import Callable

import pytest

from lanelog._base.addresses import Address
from lanelog._database.server.choice import HostChoice
from lanelog._database.server.incarnation import Incarnation
from lanelog._database.server.primary import judged
from lanelog._database.server.server_facts import ServerFacts
from lanelog._database.time_left import Limit
from lanelog.errors import ConfigurationError, DatabaseError
from support.waiting import Record, events, eventually

ONE, TWO, THREE = (Address(f"db-{number}", 3306) for number in (1, 2, 3))
DEAD = DatabaseError("nobody answers", code=2003, retriable=True)
READ_ONLY = "its read_only is ON"


def saying(**said: str | Exception) -> Callable[[Address], str]:
    """What asks a host; `db_2="…"` is why that one is no primary, and a host that is not named is dead."""

    def ask(address: Address) -> str:
        answer = said.get(address.host.replace("-", "_"), DEAD)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


class Asked:
    """A choice whose hosts say what the test wants."""

    def __init__(self, *addresses: Address) -> None:
        self.ask = saying()
        self.choice = HostChoice(addresses or (ONE, TWO, THREE), 5.0, self._say)

    def leave(self, asked: int) -> None:
        """A connection that was made after this question has failed."""
        self.choice.leave(asked)

    def _say(self, address: Address) -> str:
        return self.ask(address)

    def current(self, ask: Callable[[Address], str]) -> tuple[Address, int]:
        """What is chosen when the hosts say this, and the number of the choice."""
        self.ask = ask
        chosen = self.choice.current()
        return chosen.address, chosen.number


choice = Asked


def test_one_host_is_used_unasked() -> None:
    """A URL with one host leads there, whatever the server says of itself."""
    assert choice(ONE).current(saying()) == (ONE, 0)


def test_the_one_primary_is_used_until_it_is_left() -> None:
    """All ask the choice, not the hosts: a second primary that appears meanwhile is not looked at."""
    made = choice()
    assert made.current(saying(db_1=READ_ONLY, db_2="")) == (TWO, 1)
    assert made.current(saying(db_1="", db_2="")) == (TWO, 1)
    made.leave(1)
    assert made.current(saying(db_1="", db_2=READ_ONLY)) == (ONE, 2)


def test_a_host_that_is_chosen_again_keeps_its_connections() -> None:
    """One lost connection makes no new choice of the others: the number stays."""
    made = choice()
    made.current(saying(db_2=""))
    server = ServerFacts(version=(10, 11), mariadb=True, max_allowed_packet=1, connection_id=1, database="d", choice=1)
    made.leave(1)
    assert made.current(saying(db_2="", db_3=READ_ONLY)) == (TWO, 1)
    assert made.choice.stands(server)
    made.leave(1)  # another connection finds late that it was lost, too: that has been asked about
    assert made.current(saying(db_1="")) == (TWO, 1)


def test_an_error_of_the_host_before_does_not_leave_the_new_one() -> None:
    """Connections to the old primary fail late, when all others are at the new one."""
    made = choice()
    made.current(saying(db_2=""))
    made.leave(1)
    made.current(saying(db_1=""))
    made.leave(1)
    assert made.current(saying()) == (ONE, 2)


def test_of_two_primaries_none_is_used(caplog: pytest.LogCaptureFixture) -> None:
    """What is written on the wrong one is lost. An error names both, once however often a choice is tried."""
    made = choice()
    for _ in range(3):
        with pytest.raises(
            DatabaseError, match="db-1:3306 and db-3:3306 are both a primary, so none is used"
        ) as refused:
            made.current(saying(db_1="", db_3=""))
        assert refused.value.retriable
    (told,) = events(caplog, "hosts.two_primaries", logging.ERROR)
    assert "db-1:3306" in told
    assert "db-3:3306" in told
    assert made.current(saying(db_3="")) == (THREE, 1)


def test_without_a_primary_the_error_says_what_each_host_is() -> None:
    """The sentence is enough to find the one that should be the primary."""
    with pytest.raises(
        DatabaseError, match=r"db-1:3306: its read_only is ON; db-2:3306: nobody answers; db-3"
    ) as refused:
        choice().current(saying(db_1=READ_ONLY))
    assert refused.value.retriable


def test_wrong_settings_are_told_at_the_first_choice_alone() -> None:
    """A grant that is missing everywhere ends the first connection. Later, a failover may pass."""
    made, wrong = choice(), ConfigurationError("a grant is missing")
    with pytest.raises(ConfigurationError, match="a grant is missing"):
        made.current(saying(db_1=wrong, db_2=wrong, db_3=wrong))
    made.current(saying(db_2=""))
    made.leave(1)
    with pytest.raises(DatabaseError, match="a grant is missing") as refused:
        made.current(saying(db_1=wrong, db_2=wrong, db_3=wrong))
    assert refused.value.retriable


def test_a_host_that_is_silent_is_not_waited_for() -> None:
    """A host that stands still takes connections and answers nothing: the others are chosen from without it."""
    over = threading.Event()

    def ask(address: Address) -> str:
        if address == ONE:
            over.wait(20)
        return "" if address == TWO else READ_ONLY

    assert HostChoice((ONE, TWO, THREE), 0.2, ask).current().address == TWO
    over.set()


@pytest.mark.thorough
def test_callers_with_little_time_find_what_was_asked_before() -> None:
    """A publish may have less time than a silent host takes to count as dead. The next one goes on asking."""
    over, asked = threading.Event(), Record()

    def ask(address: Address) -> str:
        asked(address)
        if address == ONE:
            over.wait(20)
        return ""

    made = HostChoice((ONE, TWO), 5.0, ask)

    def chosen() -> Address | None:
        with Limit(0.05):
            try:
                return made.current().address
            except DatabaseError:
                return None

    with Limit(0.05), pytest.raises(DatabaseError, match="the hosts have not yet said"):
        made.current()
    assert eventually(chosen, within=20) == TWO
    assert len(asked) == 2
    over.set()


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([(True, "ONLINE", "PRIMARY"), (False, "ONLINE", "SECONDARY"), (False, "ONLINE", "SECONDARY")], ""),
        ([(True, "ONLINE", "PRIMARY"), (False, "UNREACHABLE", "SECONDARY"), (False, "RECOVERING", "SECONDARY")], ""),
        ([(True, "ONLINE", "PRIMARY")], ""),
        ([(False, "ONLINE", "PRIMARY"), (True, "ONLINE", "SECONDARY")], "it is SECONDARY in its group"),
        ([(True, "OFFLINE", "")], "it is OFFLINE in its group"),
        ([(False, "OFFLINE", "")], "it is OFFLINE in its group"),
        ([], "it is OFFLINE in its group"),
        ([(True, "ERROR", "PRIMARY"), (False, "ONLINE", "SECONDARY")], "it is ERROR in its group"),
        ([(True, "ONLINE", "PRIMARY"), (False, "ONLINE", "PRIMARY")], "its group has several primaries"),
        (
            [(True, "ONLINE", "PRIMARY"), (False, "UNREACHABLE", "SECONDARY")],
            "it sees 1 of 2 members of its group, which is no majority",
        ),
    ],
)
def test_a_member_of_a_group_is_its_only_primary_in_a_majority(members: list[tuple[bool, str, str]], why: str) -> None:
    """A member that was restarted, or that lost the others, accepts writes that its group never sees."""
    assert judged(members) == why


def test_another_server_at_the_same_address_is_asked_about() -> None:
    """A primary that crashed may be back, and writable, while another host has been promoted."""
    made, old, new = choice(), Incarnation(1_000, "a"), Incarnation(900_000, "a")
    made.current(saying(db_1=""))
    chosen = made.choice.current()
    made.choice.check_same(chosen, old)
    made.choice.check_same(chosen, Incarnation(1_900, "a"))  # the same life, read a moment later
    with pytest.raises(DatabaseError, match="another server than before"):
        made.choice.check_same(chosen, new)
    made.leave(chosen.asked)
    with pytest.raises(DatabaseError, match="are both a primary"):
        made.current(saying(db_1="", db_2=""))
    assert made.current(saying(db_1="", db_2=READ_ONLY)) == (ONE, 1)
    made.choice.check_same(made.choice.current(), new)


def test_connections_that_are_there_end_when_there_are_two_primaries() -> None:
    """One that was open before would go on writing on what may be the wrong one."""
    made = choice()
    made.current(saying(db_1=""))
    server = ServerFacts(version=(10, 11), mariadb=True, max_allowed_packet=1, connection_id=1, database="d", choice=1)
    assert made.choice.stands(server)
    made.leave(1)
    with pytest.raises(DatabaseError, match="are both a primary"):
        made.current(saying(db_1="", db_2=""))
    assert not made.choice.stands(server)
    made.current(saying(db_1=""))
    assert made.choice.stands(server)


def test_a_full_primary_is_not_left_for_another_host() -> None:
    """A full server lives. Its error keeps the number that others go by. A full replica counts not."""
    full = DatabaseError("too many connections", code=1040, retriable=True)
    made = choice()
    made.current(saying(db_1="", db_2=full))
    made.leave(1)
    with pytest.raises(DatabaseError, match="too many") as refused:
        made.current(saying(db_1=full, db_2=""))
    assert refused.value.code == 1040
    assert made.current(saying(db_1="", db_2=full)) == (ONE, 1)


def test_wrong_settings_of_the_only_host_that_takes_writes_are_told_at_once() -> None:
    """The others have answered that they are no primary: nothing passes by itself, and nobody waits for it."""
    wrong = ConfigurationError("a grant is missing")
    with pytest.raises(ConfigurationError, match="a grant is missing"):
        choice().current(saying(db_1=wrong, db_2=READ_ONLY, db_3=READ_ONLY))


def test_wrong_settings_of_one_host_wait_for_the_others() -> None:
    """A host that is away may be the primary, so that passes; the error names both."""
    with pytest.raises(DatabaseError, match="db-1:3306: a grant is missing; db-2:3306: nobody answers") as refused:
        choice().current(saying(db_1=ConfigurationError("a grant is missing")))
    assert refused.value.retriable


def test_one_thread_asks_for_all() -> None:
    """Threads that wait for a choice share its failure: each would take as long as the one before it."""
    asked, go, errors = Record(), threading.Event(), Record()

    def ask(address: Address) -> str:
        asked(address)
        assert go.wait(20)
        return READ_ONLY

    made = HostChoice((ONE, TWO), 5.0, ask)

    def wait() -> None:
        with pytest.raises(DatabaseError) as refused:
            made.current()
        errors(refused.value)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    threads[0].start()
    asked.wait(2)
    for thread in threads[1:]:
        thread.start()
    with pytest.raises(DatabaseError, match="no host is chosen yet"):
        made.current(choosing=False)
    go.set()
    for thread in threads:
        thread.join()
    found = errors.wait(8)
    assert len({str(error) for error in found}) == 1
    assert len({id(error) for error in found}) == 8  # each is changed by the thread that gets it
    assert len(asked) in {2, 4}  # a thread that had not begun to wait asks once more
