"""As `jobs`, with metrics of the application's own."""

import jobs
import prometheus_client

import lanelog

client = lanelog.connect()
HANDLED = prometheus_client.Counter("jobs_handled", "Messages that were handled.")
AT_WORK = prometheus_client.Gauge("jobs_at_work", "Messages in handlers.")


@client.subscriber("t", "g", workers=1, poll_interval=0.05)
def handle(message: lanelog.Message) -> None:
    with AT_WORK.track_inprogress():
        jobs.handle(message)
    HANDLED.inc()
