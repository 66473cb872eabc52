"""What the commands compute: choosing, sweeping, comparing, exporting, timing, listing."""
