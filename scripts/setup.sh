#!/bin/sh
# Makes this checkout runnable: Debian packages, a virtual environment in .venv, the C extension, the BPF object.
#
#   scripts/setup.sh [chaos|build|test|e2e] chaos: what building and running the lab needs (default)
#                                           build: what `make check` needs: the developers' tools, not the lab's
#                                           test:  both, and the tools that kernel tests compare us with
#                                           e2e:   the same with Locust, for the tests on clusters
#   PYTHON=/path/to/python3.12              use this interpreter
#
# As root on a Debian-like system it installs what is missing and says so; otherwise it lists what is missing. When it
# cannot make things ready it says why and exits 4. Run again, it does nothing but compare two stamps. Only apt-get
# and pip use the network, with whatever proxy and index the environment and their configuration name.
set -eu
trap '[ $? -eq 0 ] || exit 4' EXIT # whatever failed: in `make chaos` a 1 would mean a broken threshold
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # nft, bpftool and ldconfig live there; users' PATHs lack it
purpose=${1:-chaos}
venv=.venv
missing="" # Debian packages, in the order found
reasons="" # one line for each of them

say() { printf 'setup: %s\n' "$*" >&2; }
give_up() { say "$@"; exit 4; }
have() { command -v "$1" >/dev/null 2>&1; }
can_install() { [ "$(id -u)" -eq 0 ] && have apt-get; }

# --- Debian packages ------------------------------------------------------------------------------------------

# want PACKAGE WHY COMMAND...: PACKAGE is missing unless COMMAND, which looks for the thing itself, succeeds.
# Looking for the thing and not for the package keeps this true on systems that are not Debian.
want() {
    package=$1 why=$2
    shift 2
    "$@" && return
    missing="$missing $package"
    reasons="$reasons  $package: $why
"
}
has_header() { [ -f "/usr/include/$1" ] || echo "#include <$1>" | cc -E - >/dev/null 2>&1; }
has_library() { ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$1 "; }

apt_get() {
    # Its dozens of lines are worth reading only when it failed.
    log=$(DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=120 "$@" 2>&1 </dev/null) || {
        printf '%s\n' "$log" >&2
        return 1
    }
}

apt_install() {
    say "installing Debian packages: $*"
    find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | grep -q . || apt_get update || true
    apt_get install --no-install-recommends "$@" && return
    say "once more, with fresh package lists"
    apt_get update || true # one unreachable source of several need not matter
    apt_get install --no-install-recommends "$@" || give_up "apt-get could not install: $*"
}

settle_missing() {
    [ -n "$missing" ] || return 0
    if can_install; then
        # shellcheck disable=SC2086 # a list of names
        apt_install $missing
    else
        say "missing on this machine (Debian package: what for):"
        printf '%s' "$reasons" >&2
        give_up "install them as root, e.g. apt-get install$missing, then run this again"
    fi
}

# list_missing: fills $missing and $reasons for $purpose, and chooses the interpreter if one is needed.
list_missing() {
    missing="" reasons=""
    packages_are_current || choose_python
    if ! build_is_current; then
        want gcc "compiles the C extension" have cc
        want libc6-dev "the C library's headers" has_header stdio.h
        want clang "compiles the BPF program" have clang
        want libbpf-dev "the BPF program's headers" has_header bpf/bpf_helpers.h
    fi
    case $purpose in chaos | test)
        want libbpf1 "loads the BPF program (libbpf.so.1)" has_library libbpf.so.1
        want nftables "the lab's kube-proxy rules (nft)" have nft
        ;;
    esac
    if [ "$purpose" = test ]; then
        want bpftool "kernel tests read the maps with it too" have bpftool
        want iproute2 "kernel tests read links and filters with it too (ip, tc)" have tc
        want strace "tests count system calls with it" have strace
        want conntrack "kernel tests read the counters with it too" have conntrack
        want containernetworking-plugins "the model's plugin is chained after them" [ -x /usr/lib/cni/ptp ]
        want openssl "makes the certificates of test servers" have openssl
        want musl-tools "builds the lookups of the other libc (musl-gcc)" have musl-gcc
        # Large, and all but the two tests of the report's script go without it: at home it is the developer's choice.
        [ "${CI:-}" != true ] || want chromium "opens the HTML report as a reader would" have chromium
    fi
}

# --- Python ---------------------------------------------------------------------------------------------------

new_enough() { have "$1" && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }
has_python_h() {
    "$1" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

# find_python: prints the newest interpreter that is complete, else the newest at all; fails when there is none.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" && echo "$PYTHON"
        return
    fi
    first=""
    for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
        new_enough "$candidate" || continue
        if has_venv "$candidate" && has_python_h "$candidate"; then
            echo "$candidate"
            return
        fi
        first=${first:-$candidate}
    done
    [ -n "$first" ] && echo "$first"
}

