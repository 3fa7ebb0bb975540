"""Every fact that lanelog tells, declared once, and the way out to those who listen.

Owns name, level, logger, fields and meaning of each event. Never decides when one is told: the engine does, and calls
the declaration, `facts.lane_lost(topic=…, key=…)`. `lanelog events` and docs/reference/events.md are made of the same
declarations.

A declaration is an empty function under a decorator: its signature names and types the fields, so the type checker
reads each call, and its docstring is the meaning. A class for each event would say the same in more lines, and an
import would build more than a hundred of them. Nothing is built while an event's level is off.

There is one module for each logger below `lanelog`. `fact` has the decorators, `log` goes out through structlog, and
`listing` has all events for the command line.
"""
