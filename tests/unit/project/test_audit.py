"""What `.ci/audit` makes of a vulnerability service's answers; the service is a server of the test's own."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.scripts import ran

ROOT = Path(__file__).parents[3]
KNOWN = {"id": "PYSEC-0000-1", "aliases": ["CVE-0000-1"], "summary": "invented", "details": "", "affected": []}


@contextmanager
def service(answers: dict[str, object], status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """A service in OSV's form; its URL, and the names it was asked about."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = question["package"]["name"]
            asked.append(name)
            body = json.dumps(answers.get(name, {})).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Nothing: the tests' output is for failures."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked
        finally:
            server.shutdown()
            thread.join()


def audit(url: str) -> subprocess.CompletedProcess[str]:
    environ = {"PIP_AUDIT_VULNERABILITY_SERVICE": "osv", "PIP_AUDIT_OSV_URL": url, "NO_PROXY": "*"}
    return ran(sys.executable, ".ci/audit", cwd=ROOT, env=os.environ | environ)


@pytest.mark.thorough
def test_a_known_vulnerability_fails() -> None:
    """Status 1, and a line with package, version, names and the way out; nothing but what users get is asked about."""
    with service({"tenacity": {"vulns": [KNOWN]}}) as (url, asked):
        done = audit(url)
    assert done.returncode == 1
    assert done.stderr.startswith("audit: tenacity ")
    assert "PYSEC-0000-1, CVE-0000-1" in done.stderr
    dependencies = {"attrs", "cryptography", "cffi", "dbutils", "pymysql", "tenacity", "click", "rich"}
    assert dependencies <= set(asked)
    assert not {"lanelog", "ruff", "mypy", "hypothesis"} & set(asked)


@pytest.mark.thorough
def test_without_a_known_vulnerability_it_passes() -> None:
    """One line that says what was asked."""
    with service({}) as (url, asked):
        done = audit(url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"audit: osv knows no vulnerability of {len(asked)} packages")


@pytest.mark.thorough
def test_a_service_that_cannot_be_asked_is_no_pass_and_no_failure() -> None:
    """Whether it answers with an error or nobody listens: status 0 and one line that says so."""
    with service({}, status=503) as (url, _):
        error = audit(url)
    for done in (error, audit(url)):
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (0, "", 1)
        assert "COULD NOT BE ASKED" in done.stderr
