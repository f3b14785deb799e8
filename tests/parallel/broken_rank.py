"""A rank that ends before it has said anything."""

raise SystemExit(3)
