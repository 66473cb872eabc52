"""Studies that the commands carry out: choosing, sweeping, comparing, exporting, timing, listing."""
