"""The benchmark: jobs, runs, evaluation, results, tables and plots."""
