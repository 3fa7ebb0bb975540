"""A shop. `shop.web` takes orders and `shop.invoices` bills them; `shop.orders` has the tables of both.

`shop.billing` and `shop.shipping` are two more groups of the same topic, which only log. They need no table and no
SQLAlchemy, so `examples/deploy` runs them in containers, on Kubernetes and under systemd.
"""
