"""Forwards changes of products to the other system: in order for each product, each until it is accepted or refused."""

from __future__ import annotations

from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from django.conf import settings
from tenacity import stop_never

from lanelog import Message, Reject, Retry, RetryPolicy
from lanelog.contrib.django import client

GIVEN_UP = {400, 404, 405, 409, 410, 413, 415, 422}
"""Answers that would be the same the next time. All others are retried."""
PATIENT = RetryPolicy(stop=stop_never)


class NoRedirect(HTTPRedirectHandler):
    """Makes an error of a redirection: urllib would follow it with a GET, without the message."""

    def redirect_request(self, *_: object) -> None:
        """Follow nowhere."""


OPENER = build_opener(NoRedirect)


@client.subscriber("products", "webhook", workers=16, max_deliveries=None, retry=PATIENT)  # type: ignore[untyped-decorator]
def forward(message: Message) -> None:
    """Send one change. A refused one becomes a dead letter, and the next one of its product follows."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": message.id, "X-Lane": message.key}
    request = Request(settings.WEBHOOK_URL, message.payload, headers)  # noqa: S310 - the project's own address
    try:
        with OPENER.open(request, timeout=10) as answer:
            answer.read()
    except HTTPError as error:
        if error.code in GIVEN_UP:
            raise Reject(f"{settings.WEBHOOK_URL} has answered {error.code}") from error
        after = error.headers.get("Retry-After", "")
        raise Retry(delay=min(int(after), 3600) if after.isdigit() else None) from error
    except (OSError, HTTPException) as error:  # no connection, no answer in time, or half of one
        raise Retry from error
