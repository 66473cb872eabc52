"""Studies behind the commands: choosing, sweeping, comparing, exporting, timing, listing."""
