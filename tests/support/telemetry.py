"""What OpenTelemetry gets from lanelog."""

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric


def metrics_of(reader: InMemoryMetricReader) -> list[Metric]:
    """What a reader has got by now."""
    data = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return [metric for scope in scopes for metric in scope.metrics]
