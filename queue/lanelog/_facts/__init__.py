"""Every fact that lanelog reports, declared once: events of the log, notices of `client.on`, numbers of the monitors.

Owns the name, level, logger, fields and meaning of each event, which facts are notices, and the names and buckets of
what is measured. Never decides when something is a fact: whoever sees it calls the declaration,
`facts.lane_lost(topic=…, key=…)`. The log, `lanelog events` with docs/reference/events.md, the client's notices,
Prometheus and OpenTelemetry read the same declarations.

A declaration is an empty function under a decorator. Its signature names and types the fields, so the type checker
reads every call. Its docstring is the meaning. A class for each event would say the same in more lines, and an import
would build more than a hundred of them. Nothing is built while an event's level is off.

There is one module for each logger below `lanelog`; those of the loops are in `engine/`. `fact` has the decorators,
`log` goes out through structlog, `listing` has all events for the command line, and `measured` has the numbers.
"""
