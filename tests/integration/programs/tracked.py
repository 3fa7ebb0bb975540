"""A worker whose error tracker is Sentry, with nothing configured for lanelog; it says what Sentry would have sent."""

import sentry_sdk
from saying import CONFIG, say
from sentry_sdk.envelope import Envelope

import lanelog


class Saying(sentry_sdk.Transport):
    """Sends nothing."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            say("tracked", tracked=event)


sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=Saying)
client = lanelog.connect(CONFIG["url"])


@client.subscriber("orders", "billing", max_deliveries=1)
def bill(message: lanelog.Message) -> None:
    raise KeyError("customer")


client.run()
client.close()
