"""Measures tollgate beside nginx, HAProxy and Envoy. `make bench-peers` runs it; docs/performance.md has the results."""
