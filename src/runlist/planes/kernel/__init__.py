"""The kernel plane: programs in the kernel that see the requests to a driver as they are answered.

It knows no driver: what a request is, and what a class means, is told by the plane whose driver it is (`Capture` of
`planes.interface`). It finds and changes nothing itself: who is told of an event asks the driver.
"""
