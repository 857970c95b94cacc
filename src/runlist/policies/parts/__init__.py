"""What several policies are made of. Like policies, these see only the model."""
