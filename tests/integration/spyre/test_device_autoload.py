"""`import torch` brings the device along, quickly, and nothing that goes wrong there stops it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import strideweave
from strideweave.spyre.autoload import autoload

SOURCES = Path(strideweave.__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that says that the package is installed, with its entry point."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "strideweave-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strideweave\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nstrideweave = strideweave.inductor.autoload:autoload\n")
    return folder


def run(code: str, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (*paths, SOURCES)))
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_entry_point_is_the_one_of_the_project() -> None:
    import tomllib

    project = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["torch.backends"] == {
        "strideweave": "strideweave.inductor.autoload:autoload"
    }


def test_import_torch_alone_registers_the_device(installed: Path) -> None:
    found = run(
        "import torch, sys; print(torch.ones(2, device='spyre').sum().item(), torch.spyre.device_count());"
        "print([m for m in sys.modules if m.split('.')[0] in ('sympy', 'numpy') and '.' not in m],"
        "sorted(m for m in sys.modules if m.startswith('strideweave') and m.count('.') == 1))",
        installed,
        TORCH_DEVICE_BACKEND_AUTOLOAD="1",
    )
    assert (found.returncode, found.stderr) == (0, "")
    first, second = found.stdout.splitlines()
    assert first == "2.0 1"
    assert "sympy" not in second
    assert second.endswith("['strideweave.inductor', 'strideweave.spyre']")


def test_autoload_can_be_turned_off_and_done_by_hand(installed: Path) -> None:
    found = run(
        "import torch; print(hasattr(torch, 'spyre')); import strideweave.spyre.device as d; "
        "print(d.is_registered(), torch.ones(2, device='spyre').tolist())",
        installed,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert (found.stdout, found.stderr) == ("False\nTrue [1.0, 1.0]\n", "")


def test_import_of_torch_costs_little_more(installed: Path) -> None:
    code = (
        "import time, strideweave.spyre.autoload as a; load = a.autoload; spent = []\n"
        "def timed():\n    start = time.perf_counter(); load(); spent.append(time.perf_counter() - start)\n"
        "a.autoload = timed\n"
        "import torch; print(spent[0])"
    )
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(installed / "cache")}
    spent = [float(run(code, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="1", **cache).stdout) for _ in range(4)]
    assert statistics.median(spent[1:]) < 0.06, spent  # 0.010 s on an idle machine; the first one compiles


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("torch.utils.rename_privateuse1_backend('other')", "another package has registered the device 'other'"),
        ("torch.utils.rename_privateuse1_backend('spyre')", "another package has registered the device 'spyre'"),
        ("import types; torch.spyre = types.ModuleType('torch.spyre')", "torch.spyre exists already"),
    ],
)
def test_where_another_package_has_the_name_ours_stands_aside(before: str, reason: str) -> None:
    found = run(
        f"import torch, logging; logging.basicConfig(); {before}\n"
        "from strideweave.spyre.autoload import autoload; autoload(); autoload()\n"
        "import strideweave.spyre, strideweave.spyre.device; print(strideweave.spyre.is_registered())",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert found.stdout == "False\n"
    assert found.stderr.count("WARNING") == 1
    assert reason in found.stderr


def test_a_failure_in_the_autoload_never_stops_import_torch(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'strideweave.spyre.storage': raise ValueError('broken on purpose')\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    found = run("import torch; print(torch.ones(1).item())", installed, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert (found.returncode, found.stdout) == (0, "1.0\n")
    assert "is not registered" in found.stderr
    assert "broken on purpose" in found.stderr


def test_process_with_live_tensors_ends_quietly(installed: Path) -> None:
    found = run(
        "import torch; keep = [torch.ones(3, device='spyre') for _ in range(5)]; keep.append(keep); "
        "import threading; threading.Thread(target=lambda: keep[0] + 1).start()",
        installed,
        TORCH_DEVICE_BACKEND_AUTOLOAD="1",
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_autoload_again_does_nothing() -> None:
    autoload()
    autoload()
