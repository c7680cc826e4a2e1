"""Put a bill of materials into wheels: ``python -m bench.release.embed_sbom WHEEL ...``.

PEP 770: ``*.dist-info/sboms/streamco.cdx.json``, in CycloneDX's form. It names the package with its version and license, and the packages
that it declares. The compiled parts are streamco's own sources; a wheel brings no library of others.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL
from packaging.requirements import Requirement

__all__ = ["embed", "main", "make_sbom"]


def make_sbom(metadata: str) -> str:
    """Return the bill of materials as JSON.

    Args:
        metadata: the wheel's METADATA file.
    """
    headers = HeaderParser().parsestr(metadata)
    name, version = headers["Name"], headers["Version"]
    package = Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=PackageURL("pypi", name=name, version=version),
        licenses=[LicenseFactory().make_from_string(headers["License-Expression"])],
    )
    bom = Bom()
    bom.metadata.component = package
    needed = []
    for text in headers.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.marker is not None and "extra" in str(requirement.marker):
            continue  # an extra is chosen by the user
        needed.append(Component(type=ComponentType.LIBRARY, name=requirement.name, purl=PackageURL("pypi", name=requirement.name)))
    for each in needed:
        bom.components.add(each)
    bom.register_dependency(package, needed)
    return JsonV1Dot5(bom).output_as_string(indent=1)


def embed(wheel: Path) -> None:
    """Write the bill into a wheel, in place."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", folder, str(wheel)], check=True, stdout=subprocess.DEVNULL)
        (unpacked,) = Path(folder).iterdir()
        (info,) = unpacked.glob("*.dist-info")
        (info / "sboms").mkdir(exist_ok=True)
        (info / "sboms" / "streamco.cdx.json").write_text(make_sbom((info / "METADATA").read_text(encoding="utf-8")), encoding="utf-8")
        command = [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(wheel.parent), str(unpacked)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main(*wheels: str) -> int:
    """Embed a bill in each wheel."""
    for each in wheels:
        embed(Path(each).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
