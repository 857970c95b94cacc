"""The requests of users, the messages of tenants, and the answers to them."""
