"""What the verbs of the command line compute: choosing, sweeping, comparing, exporting, timing, listing."""
