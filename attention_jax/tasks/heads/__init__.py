"""What a trained model's heads are worth, what they do, and what they carry."""
