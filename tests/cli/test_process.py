"""What child processes do first."""

from __future__ import annotations

import resource
import subprocess
import sys

SCRIPT = """
import resource
from zerokl.cli.process import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_frontend_may_open_as_many_files_as_the_system_allows() -> None:
    said = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    soft, hard = map(int, said.split())
    assert hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert soft == (min(hard, 65_536) if hard > 0 else 65_536)
