"""GPreempt (USENIX ATC'25), tried again with ordinary processes on the stock driver:
`python -m bench.papers.gpreempt`.
"""
