"""The command line: one file per command group. Heavy imports come only when they are needed."""
