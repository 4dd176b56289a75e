"""Settings of W&B and MLflow, named by the environment variables that their own programs read."""

from dataclasses import dataclass

from infra.settings import PackSettings, row


@dataclass(frozen=True, kw_only=True)
class TrackerSettings(PackSettings):
    wandb_api_key: str = row("WANDB_API_KEY", "W&B: key of the account that gets the metrics", secret=True)
    wandb_project: str = row("WANDB_PROJECT", "W&B: project; without a key, runs are kept offline")
    wandb_mode: str = row("WANDB_MODE", "W&B: online, offline or disabled; default: online with a key, else offline")
    mlflow_tracking_uri: str = row(
        "MLFLOW_TRACKING_URI", "MLflow: tracking server; without a server, runs are kept in a folder"
    )
    mlflow_experiment_name: str = row("MLFLOW_EXPERIMENT_NAME", "MLflow: experiment of the runs (slipway)")
    mlflow_tracking_username: str = row("MLFLOW_TRACKING_USERNAME", "MLflow: user name, if the server asks for a name")
    mlflow_tracking_password: str = row("MLFLOW_TRACKING_PASSWORD", "MLflow: password of the user", secret=True)
    mlflow_tracking_token: str = row(
        "MLFLOW_TRACKING_TOKEN", "MLflow: token, instead of user name and password", secret=True
    )
