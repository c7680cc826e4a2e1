"""The compiled leaves; everything else is in pyproject.toml.

STREAMCO_BUILD_NATIVE=yes makes a failed build an error, =no skips it; by default a failed build leaves the pure twins in charge.
STREAMCO_SANITIZE=address,undefined builds with sanitizers.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, setup

MODES = ("auto", "yes", "no")
MODE = os.environ.get("STREAMCO_BUILD_NATIVE", "auto")
if MODE not in MODES:
    raise SystemExit(f"STREAMCO_BUILD_NATIVE: expected one of {', '.join(MODES)}, got {MODE!r}")
REPOSITORY = "https://github.com/streamco/streamco"
SANITIZE = os.environ.get("STREAMCO_SANITIZE", "")
HEADERS = sorted(str(path) for path in Path("streamco/_native/include").glob("*.h"))


def extensions() -> list[Extension]:
    """One extension a .pyx file."""
    sources = [] if MODE == "no" else sorted(Path("streamco/_native").glob("*.pyx"))
    exact = "-ffp-contract=off"  # the same doubles as the twins, also where the processor could multiply and add in one step
    flags = ["-O3", "-g0", "-fno-strict-aliasing", exact]
    link: list[str] = []
    if SANITIZE:
        flags = ["-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-DSTREAMCO_SANITIZE"]
        flags.append(exact)
        link = [f"-fsanitize={SANITIZE}"]
    common = {"extra_compile_args": flags, "extra_link_args": link, "depends": HEADERS}
    found = [Extension(f"streamco._native.{path.stem}", [str(path)], **common) for path in sources]
    if not found:
        return []
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - not needed, and not always there, without extensions
    except ImportError:  # `python setup.py` or `pip install --no-build-isolation` without it
        if MODE == "yes":
            raise
        return []
    built = cythonize(found, language_level=3, compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True})
    for extension in built:
        extension.optional = MODE != "yes"  # on what cythonize returns, because it makes new extensions and drops the setting
    return built


def index_page() -> str:
    """README.md for a package index: links and pictures of the clone are those of the repository's main branch there."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\])\((?!https?:)([^)]*)\)", rf"\1({REPOSITORY}/raw/main/\2)", text)
    return re.sub(r"(?<!!)(\[[^\]]*\])\((?!https?:|#)([^)]*)\)", rf"\1({REPOSITORY}/blob/main/\2)", text)


setup(ext_modules=extensions(), long_description=index_page(), long_description_content_type="text/markdown")
