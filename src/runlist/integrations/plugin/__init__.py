"""The device plugin of `runlist plugin`: pieces of GPUs as resources of Kubernetes."""
