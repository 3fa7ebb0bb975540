"""The server at the other end: what it is, whether it takes what we set, and which of several hosts is the primary."""
