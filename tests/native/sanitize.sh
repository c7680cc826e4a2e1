#!/bin/sh
# Build the compiled leaves with AddressSanitizer and UndefinedBehaviorSanitizer and run their tests; any finding ends the run.
# Usage: sanitize.sh [PYTHON [PYTEST ARGUMENTS]]; needs gcc (or CC) with its sanitizer libraries. Works on a copy under build/sanitize.
set -eu

python=$(command -v "${1:-python3}")
case $python in /*) ;; *) python=$PWD/$python ;; esac
[ $# -gt 0 ] && shift
cd "$(dirname "$0")/../.."
tree=build/sanitize
asan=$("${CC:-gcc}" -print-file-name=libasan.so)
case $asan in /*) ;; *) echo "sanitize: expected libasan.so beside ${CC:-gcc}, found none" >&2; exit 1 ;; esac

# A fresh copy each time: an object file left over from another version of a header would be taken for a new one.
rm -rf "$tree"
mkdir -p "$tree"
cp -pR pyproject.toml setup.py README.md LICENSE streamco tests "$tree"
export STREAMCO_DATA="${STREAMCO_DATA:-$PWD/../shared/data}"
find "$tree/streamco" -name '*.so' -exec rm {} +
cd "$tree"
STREAMCO_BUILD_NATIVE=yes STREAMCO_SANITIZE=address,undefined "$python" setup.py --quiet build_ext --inplace

for leaf in streamco/_native/*.pyx; do
    built=$(echo "${leaf%.pyx}".*.so)
    grep -q __asan_report "$built" || { echo "sanitize: expected $built to be built with sanitizers" >&2; exit 1; }
done

# malloc, so that each Python object is a block whose borders are watched; no leak check, because the interpreter frees little at its end
# (the tests count references instead). pytest leaves file descriptor 2 alone: a report must reach the terminal.
export PYTHONPATH=. PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
unset STREAMCO_NO_NATIVE
LD_PRELOAD=$asan "$python" -c "
import pathlib, streamco._native as native
assert native.HAS_NATIVE, 'the sanitized leaves did not load'
assert pathlib.Path(native.__file__).is_relative_to(pathlib.Path.cwd()), native.__file__"
LD_PRELOAD=$asan "$python" -m pytest -q -p no:cacheprovider --capture=sys tests/native tests/wire/test_token_frames.py tests/wire/test_sse.py tests/wire/verify/test_topk.py \
    tests/fuzz/test_verify.py "$@"
