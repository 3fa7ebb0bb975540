"""The pytest plugin, in a pytest run of its own, as a user has it."""

import os

import pytest

from lanelog.devserver import DevServer
from lanelog.devserver._programs import cache_directory
from support.sql import connect, rows

pytestmark = pytest.mark.one_family("mariadb")

CACHE = str(cache_directory(os.environ).parent)  # pytester gives its runs a home of their own

USERS_TESTS = """
import lanelog

urls = set()

def test_publish(lanelog_client, lanelog_url):
    urls.add(lanelog_url)
    assert lanelog_client.publish("builds", "repo-1", b"a").offset == 1

def test_publish_again(lanelog_client, lanelog_url):
    assert lanelog_url not in urls
    assert lanelog_client.publish("builds", "repo-1", b"a").offset == 1

def test_more_clients(lanelog_url):
    with lanelog.connect(lanelog_url) as client:
        client.ping()
"""


@pytest.mark.thorough
def test_each_test_of_a_user_has_a_database_of_its_own(pytester: pytest.Pytester, lanelog_server: DevServer) -> None:
    """The fixtures come with the installation; tables exist, nothing is left of the test before."""
    pytester.makepyfile(USERS_TESTS)
    with connect(lanelog_server.url) as root:
        before = rows(root, "SHOW DATABASES")
        result = pytester.runpytest_subprocess("-W", "error", "--lanelog-server", lanelog_server.url)
        result.assert_outcomes(passed=3)
        assert rows(root, "SHOW DATABASES") == before


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["--lanelog-server", "LANELOG_TEST_URL"])
def test_the_header_names_host_and_database(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The header shows the given server before anything is created there, and no password."""
    url = "mysql://tester:geheim@db.example:3307/checks"
    options = ["--lanelog-server", url] if where.startswith("--") else []
    monkeypatch.setenv("LANELOG_TEST_URL", "mysql://other/one" if options else url)
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-W", "error", *options)
    result.stdout.fnmatch_lines([f"lanelog: host db.example:3307, database checks ({where}); *lanelog_test_[*]*"])
    assert "geheim" not in result.stdout.str()


@pytest.mark.thorough
@pytest.mark.local_server
def test_the_database_of_an_application_is_left_alone(
    pytester: pytest.Pytester, lanelog_server: DevServer, local_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LANELOG_URL is not read: the fixtures are on a server of their own, and the header says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    monkeypatch.delenv("LANELOG_TEST_URL", raising=False)
    monkeypatch.setenv("LANELOG_URL", lanelog_server.url)
    pytester.makepyfile("""
        import os
        from urllib.parse import urlsplit

        def test_elsewhere(lanelog_url):
            assert urlsplit(lanelog_url).port != urlsplit(os.environ["LANELOG_URL"]).port
    """)
    kind = ["--lanelog-server", local_kind] if local_kind == "mysql-local" else []
    result = pytester.runpytest_subprocess("-W", "error", *kind)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["lanelog: a server of its own (*), for tests that need one"])


@pytest.mark.thorough
@pytest.mark.local_server
def test_a_server_is_started_when_none_is_given(
    pytester: pytest.Pytester, local_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project may fix the kind of its server in its conftest."""
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    pytester.makeconftest(f"""
        import pytest

        @pytest.fixture(scope="session")
        def lanelog_server_kind():
            return "{local_kind}"
    """)
    pytester.makepyfile("def test_ping(lanelog_client): lanelog_client.ping()")
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)


@pytest.mark.thorough
def test_a_missing_server_is_an_error(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that cannot be started fails the test that needs it, with the reason."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{pytester.path}/docker.sock")
    pytester.makepyfile("def test_ping(lanelog_client): lanelog_client.ping()")
    result = pytester.runpytest_subprocess("--lanelog-server", "docker:mysql:8.4")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Docker cannot run mysql:8.4*"])
