"""OpenTelemetry spans; without a collector nothing of them is loaded."""
