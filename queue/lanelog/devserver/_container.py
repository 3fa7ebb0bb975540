"""A server in a Docker container, through testcontainers, which removes the container when this process dies.

Never runs if there is a local server, unless it was asked for by name.
"""

import secrets
from typing import Any

import tenacity
from attrs import define, field

from lanelog._process.extras import install
from lanelog.devserver._given import ask_version
from lanelog.devserver._local import free_port
from lanelog.devserver._server import DATABASE, DevServer, ServerUnavailable
from lanelog.errors import DatabaseError

PORT = 3306
START_SECONDS = 120.0
LOOPBACK = ("localhost", "127.0.0.1")


@define(eq=False, kw_only=True)
class ContainerServer(DevServer):
    """A database server in a container of its own."""

    container: Any = field(repr=False)

    @classmethod
    def start(cls, image: str) -> "ContainerServer":
        """Run `image` (`mysql:8.4`, `mariadb:11.4`) and wait until the server answers."""
        try:
            import docker.errors
            import testcontainers.community.mysql  # noqa: F401  # only to see whether it is installed
        except ImportError as exc:
            raise ServerUnavailable(f"testcontainers is not installed ({install('testing')})") from exc
        try:
            container = build(image, secrets.token_hex(16)).start()
        except (docker.errors.DockerException, OSError) as exc:  # no daemon, no image, no rights, a time-out
            raise ServerUnavailable(f"Docker cannot run {image}: {exc}") from exc
        host = container.get_container_host_ip().replace("localhost", "127.0.0.1")  # never the client's default socket
        port = container.get_exposed_port(PORT)
        url = f"mysql://root:{container.root_password}@{host}:{port}/{DATABASE}"
        try:
            family, version = wait_until_ready(url)
        except BaseException:
            container.stop()
            raise
        return cls(url=url, version=version, family=family, container=container)

    def kill(self) -> None:
        """End the server as a crash would."""
        self.container.get_wrapped_container().kill("SIGKILL")

    def restart(self) -> None:
        """Start the container again. The host's port stays, because it was chosen here and not by Docker."""
        self.container.get_wrapped_container().restart()
        wait_until_ready(self.url)

    def stop(self) -> None:
        """Remove the container and its data."""
        if self.container is not None:
            self.container.stop()
            self.container = None


def build(image: str, password: str, **client: Any) -> Any:
    """Return the container, configured and not started. `client` are options of the Docker client."""
    from testcontainers.community.mysql import MySqlContainer

    container = MySqlContainer(
        image, username="root", password=password, dbname=DATABASE, port=PORT, docker_client_kw=client
    )
    port = free_port()
    # A daemon on this machine publishes on the loopback interface only.
    local = container.get_docker_client().host() in LOOPBACK
    published: Any = ("127.0.0.1", port) if local else port
    container.ports = {f"{PORT}/tcp": published}
    return container


def wait_until_ready(url: str) -> tuple[str, str]:
    """Ask until the server answers. Return its family and version."""
    waiting = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(DatabaseError),
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(START_SECONDS),
        reraise=True,
    )
    return waiting(ask_version, url)
