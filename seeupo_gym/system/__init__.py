"""Files, locks and signals: what the operating system has to do with."""
