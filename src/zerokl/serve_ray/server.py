"""A whole server as a child of a replica: `python -m zerokl.serve_ray.server LIFELINE FLAGS...`.

It ends when the replica does, however that ends: the replica alone holds the other end of the lifeline.
"""

from __future__ import annotations

import sys

from zerokl.cli import main
from zerokl.cli.process import hold_lifeline

if __name__ == "__main__":
    hold_lifeline(int(sys.argv[1]))
    sys.argv[1:2] = ["serve"]
    main()
