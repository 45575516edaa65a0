"""Redraw every committed sample of measured rows and compare (part of `make validate`)."""

from __future__ import annotations

import sys

import sample_gemm
import sample_serving
import samples


def main() -> int:
    return max(x.main(["--check"]) for x in (sample_gemm, samples, sample_serving))


if __name__ == "__main__":
    sys.exit(main())
