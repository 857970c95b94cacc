// Libraries that are opened with RTLD_DEEPBIND. They and what comes with them find functions in themselves and in what
// they were linked with before they look at what is preloaded, and so pass by us.
#pragma once

namespace runlist::resolve {

using Open = void* (*)(const char* file, int mode);

// Opens one as `open`, the real dlopen, does for the object that `caller` lies in; then what came with it is bound as
// it is without the flag. The driver's library, where it is needed, is there before: its door is ours by the time that
// constructors run, though what they call themselves is not yet.
void* open_deep(Open open, const char* file, int mode, const void* caller);

}  // namespace runlist::resolve
