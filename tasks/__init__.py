"""What one step of the daily retraining does to the lake."""
