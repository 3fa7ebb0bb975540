"""What `python -m chaos.proof` keeps of its runs; one that failed stops no other one, and does not go unnoticed."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chaos import proof

HEAD = {
    "measured_at": "2026-01-01T00:00:00+00:00",
    "lanelog": {"version": "1", "commit": None},
    "server": {"family": "mariadb", "version": "1.2.3"},
    "python": "3.11",
    "cores": 2,
    "lease": 6.0,
    "left_out": {},
    "failures": [],
}


def one_run(seed: int, *, anomalies: dict[str, int] | None = None) -> dict[str, Any]:
    handled = {"effects": {"deliveries": 10, "later_attempts": 1}}
    faults = [
        {"kind": "kill", "start": 1, "end": 1, "processes": ["w1"], "recovery": seed, "disturbed": False},
        {"kind": "kill", "start": 9, "end": 9, "processes": ["w2"], "recovery": 99, "disturbed": True},
    ]
    return {
        **HEAD,
        "seed": seed,
        "counts": {"published": 11, "acknowledged": 9, "handled": handled},
        "explained": [{"kind": "duplicate", "cause": "kill", "count": 2}],
        "anomalies": anomalies or {},
        "faults": faults,
    }


def one_profile(name: str) -> dict[str, Any]:
    measured = {"rate": 1, "keys": 1, "workers": 4, "bounds": {}, "measured": {"worst": 1.5}, "missed": [], "each": []}
    return {**HEAD, "command": name, **measured, "anomalies": {}}


def test_a_failed_run_is_written_down_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON has every seed, what was explained added up, and the failed ones; the exit status shows it, too."""
    modules: list[str] = []

    def run(module: str, directory: Path, *args: str) -> tuple[int, str, dict[str, Any] | None, Path | None]:
        modules.append(module)
        if module == "profiles":
            return 0, "", one_profile(args[0]), None
        seed = int(args[1].removeprefix("--seed=")) if args else 1
        picture = tmp_path / "picture.png"
        picture.write_bytes(b"png")
        if seed == 2:
            return 1, "lost-write", one_run(seed, anomalies={"lost-write": 1}), picture
        if seed == 3:
            return 1, "no server", None, None
        return 0, "", one_run(seed), picture

    monkeypatch.setattr(proof, "run", run)
    asked = proof.arguments(["--server=local", "--seeds=1-4", f"--output={tmp_path / 'results'}"])
    (family,) = proof.prove(asked, tmp_path, Console(quiet=True))
    assert family.failed == {"seed 2": "lost-write", "seed 3": "no server"}
    kept = json.loads((tmp_path / "results/chaos-mariadb-1.2.3.json").read_text())
    assert kept["anomalies"] == {"1": {}, "2": {"lost-write": 1}, "4": {}}
    assert kept["failures"]["seed 3"] == "no server"
    assert kept["explained"] == [{"kind": "duplicate", "cause": "kill", "count": 6}]
    assert (kept["acknowledged"], kept["handled"]) == (27, 30)
    assert set(kept["profiles"]) == {"kills", "restarts"}
    assert (tmp_path / "results/chaos-seed-01-mariadb-1.2.3.png").read_bytes() == b"png"
    assert proof.table([family]).row_count == 1
    for seed, status in ((1, 0), (2, 1)):
        options = ["--server=local", f"--seeds={seed}", f"--output={tmp_path}", f"--directory={tmp_path}"]
        monkeypatch.setattr("sys.argv", ["proof", *options])
        assert proof.main() == status
    (tmp_path / "local-1").mkdir()
    (tmp_path / "local-1/chaos-a.json").write_text("{}")
    modules.clear()
    monkeypatch.setattr("sys.argv", ["proof", *options, "--seeds=1,2", "--profiles=", "--again"])
    assert proof.main() == 1
    assert modules == ["judge", "run"]
