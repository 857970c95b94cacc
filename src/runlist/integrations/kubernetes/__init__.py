"""What the parts for Kubernetes share: the interfaces of its node, for Python."""
