"""The command `lanelog` with all its verbs, and its help.

Holds no verb itself. A verb's module is imported when the verb is asked for: `lanelog status` imports no other.
"""

from __future__ import annotations

import click

from lanelog.cli._verbs import Verbs

EPILOG = """
Exit status: 0 done; 1 a bound (--max-lag, --max-age, --max-dead-letters) is exceeded, doctor found an error, or a part
is left to do; 2 refused (bad input, missing privilege, unreachable database), nothing was changed; 130 ended by Ctrl-C.

Completion of verbs, options, topics, groups and keys:

\b
  bash, in ~/.bashrc:  eval "$(_LANELOG_COMPLETE=bash_source lanelog)"
  zsh, in ~/.zshrc:    eval "$(_LANELOG_COMPLETE=zsh_source lanelog)"
  fish, in its config: _LANELOG_COMPLETE=fish_source lanelog | source
"""

SECTIONS = {
    "Look": {
        "status": "What is wrong, the worst first, and what mends it.",
        "topics": "The topics, and what they hold.",
        "groups": "The consumer groups: members, lanes, lag, pauses.",
        "lag": "How far behind the groups are.",
        "lanes": "The lanes of a topic: offsets, lag, owner, error.",
        "offsets": "Where the groups are in the lanes.",
        "members": "The subscribers of groups, alive or not.",
        "leases": "Who may work which lane.",
        "show": "The messages of a lane, or all about one of them.",
        "tail": "The newest messages, and with --follow new ones.",
        "history": "How messages left a group that keeps history.",
        "audit": "What operators did, who and why.",
        "events": "What lanelog logs, or one of its events.",
        "metrics": "Serve the figures of the log to Prometheus.",
        "web": "Serve the dashboard to browsers.",
    },
    "Steer": {
        "pause": "Hand out nothing more, until resume.",
        "resume": "Take a pause back.",
        "seek": "Set where a group goes on.",
        "skip": "Settle one message without handling it.",
        "retry": "Let failed messages wait no longer.",
        "release": "Take a lane away from its owner by force.",
        "open-lanes": "Over how many lanes a topic spreads what has no key.",
        "purge": "Delete old messages, settled or not.",
        "delete-group": "Forget a group and its place in a topic.",
        "delete-topic": "Delete a topic with all that it holds.",
    },
    "Repair": {
        "dlq": "Dead letters: list, show, redrive, delete.",
        "doctor": "Examine server, settings, privileges and tables.",
        "maintain": "Collect and mend where nobody consumes.",
    },
    "Set up": {
        "migrate": "Create or upgrade the tables.",
        "grants": "Print the grants that a role needs.",
        "dev-server": "Start a private database, with tables, until Ctrl-C.",
    },
    "Run": {
        "worker": "Run the handlers of a module in processes.",
        "health": "Ask a worker whether it lives and is ready.",
    },
    "Data": {
        "publish": "Publish a message, or every line of a file.",
        "scheduled": "Messages that are not due yet: list, cancel.",
        "schedule": "Recurring messages: declare, steer, preview.",
        "archive": "Keep the log as Parquet, with Spark.",
        "replay": "Publish messages of an archive again.",
        "analyze": "Tables and a report over archive and live log.",
    },
}
"""The verbs by purpose, each with one line that fits a terminal of 80 columns."""


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lanelog")
def cli() -> None:
    """A partitioned message log inside MySQL or MariaDB.

    The database is that of --url, before or behind the verb, or that of LANELOG_URL. Every verb that looks takes --json
    and --watch. Every verb that destroys something only shows what it would do, unless --execute is given.
    """


cli.sections = SECTIONS
cli.rooms = {
    "_analyze": ("analyze",),
    "_archive": ("archive", "replay"),
    "_change": (
        "seek",
        "pause",
        "resume",
        "skip",
        "retry",
        "release",
        "open-lanes",
        "delete-group",
        "delete-topic",
        "purge",
    ),
    "_events": ("events",),
    "_health": ("health",),
    "_letters": ("dlq",),
    "_messages": ("show", "tail", "history"),
    "_metrics": ("metrics",),
    "_publish": ("publish",),
    "_read": ("topics", "groups", "members", "lanes", "lag", "offsets", "leases", "audit"),
    "_schedule": ("schedule",),
    "_scheduled": ("scheduled",),
    "_setup": ("dev-server", "migrate", "doctor", "grants", "maintain"),
    "_status": ("status",),
    "_web": ("web",),
    "_worker": ("worker",),
}
cli.draining = ("worker",)
