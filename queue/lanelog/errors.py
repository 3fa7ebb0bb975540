"""The errors of lanelog: one tree under `LanelogError`. The docstring of each is its default message.

Never knows a driver: `_database` maps the drivers' errors, and keeps their number in `code`.
"""

from __future__ import annotations


class LanelogError(Exception):
    """The operation failed."""

    retriable: bool = False
    """Whether repeating the same call, unchanged, may succeed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or "")


class ConfigurationError(LanelogError):
    """An argument, an option, a URL or a name is not valid: correct it; nothing was changed in the database."""


class PayloadTooLarge(ConfigurationError):
    """The message is larger than `max_payload_bytes`: store the data elsewhere and publish a reference to it."""


class SchemaError(LanelogError):
    """The tables are missing or of another version: run `client.migrate()` or `python -m lanelog migrate`."""


class DatabaseError(LanelogError):
    """The database refused or lost a statement: repeat it if `retriable`, otherwise follow the message."""

    def __init__(
        self,
        message: str | None = None,
        *,
        code: int | None = None,
        retriable: bool = False,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        """The error number of the server or the driver, or None."""
        self.retriable = retriable
        self.outcome_unknown = outcome_unknown
        """Whether the connection was lost during COMMIT, so that the transaction may have been committed."""

    def __reduce__(self) -> tuple[type[DatabaseError], tuple[object, ...], dict[str, object]]:
        # The fields are keyword-only. Without this, a copy between processes would lose them.
        return type(self), self.args, self.__dict__.copy()


class LeaseLost(LanelogError):
    """This delivery belongs to another attempt or owner by now and nothing was written: stop working on the message."""


class AlreadySettled(LanelogError):
    """The message has been settled before: call ack, nack, reject or postpone once for each delivery."""


class ClosedError(LanelogError):
    """The client or the subscription is closed: open a new one with `lanelog.connect`."""
