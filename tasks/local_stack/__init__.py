"""Airflow and MLflow on one machine: started, found, and stopped by `tailtower up` and `down`.

`airflow standalone` is not used: its children outlive it, it listens on every interface, and one
API server on SQLite answers a fifth of the triggers with an error. Here each service is a process
in a session of its own, on the loopback address, with a health check before the next one starts.
"""