no_python() {
    [ -z "${PYTHON:-}" ] || give_up "PYTHON=$PYTHON is not a Python >= 3.11"
    give_up "no Python >= 3.11 in PATH: install one (Debian 12 or newer: apt-get install python3 python3-venv" \
        "python3-dev), or name it: make PYTHON=/path/to/python3.12 ..."
}

choose_python() {
    python=$(find_python) || {
        if [ -n "${PYTHON:-}" ] || ! can_install; then no_python; fi
        say "no Python >= 3.11 found"
        apt_install python3 python3-venv python3-dev
        python=$(find_python) || no_python
    }
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if have dpkg-query && dpkg-query -S "$(readlink -f "$(command -v "$python")")" >/dev/null 2>&1; then
        want "python$version-venv" "makes the virtual environment" has_venv "$python"
        want "python$version-dev" "Python.h, for the C extension" has_python_h "$python"
    elif ! has_venv "$python" || ! has_python_h "$python"; then
        give_up "$(command -v "$python") ($version) lacks venv, ensurepip or Python.h: add them, or choose another" \
            "interpreter with PYTHON="
    fi
}

# --- The virtual environment and what is built into the checkout ------------------------------------------------

packages_key() { echo "$PWD $(sha256sum pyproject.toml) $1"; }
build_key() {
    echo "$("$venv/bin/python" -VV 2>/dev/null)" "$(command -v musl-gcc)" \
        "$(find loadgen -name '*.[ch]' | LC_ALL=C sort | xargs cat setup.py | sha256sum)"
}
stamped() { [ -f "$venv/$1" ] && [ "$(cat "$venv/$1")" = "$2" ]; }
built() { find loadgen -name '_native*.so' | grep -q . && find loadgen -name '*.bpf.o' | grep -q .; }
packages_are_current() {
    venv_fits || return 1
    # What has more serves too.
    for there in '[dev,kube-image]' '[dev]' ''; do
        stamped .packages "$(packages_key "$there")" && return
        [ "$there" != "$extras" ] || return 1
    done
}
build_is_current() { built && stamped .build "$(build_key)"; }

# venv_fits: it works, was made at this path, and with PYTHON when that is given.
venv_fits() {
    "$venv/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || return 1
    [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -VV 2>/dev/null)" = "$("$venv/bin/python" -VV)" ]
}

make_venv() {
    if venv_fits && { [ ! -f "$venv/.packages" ] || grep -qF "$PWD " "$venv/.packages"; }; then
        return
    fi
    say "making $venv with $(command -v "$python") ($version)"
    "$python" -m venv --clear "$venv" || give_up "$python could not make $venv"
}

install_packages() {
    say "installing the Python packages that pyproject.toml pins"
    pip="$venv/bin/python -m pip --disable-pip-version-check -q install"
    # The build's own requirements go into .venv, so that rebuilding after an edit needs no network.
    "$venv/bin/python" -c '
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' >"$venv/build-requires"
    { $pip -r "$venv/build-requires" && $pip --no-build-isolation -e ".$extras"; } ||
        give_up "pip could not install loadgen: its message is above"
    packages_key "$extras" >"$venv/.packages"
}

build() {
    say "building the C extension and the BPF object"
    "$venv/bin/python" setup.py -q build_ext --inplace --force || give_up "the build failed: its message is above"
    built || give_up "the build reported success but left no _native*.so or no *.bpf.o under loadgen/"
    build_key >"$venv/.build"
}

# --------------------------------------------------------------------------------------------------------------

case $purpose in
chaos) extras="" ;;
build) extras='[dev]' ;;
test | e2e)
    [ "$purpose" = test ] && extras='[dev]' || extras='[dev,kube-image]'
    purpose=test
    # Without root the kernel tests are skipped, unless a skip is a failure; then their tools must be here too.
    [ "$(id -u)" -eq 0 ] || [ "${LOADGEN_REQUIRE_KERNEL:-}" = 1 ] || purpose=build
    ;;
*) give_up "unknown purpose '$purpose': say build, chaos, test or e2e" ;;
esac

list_missing
settle_missing
list_missing
[ -z "$missing" ] || give_up "apt-get succeeded, yet these are not found:$missing (is PATH complete?)"
if ! packages_are_current; then
    [ -w . ] || give_up "$PWD is not writable for $(id -un): use a checkout of your own"
    make_venv
    install_packages
fi
build_is_current || build
