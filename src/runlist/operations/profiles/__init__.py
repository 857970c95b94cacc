"""What kernels need: class, SMs, duration, by the kernel's name."""

from runlist.operations.profiles.profile import Profile
from runlist.operations.profiles.written import read

__all__ = ["Profile", "read"]
