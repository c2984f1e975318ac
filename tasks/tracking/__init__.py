"""Runs, metrics and models in MLflow. Importing this package does not import MLflow."""

from tasks.tracking.location import client, store_artifacts, store_uri, tracking_uri
from tasks.tracking.metric_logger import Delivery, MetricLogger
from tasks.tracking.registry import current_champion
from tasks.tracking.runs import (
    finish_run,
    log_artifact_files,
    log_artifacts,
    log_dataset_inputs,
    log_values,
    start_child_run,
    start_parent_run,
)

__all__ = [
    "Delivery",
    "MetricLogger",
    "client",
    "current_champion",
    "finish_run",
    "log_artifact_files",
    "log_artifacts",
    "log_dataset_inputs",
    "log_values",
    "start_child_run",
    "start_parent_run",
    "store_artifacts",
    "store_uri",
    "tracking_uri",
]
