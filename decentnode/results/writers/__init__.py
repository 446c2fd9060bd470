"""What writes evaluations for other tools while a run goes on; one file for each tool."""

from decentnode.results.writers.base import Writer
from decentnode.results.writers.csv import CsvWriter
from decentnode.results.writers.mlflow import MlflowWriter
from decentnode.results.writers.parquet import ParquetWriter
from decentnode.results.writers.tensorboard import TensorBoardWriter
from decentnode.results.writers.wandb import WandbWriter

__all__ = ["CsvWriter", "MlflowWriter", "ParquetWriter", "TensorBoardWriter", "WandbWriter", "Writer"]
