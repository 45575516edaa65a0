"""Redraw every committed sample of measured rows and compare (part of `make validate`)."""

from __future__ import annotations

import sys

import sample_gemm
import samples


def main() -> int:
    return max(sample_gemm.main(["--check"]), samples.main(["--check"]))


if __name__ == "__main__":
    sys.exit(main())
