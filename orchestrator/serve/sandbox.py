"""`ori sandbox build`: makes an image for code from Debian's packages, where none can be pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from contextlib import closing
from pathlib import Path

from orchestrator.errors import ConfigError, OriError
from orchestrator.sandbox.client import BUILT, connect
from orchestrator.serve.report import Report
from orchestrator.workspace.files import format_size

PACKAGES = ("python3",)
"""Debian packages that every image has, besides the smallest system, which includes bash."""
_LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")


def build(args: Namespace) -> Report:
    """Make the image and give it to the container engine."""
    if os.geteuid():
        raise ConfigError("this makes a file system with other owners, which needs root: sudo ori sandbox build …")
    if shutil.which("debootstrap") is None:
        raise ConfigError("debootstrap is missing, which fetches Debian's packages: sudo apt install debootstrap")
    packages = list(dict.fromkeys([*PACKAGES, *args.package]))
    with closing(connect()) as api, tempfile.TemporaryDirectory(prefix="ori-image-") as folder:
        root = Path(folder, "root")
        mirror = [args.mirror] if args.mirror else []
        _run(["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", args.suite, str(root), *mirror])
        left_out = [f"--exclude=./{path}/*" for path in _LEFT_OUT]
        with subprocess.Popen(["tar", "-C", root, *left_out, "-c", "."], stdout=subprocess.PIPE) as tar:
            api.import_image_from_stream(tar.stdout, repository=BUILT)
        size = api.inspect_image(BUILT)["Size"]
    text = f"the image {BUILT} ({format_size(size)}) is ready, and is what run_code uses"
    return Report(data={"image": BUILT, "size": size, "packages": packages}, text=text)


def _run(command: list[str]) -> None:
    print("ori:", *command, file=sys.stderr, flush=True)
    status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    if status:
        raise OriError(f"{command[0]} failed with exit status {status}; what it said stands above")
