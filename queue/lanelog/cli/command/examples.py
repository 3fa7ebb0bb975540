"""Examples of every command, which its help ends with.

Owns these lines. Knows no command: a test compares them with those there are.
"""

from __future__ import annotations

from typing import Final

import click

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "analyze": ("analyze --path /srv/archive --output report --format csv",),
    "archive": ("archive --path /srv/archive --topics orders --once",),
    "audit": ("audit", "audit orders --limit 20"),
    "delete-group": ("delete-group orders billing", "delete-group orders billing --why 'moved to v2' --execute"),
    "delete-topic": ("delete-topic orders-old", "delete-topic orders-old --execute"),
    "dev-server": ("dev-server", "dev-server --server mysql-local"),
    "dlq delete": (
        "dlq delete orders billing --reason r-4f2a",
        "dlq delete orders billing --key ann --since -1h --limit 10",
        "dlq delete orders billing --all --why 'test data' --execute",
    ),
    "dlq list": ("dlq list orders --reasons", "dlq list orders billing --reason r-4f2a --limit 20"),
    "dlq redrive": (
        "dlq redrive orders billing --reason r-4f2a",
        "dlq redrive orders billing --key ann --since -1h --limit 10",
        "dlq redrive orders billing --all --why 'fixed in 4.2' --execute",
    ),
    "dlq show": ("dlq show orders ann 17",),
    "doctor": ("doctor", "doctor --json"),
    "events": ("events", "events handler.slow"),
    "grants": ("grants --role consumer --user app --host '10.0.%'",),
    "groups": ("groups", "groups 'orders*' --watch"),
    "health": ("health 127.0.0.1:8081/livez",),
    "history": ("history orders billing --outcome failed", "history orders billing --key ann --since -1h"),
    "lag": ("lag orders --max-lag 10000 --max-age 300", "lag orders billing --sql"),
    "lanes": ("lanes orders billing --by lag", "lanes orders billing --limit 10 --watch"),
    "leases": ("leases orders billing", "leases --stale"),
    "maintain": ("maintain --once", "maintain orders invoices"),
    "members": ("members", "members orders billing --stacks"),
    "metrics": ("metrics --listen 127.0.0.1:9464", "metrics --rules"),
    "migrate": ("migrate --url mysql://root:secret@db-1:3306/shop",),
    "offsets": ("offsets orders billing --key ann",),
    "open-lanes": ("open-lanes orders", "open-lanes orders 128"),
    "pause": ("pause orders billing --why deploy", "pause orders billing --key ann"),
    "publish": ("publish orders ann '{\"total\": 12}'", "publish orders ann --file lines.txt"),
    "purge": ("purge orders --before -30d", "purge orders --before-offset 1000 --execute"),
    "release": ("release orders billing ann", "release orders billing ann --why 'it hangs' --execute"),
    "replay": ("replay --path /srv/archive --topic orders --to again --dry-run",),
    "resume": ("resume orders billing", "resume orders billing --key ann"),
    "retry": ("retry orders billing ann --offset 17 --execute", "retry orders billing --all --execute"),
    "schedule add": ("schedule add nightly '30 2 * * *' reports daily sales",),
    "schedule list": ("schedule list",),
    "schedule pause": ("schedule pause nightly --why deploy",),
    "schedule preview": ("schedule preview '30 2 * * *' --timezone Europe/Berlin --count 3",),
    "schedule remove": ("schedule remove nightly", "schedule remove nightly --execute"),
    "schedule resume": ("schedule resume nightly",),
    "schedule run": ("schedule run nightly --why 'the report was wrong'", "schedule run nightly --dry-run"),
    "scheduled cancel": ("scheduled cancel orders ann reminder-7 --execute",),
    "scheduled list": ("scheduled list orders", "scheduled list orders --key ann"),
    "seek": ("seek orders billing --to yesterday", "seek orders billing --key ann --to 17 --execute"),
    "show": ("show orders ann", "show orders ann 17", "show orders --id 01J9ZK --raw"),
    "skip": ("skip orders billing ann 17 --why broken", "skip orders billing ann 17 --why broken --execute"),
    "status": ("status", "status 'orders*' --watch"),
    "tail": ("tail orders -n 20", "tail orders ann -n 20", "tail orders --follow"),
    "topics": ("topics", "topics orders", "topics --json"),
    "web": ("web --listen 127.0.0.1:8080", "web --allow-actions"),
    "worker": ("worker shop.billing:client --processes 4",),
}
"""By the words of the command; each line as it is typed behind `lanelog`."""


def give_examples(verb: click.Command, *words: str) -> None:
    """Let the help of a command, and that of its subcommands, end with their examples."""
    if isinstance(verb, click.Group):
        for name, below in verb.commands.items():
            give_examples(below, *words, name)
        return
    lines = "\n".join(f"  lanelog {line}" for line in EXAMPLES[" ".join(words)])
    verb.epilog = f"\b\nExamples:\n{lines}"
