"""What the plugins for hyperopt and Optuna share: runs in which another library chooses the trials."""
