"""The archive's processes are killed while it archives, workers consume and collection runs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.spark_proof import prove


@pytest.mark.timeout(300)  # two JVMs start one after the other
@pytest.mark.parametrize("kill", ["jvm", "python"])
def test_killed_it_holds_everything_once(spark: SparkSession, lanelog_url: str, tmp_path: Path, kill: str) -> None:
    """The archive equals what was published, whatever was killed when; its replay too, in order, and only once."""
    proof = prove(spark, lanelog_url, tmp_path, messages=5_000, lanes=50, batch=1_000, kills=[kill], seed=7)
    assert len(proof.kills) == 1
    assert (proof.archived, proof.twice, proof.missing, proof.altered) == (5_000, 0, 0, 0)
    assert proof.collected > 0
    assert (proof.replayed, proof.replayed_again, proof.out_of_order, proof.copies_altered) == (5_000, 0, 0, 0)
