"""Which page holds which tokens: integers only. One facade, `Cache`; one way to hold pages, a `Lease`."""

from zerokl.cache.pages import Cache, CacheStats, Lease

__all__ = ["Cache", "CacheStats", "Lease"]
