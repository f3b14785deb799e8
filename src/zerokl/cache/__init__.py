"""Which page holds which tokens: integers only. One facade, `Cache`; one way to hold pages, a `Lease`."""

from zerokl.cache.lease import Lease
from zerokl.cache.pages import Cache
from zerokl.cache.stats import CacheStats

__all__ = ["Cache", "CacheStats", "Lease"]
