"""What tools/mutants is made of."""
