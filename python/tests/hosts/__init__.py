"""Hosts of a test: network namespaces with addresses and links of their own, which a test can cut, slow and heal."""
