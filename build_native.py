"""Builds the C++ kernels at installation where a compiler is present.

The kernels speak a plain C interface and are loaded with ctypes, so the build needs
a C++ compiler and nothing else. Without one the package installs all the same: every
kernel has a pure-PyTorch path of equal results, and `sequester doctor` says which runs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno"]


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles each `src/sequester/native/*.cpp` into a shared library beside it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as belonging to this platform if anything was built."""
        folder = Path(self.root) / "src" / "sequester" / "native"
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if os.environ.get("SEQUESTER_NO_NATIVE") or not folder.is_dir() or compiler is None:
            print("sequester: no compiled kernels; the pure-PyTorch path is used", file=sys.stderr)
            return
        built = [
            source for source in sorted(folder.glob("*.cpp")) if self._compile(compiler, source)
        ]
        if built:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def _compile(self, compiler: str, source: Path) -> bool:
        target = source.with_suffix(".so")
        command = [compiler, *FLAGS, str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"sequester: {source.name} did not compile and is left out:", file=sys.stderr)
            print(done.stderr, file=sys.stderr)
            return False
        return True
