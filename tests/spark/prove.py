"""The proof of archive and replay with large numbers, on a private database: what it found, as JSON.

PYTHONPATH=tests python tests/spark/prove.py --messages 200000 --lanes 500 [--server mysql-local]
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import lanelog
from lanelog import devserver
from lanelog.spark import session
from support.spark_proof import as_json, prove


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--lanes", type=int, default=500)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", default="local")
    given = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:7.1f} s  {line}\n")

    with devserver.start(given.server) as server, tempfile.TemporaryDirectory() as directory:
        with lanelog.connect(server.url) as client:
            client.migrate()
        spark = session.start("proof", **{"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"})
        proof = prove(
            spark,
            server.url,
            Path(directory),
            messages=given.messages,
            lanes=given.lanes,
            batch=given.batch,
            kills=random.Random(given.seed).sample(["python", "jvm"], 2),
            seed=given.seed,
            say=say,
        )
        spark.stop()
        sys.stdout.write(as_json(proof, server=f"{server.family} {server.version}", lanes=given.lanes) + "\n")
    whole = proof.archived == proof.replayed == given.messages
    return 0 if whole and not (proof.twice or proof.missing or proof.altered or proof.out_of_order) else 1


if __name__ == "__main__":
    sys.exit(main())
