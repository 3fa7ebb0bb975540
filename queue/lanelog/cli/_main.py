"""The command `lanelog` with all its commands, and its help.

Owns the list of the commands, and holds none. A command's module is imported when the command is asked for:
`lanelog status` and `lanelog --help` import no other.
"""

from __future__ import annotations

from typing import Final

import click

from lanelog.cli.command.verbs import Verbs

EPILOG = """
Exit status: 0 done; 1 a bound (--max-lag, --max-age, --max-dead-letters) is exceeded, doctor found an error, or a part
is left to do; 2 refused (bad input, missing privilege, unreachable database), nothing was changed; 130 ended by Ctrl-C.

Completion of commands, options, topics, groups and keys:

\b
  bash, in ~/.bashrc:  eval "$(_LANELOG_COMPLETE=bash_source lanelog)"
  zsh, in ~/.zshrc:    eval "$(_LANELOG_COMPLETE=zsh_source lanelog)"
  fish, in its config: _LANELOG_COMPLETE=fish_source lanelog | source
"""

SECTIONS: Final = {
    "Read": {
        "status": ("read.status", "What is wrong, the worst first, and what repairs it."),
        "topics": ("read.lists", "The topics, and what they hold."),
        "groups": ("read.lists", "The consumer groups: members, lanes, lag, pauses."),
        "lag": ("read.lists", "How far behind the groups are."),
        "lanes": ("read.lists", "The lanes of a topic: offsets, lag, owner, error."),
        "offsets": ("read.lists", "Where the groups are in the lanes."),
        "members": ("read.lists", "The members of groups, alive or not."),
        "leases": ("read.lists", "Who may work which lane."),
        "show": ("read.messages", "The messages of a lane, or all about one of them."),
        "tail": ("read.messages", "The newest messages, and with --follow new ones."),
        "history": ("read.messages", "How messages left a group that keeps history."),
        "audit": ("read.lists", "What operators did, who and why."),
        "events": ("read.events", "What lanelog logs, or one of its events."),
        "metrics": ("run.metrics", "Serve the figures of the log to Prometheus."),
        "web": ("run.web", "Serve the dashboard to browsers."),
    },
    "Change": {
        "pause": ("steer.change", "Hand out nothing more, until resume."),
        "resume": ("steer.change", "Take a pause back."),
        "seek": ("steer.change", "Set where a group goes on."),
        "skip": ("steer.change", "Settle one message without handling it."),
        "retry": ("steer.change", "Let failed messages wait no longer."),
        "release": ("steer.change", "Take a lane away from its owner by force."),
        "open-lanes": ("steer.change", "Over how many lanes a topic spreads what has no key."),
        "purge": ("steer.change", "Delete old messages, settled or not."),
        "delete-group": ("steer.change", "Forget a group and its offsets in a topic."),
        "delete-topic": ("steer.change", "Delete a topic with all that it holds."),
    },
    "Repair": {
        "dlq": ("steer.dead_letters", "Dead letters: list, show, redrive, delete."),
        "doctor": ("run.setup", "Examine server, settings, privileges and tables."),
        "maintain": ("run.setup", "Collect and repair where nobody consumes."),
    },
    "Set up": {
        "migrate": ("run.setup", "Create or upgrade the tables."),
        "grants": ("run.setup", "Print the grants that a role needs."),
        "dev-server": ("run.setup", "Start a private database, with tables, until Ctrl-C."),
    },
    "Run": {
        "worker": ("run.worker", "Run the handlers of a module in processes."),
        "health": ("run.health", "Ask a worker whether it lives and is ready."),
    },
    "Data": {
        "publish": ("data.publish", "Publish a message, or every line of a file."),
        "scheduled": ("steer.scheduled", "Messages that are not due yet: list, cancel."),
        "schedule": ("steer.schedule", "Recurring messages: add, pause, run, remove, preview."),
        "archive": ("data.archive", "Keep the log as Parquet, with Spark."),
        "replay": ("data.archive", "Publish messages of an archive again."),
        "analyze": ("data.analyze", "Tables and a report over archive and live log."),
    },
}
"""The commands by purpose: where the function of each stands, and one line that fits a terminal of 80 columns.

A new command is its function and its line here. The function has the name of the command, with `_` for `-`.
"""


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lanelog")
def cli() -> None:
    """A partitioned message log inside MySQL or MariaDB.

    The database is that of --url, before or after the command, or that of LANELOG_URL. Every command that reads takes
    --json and --watch. Every command that destroys something only shows what it would do, unless --execute is given.
    """


cli.sections = SECTIONS
cli.draining = ("worker",)
