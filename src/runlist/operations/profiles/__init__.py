"""What kernels need: class, SMs, duration, by the kernel's name. From files of profilers, from what a program did, and
kept for each kind of GPU.
"""

from runlist.operations.profiles.files import read
from runlist.operations.profiles.learning import Learner
from runlist.operations.profiles.profile import Profile
from runlist.operations.profiles.store import Store

__all__ = ["Learner", "Profile", "Store", "read"]
