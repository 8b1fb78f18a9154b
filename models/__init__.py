"""Model cards and the exact counts that follow from them."""
