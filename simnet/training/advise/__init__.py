"""Online adviser: learns exchange costs from iteration times and recommends the fastest exchange, with reasons."""
