"""What tools/make_protocol is made of: a definition, and what it is in Python and in C++."""
