"""Transactions: their coordinator, what it keeps in __transaction_state, and the markers that end them."""
