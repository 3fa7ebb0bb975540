"""The dashboard: what is stuck, why, and the button that repairs it, in a browser. Needs `lanelog[web]`.

Owns the pages, the actions and who may use them. Never has SQL of its own: everything it shows and does comes from
`client.admin`. The command `lanelog web` serves it; `dashboard` returns it as an ASGI application, `wsgi` as a WSGI
application.
"""

from __future__ import annotations

from lanelog.dashboard.access import Access
from lanelog.dashboard.app import dashboard
from lanelog.dashboard.live import WebPace

__all__ = ["Access", "WebPace", "dashboard"]
