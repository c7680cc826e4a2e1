"""Try wheels in empty environments: ``python -m bench.release.try_wheels FOLDER [PYTHON ...]``.

Each wheel of the folder that fits a Python is installed in a new environment of it, and ``bench/release/check_wheel.py`` runs there, from a
folder that isn't the clone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECK = Path(__file__).resolve().parent / "check_wheel.py"


def main(folder: str, *pythons: str) -> int:
    """Try all wheels; 1 if one fails or a Python has none."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # pip would find the clone
    wheels = sorted(Path(folder).resolve().glob("*.whl"))
    for python in pythons or (sys.executable,):
        tag = subprocess.run(
            [python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"], check=True, capture_output=True, text=True
        ).stdout.strip()
        fitting = [wheel for wheel in wheels if f"-{tag}-" in wheel.name or "-py3-none-any" in wheel.name]
        if not fitting:
            print(f"{python}: expected a wheel for {tag}, got none in {folder}", file=sys.stderr)
            return 1
        for wheel in fitting:
            with tempfile.TemporaryDirectory() as empty:
                subprocess.run([python, "-m", "venv", f"{empty}/venv"], check=True)
                inside = f"{empty}/venv/bin/python"
                install = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
                subprocess.run(install, cwd=empty, env=environment, check=True)
                kind = "--pure" if wheel.name.endswith("-any.whl") else "--native"
                if subprocess.run([inside, str(CHECK), kind], cwd=empty, env=environment, check=False).returncode:
                    print(f"{wheel.name} on {python}: a check failed", file=sys.stderr)
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
