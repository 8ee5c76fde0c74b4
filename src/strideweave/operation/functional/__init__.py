"""Every operation as a function."""

from strideweave.operation.functional import (
    activation,
    arithmetic,
    comparison,
    convolution,
    indexing,
    matrix,
    normalization,
    ordering,
    pointwise,
    reductions,
    transcendental,
    views,
)
from strideweave.operation.functional.activation import *  # noqa: F403
from strideweave.operation.functional.arithmetic import *  # noqa: F403
from strideweave.operation.functional.comparison import *  # noqa: F403
from strideweave.operation.functional.convolution import *  # noqa: F403
from strideweave.operation.functional.indexing import *  # noqa: F403
from strideweave.operation.functional.matrix import *  # noqa: F403
from strideweave.operation.functional.normalization import *  # noqa: F403
from strideweave.operation.functional.ordering import *  # noqa: F403
from strideweave.operation.functional.pointwise import *  # noqa: F403
from strideweave.operation.functional.reductions import *  # noqa: F403
from strideweave.operation.functional.transcendental import *  # noqa: F403
from strideweave.operation.functional.views import *  # noqa: F403

__all__: list[str] = []
__all__ += activation.__all__
__all__ += arithmetic.__all__
__all__ += comparison.__all__
__all__ += convolution.__all__
__all__ += indexing.__all__
__all__ += matrix.__all__
__all__ += normalization.__all__
__all__ += ordering.__all__
__all__ += pointwise.__all__
__all__ += reductions.__all__
__all__ += transcendental.__all__
__all__ += views.__all__
