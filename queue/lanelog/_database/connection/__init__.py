"""One connection: drivers, their answers, what the server is, a packet, the proof of a transaction."""
