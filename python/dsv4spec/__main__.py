# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv4spec`` is the command ``dsv4spec``."""
import sys

from .cli import main

sys.exit(main())
