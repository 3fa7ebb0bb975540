#!/usr/bin/env python
"""Ordered web hooks with Django: each change of a product is sent to another system, in the order of the changes.

`catalog/models.py` publishes a change in the transaction that makes it. `catalog/jobs.py` forwards it, with retries.
The changes of one product wait for each other. Those of other products do not.

Install lanelog with its extra `cli`, and django. Set LANELOG_URL and WEBHOOK_URL, go to `examples/webhooks`, and run:

    python manage.py lanelog_migrate && python manage.py migrate    # lanelog's tables, and those of the project
    python manage.py lanelog_worker                                 # forwards changes, until SIGTERM or Ctrl-C
    python manage.py shell -c 'Product.objects.create(name="tea", cents=450)'   # in another terminal: a change
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    execute_from_command_line(sys.argv)
