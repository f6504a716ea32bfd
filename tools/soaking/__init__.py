"""The soak: training runs on the test cluster under faults that a seed has planned, held against undisturbed ones."""
