"""Loss scaling for MindSpore: the documented API, on Ascend, GPU and CPU."""

try:
    import mindspore  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mindspore":
        raise
    raise ModuleNotFoundError(
        "ms_lossscale needs MindSpore, which is not installed. On a laptop: pip install 'ms_lossscale[cpu]'. "
        "For Ascend or GPU install the MindSpore of your platform.", name="mindspore") from None

from ms_lossscale import conversion as _conversion  # noqa: F401
from ms_lossscale._errors import (
    CheckpointWarning,
    LossScaleWarning,
    NoLossScaleWarning,
    OptimizerScaleWarning,
    ScaleMismatchWarning,
    SeedOverflowWarning,
    SharedParametersWarning,
    UncheckedUpdateWarning,
    UnderflowWarning,
)
from ms_lossscale.callback import LossScaleMonitor
from ms_lossscale.checkpoint import load_checkpoint
from ms_lossscale.diagnose import diagnose
from ms_lossscale.dynamic_loss_scale import DynamicLossScale
from ms_lossscale.dynamic_manager import DynamicLossScaleManager
from ms_lossscale.dynamic_scaler import DynamicLossScaler
from ms_lossscale.finite import all_finite
from ms_lossscale.get_loss_scale import get_loss_scale
from ms_lossscale.joint_step import JointStep
from ms_lossscale.loss_scale import FixedLossScale, LossScale
from ms_lossscale.manager import FixedLossScaleManager, LossScaleManager
from ms_lossscale.model import Model, build_train_network
from ms_lossscale.patch import patch
from ms_lossscale.plot import plot_history
from ms_lossscale.scaler import LossScaler, StaticLossScaler
from ms_lossscale.train_options import TrainStep
from ms_lossscale.train_step import TrainOneStepWithLossScaleCell
from ms_lossscale.update_cell import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell

__version__ = "0.1.0"

__all__ = [
    "CheckpointWarning",
    "DynamicLossScale",
    "DynamicLossScaleManager",
    "DynamicLossScaleUpdateCell",
    "DynamicLossScaler",
    "FixedLossScale",
    "FixedLossScaleManager",
    "FixedLossScaleUpdateCell",
    "JointStep",
    "LossScale",
    "LossScaleManager",
    "LossScaleMonitor",
    "LossScaleWarning",
    "LossScaler",
    "Model",
    "NoLossScaleWarning",
    "OptimizerScaleWarning",
    "ScaleMismatchWarning",
    "SeedOverflowWarning",
    "SharedParametersWarning",
    "StaticLossScaler",
    "TrainOneStepWithLossScaleCell",
    "TrainStep",
    "UncheckedUpdateWarning",
    "UnderflowWarning",
    "all_finite",
    "build_train_network",
    "diagnose",
    "get_loss_scale",
    "load_checkpoint",
    "patch",
    "plot_history",
]
