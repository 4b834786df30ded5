"""Compiles the loop with mypyc where a C compiler is at hand; without one its sources run.

So they do in an editable install. Everything else about the package is in pyproject.toml.
"""

import os
import sys

from setuptools import Extension, setup

HOT = [
    "serving/step.py",
    "serving/request.py",
    "serving/blocks.py",
    "serving/queue.py",
    "serving/group.py",
    "serving/recorder.py",
    "serving/core.py",
    "policies/grouping.py",
    "policies/admission.py",
    "policies/in_order.py",
    "policies/continuous.py",
    "policies/layout.py",
    "policies/drain.py",
    "sim/curve.py",
    "sim/roofline.py",
    "sim/engine.py",
]


def compiled() -> list[Extension]:
    """The hot modules as extensions that may fail to build."""
    from mypyc.build import mypycify

    options = [
        "--config-file=",
        f"--cache-dir={os.devnull}",
        "--no-site-packages",  # of the types only our own count: nothing but mypy is needed
        "--ignore-missing-imports",
        "--follow-imports=silent",
    ]
    extensions = mypycify([*options, *HOT], opt_level="2", debug_level="0", group_name="lengthwise")
    for extension in extensions:
        extension.optional = True
        if sys.platform != "win32":  # a fused multiply-add would change a record's last bit
            extension.extra_compile_args.append("-ffp-contract=off")
    return extensions


setup(ext_modules=compiled() if {"bdist_wheel", "build_ext"} & set(sys.argv) else [])
