"""One trace from a request of FastAPI to the handler of a worker."""
