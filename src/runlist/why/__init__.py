"""Why a request of a process was late: what its threads, their cores and the GPU did meanwhile.

`recorder` watches one process while it is asked, by the kernel plane's programs and the GPU's switch log. All else is
arithmetic on what was seen: `threads` (what each thread did when), `requests` (its calls of the driver, and the
requests that they make), `parts` (where the time of a request went), `culprit` (which part is to blame, in words),
`table` and `tracks` (what people see).
"""
