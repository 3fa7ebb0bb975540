"""A cluster of processes: driver, workers and executors share nothing but what Spark sends between them."""

import json
import os
import re
import shutil
import subprocess
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

from lanelog.client import Client
from support.spark import reader_of, rows_of

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs/copy_topic.py"
WITHIN = 300.0
"""Five JVMs start one after the other."""
INSTALLED = ("pyspark", "pyarrow", "cryptography")
"""What is not pure Python: with what it needs, it is installed where the executors run, as the README says."""


def needed(*names: str, without: tuple[str, ...] = ()) -> Iterator[metadata.Distribution]:
    """These distributions and all that they need, each once."""
    ahead, seen = list(names), {*without}
    while ahead:
        name = re.sub(r"[-_.]+", "-", ahead.pop()).lower()
        if name not in seen:
            seen.add(name)
            found = metadata.distribution(name)
            wanted = map(Requirement, found.requires or ())
            ahead += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
            yield found


def parts(distribution: metadata.Distribution) -> set[Path]:
    """Its packages and modules, where they are installed."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    return {Path(str(distribution.locate_file(name))) for name in names if not name.endswith(".pth")}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """What `pip install --target site .` and `zip` of the README make, without asking an index."""
    site = tmp_path / "site"
    site.mkdir()
    copied = {ROOT / "queue/lanelog", ROOT / "queue/pyspark_lanelog"}
    for distribution in needed("lanelog", without=("cryptography",)):
        if distribution.name != "lanelog":
            copied |= parts(distribution)
    for path in copied:
        if path.is_dir():
            shutil.copytree(path, site / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, site)
    return Path(shutil.make_archive(str(site), "zip", site))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment that has what Spark needs, and no lanelog."""
    venv.create(tmp_path / "bare", symlinks=True)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for path in {path for found in needed(*INSTALLED) for path in parts(found)}:
        (libraries / path.name).symlink_to(path)
    python = tmp_path / "bare/bin/python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    Path(packages, "libraries.pth").write_text(f"{libraries}\n")
    assert subprocess.run([python, "-c", "import lanelog"], stderr=subprocess.DEVNULL, check=False).returncode == 1
    return python


@pytest.mark.timeout(WITHIN + 30)  # more than the tier's, to report what the processes printed
def test_executors_that_get_lanelog_as_a_zip_read_and_write(
    client: Client, lanelog_url: str, archive: Path, python: Path
) -> None:
    """A standalone cluster of two workers on the loopback copies a topic: all of it, once, each key in its order.

    No Python there has lanelog: it comes as a zip.
    """
    client.publish_many("from", [(f"k{n % 20}", b"%d" % n) for n in range(4000)])
    home = Path(pyspark.__file__).parent
    cluster = ("--master", "local-cluster[2,1,1024]", "--driver-memory", "512m")
    done = subprocess.run(
        [home / "bin/spark-submit", *cluster, "--py-files", archive, PROGRAM, lanelog_url, "from", "to", str(WITHIN)],
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": str(python),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"executors": 2, "python": str(python)}
    lanes: dict[str, list[int]] = {}
    for row in rows_of(reader_of(lanelog_url, subscribe="to")):
        lanes.setdefault(row["key"], []).append(int(row["value"]))
    assert lanes == {f"k{n}": list(range(n, 4000, 20)) for n in range(20)}
