// The maps, by name. Who loads the programs makes them (planes/kernel/maps.py) and puts their descriptors in.
#pragma once

extern "C" {
extern char shapes, rules, watched, settings;                        // what is captured
extern char policy, force, exempt;                                   // what is refused, and to whom never anything
extern char refusals;                                                // and how often it was
extern char places, calls, spilled, asked, objects, files;           // the programs' own
extern char groups, processes, members, controls, counters, events;  // what people and the daemon read
extern char owners, swept, budgets;                                  // what each user has in them, and in a second
}

// Not maps but numbers, which the loader finds in the running kernel's types: where in a structure a field is.
extern "C" {
extern char at_task_struct_files, at_files_struct_fdt, at_fdtable_max_fds, at_fdtable_fd;
extern char at_task_struct_signal, at_signal_struct_live;
extern char at_file_f_inode, at_file_references, at_inode_i_rdev, at_inode_i_ino, at_inode_i_sb, at_super_block_s_dev;
}
