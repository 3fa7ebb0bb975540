"""Products. Each save publishes what was saved, in the same commit."""

from __future__ import annotations

from typing import Any

from django.db import models, transaction

from lanelog.contrib.django import publish


class Product(models.Model):  # type: ignore[misc]  # Django ships no types
    """What is for sale. `delete`, `QuerySet.update` and `bulk_create` call no `save`, so they publish nothing."""

    name = models.CharField(max_length=200)
    cents = models.PositiveIntegerField()

    def __str__(self) -> str:
        return str(self.name)

    def save(self, *args: Any, **options: Any) -> None:
        """Save and publish: the row stays locked until both are committed, so messages have the order of changes."""
        with transaction.atomic():
            super().save(*args, **options)
            self.refresh_from_db(fields=["name", "cents"])  # what is stored now, also of fields that were not saved
            publish("products", f"product-{self.pk}", {"id": self.pk, "name": self.name, "cents": self.cents})
