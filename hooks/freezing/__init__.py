"""Parts of freezing whole layers."""
