"""Parts of the benchmark of the network: its cases, its limits, its peers, and the page it writes."""
