"""Builds what pyproject.toml cannot say: the C extension, the BPF programs, and the programs that look names up with
a real libc."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError

NATIVE = Path("loadgen/native")
BPF_SOURCES = sorted(Path("loadgen/kernel/datapath").glob("*.bpf.c"))
LOOKUP_SOURCE = Path("loadgen/drivers/lookup.c")
LOOKUPS = {"glibc": (os.environ.get("CC", "cc"), ()), "musl": ("musl-gcc", ("-static",))}
"""By libc: its compiler. Each program is built where there is one; loadgen says what is missing when it is wanted."""


class BuildNative(build_ext):
    """build_ext that also compiles what is no extension, and puts it where the package looks for it."""

    def run(self) -> None:
        super().run()
        for source in BPF_SOURCES:
            self._compile_bpf(source, self._target(source.with_suffix(".o")))
        for libc in _libcs():
            self._compile_lookup(libc, self._target(_lookup(libc)))

    def get_outputs(self) -> list[str]:
        return list(dict.fromkeys([*super().get_outputs(), *(str(Path(self.build_lib) / path) for path in _made())]))

    def get_output_mapping(self) -> dict[str, str]:
        if not self.inplace:
            return super().get_output_mapping()
        return {**super().get_output_mapping(), **{str(Path(self.build_lib) / path): str(path) for path in _made()}}

    def _target(self, path: Path) -> Path:
        return path if self.inplace else Path(self.build_lib) / path

    def _compile_lookup(self, libc: str, target: Path) -> None:
        compiler, options = LOOKUPS[libc]
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        command = [*compiler.split(), "-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", *options]
        try:
            subprocess.run([*command, "-o", str(partial), str(LOOKUP_SOURCE)], check=True)
            partial.replace(target)
        except subprocess.CalledProcessError as error:
            raise ExecError(f"{compiler} could not compile {LOOKUP_SOURCE} (exit {error.returncode})") from error
        finally:
            partial.unlink(missing_ok=True)

    def _compile_bpf(self, source: Path, target: Path) -> None:
        clang = shutil.which("clang")
        if clang is None:
            raise ExecError(f"clang is needed to compile {source}: install the Debian package `clang`")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written beside the target and moved over it: a program being loaded never sees half an object.
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            command = [clang, "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", *_kernel_headers()]
            subprocess.run([*command, "-c", str(source), "-o", str(partial)], check=True)
            partial.replace(target)
        except subprocess.CalledProcessError as error:
            raise ExecError(f"clang could not compile {source} (exit {error.returncode})") from error
        finally:
            partial.unlink(missing_ok=True)


def _libcs() -> list[str]:
    """Those with a compiler here. `cc` makes glibc's where glibc is the system's libc."""
    found = [name for name, (compiler, _) in LOOKUPS.items() if shutil.which(compiler.split()[0])]
    return [name for name in found if name in ("musl", platform.libc_ver()[0])]


def _lookup(libc: str) -> Path:
    return LOOKUP_SOURCE.with_name(f"lookup-{libc}")


def _made() -> list[Path]:
    return [*(source.with_suffix(".o") for source in BPF_SOURCES), *(_lookup(libc) for libc in _libcs())]


def _kernel_headers() -> list[str]:
    """Debian keeps <asm/types.h> in a directory per architecture, which clang leaves out for `-target bpf`."""
    directory = Path(f"/usr/include/{platform.machine()}-linux-gnu")
    return ["-I", str(directory)] if directory.is_dir() else []


setup(
    ext_modules=[
        Extension(
            "loadgen.native._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": BuildNative},
)
