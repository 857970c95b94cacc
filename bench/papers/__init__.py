"""Papers whose claims are tried again here, each a package that measures, draws and judges."""
