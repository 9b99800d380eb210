"""What tests of the chart need of a Kubernetes cluster."""
