"""A shop with two groups of workers, as `lanelog worker` runs them: `shop.billing:client` and `shop.shipping:client`.

`examples/deploy` runs them in containers, on Kubernetes and under systemd.
"""
