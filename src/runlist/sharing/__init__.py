"""Programs that share the SMs of a GPU at the same time, as clients of NVIDIA's MPS: `runlist run --share sms`.

There is an MPS control daemon, a page and a place for each client for every set of GPUs, in a folder of its own below
`paths.sharing_dir`:

    turn        held by whoever starts an attendant, takes a place or clears a folder away; stays
    KEY/page    what the operations' scheduler of librunlist.so maps in each client (`RUNLIST_OPERATIONS`)
    KEY/places  the locks that are the clients' places
    KEY/who-N   the process id of whom place N was given to last
    KEY/attendant, KEY/pipe/, KEY/log/      of the attendant: the process that starts an MPS control daemon, and ends it
                when its last client is gone

A client holds its place by two locks of the kernel on one description of that file, which its command inherits: byte N
is its place, and the lock on the whole file says that somebody is there. Both end with the last process that has it,
however that ends.
"""
